"""Networks as pipelines over core groups: throughput and efficiency, balanced beside by score, and a plot of them.

Run: python benchmarks/pipelines.py [--preset chiplets-64] [--values] [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.machine import load_preset
from harness.emulator import loading as npu_source
from harness.emulator.pipeline import CoreChoices, CoresRun, PartitionRun, run_on_cores
from harness.report.line_plot import Axis, Series, line_plot

NETWORKS = ("resnet50", "densenet121", "inception_v1")
GROUPS = (2, 4, 8, 16)
_PS_PER_MS = 1e9


def runs_of(network: str, preset: str, with_values: bool) -> dict[int, CoresRun]:
    """The network on every number of groups of one core each."""
    model = npu_source.load_model(f"builtin:{network}", None)
    compiled = npu_source.compile_network(model, load_preset(preset), DEFAULT)
    found = {}
    for groups in GROUPS:
        choices = CoreChoices(groups=str(groups))
        found[groups] = run_on_cores(compiled, choices, with_values)
    return found


def row(network: str, groups: int, run: CoresRun) -> str:
    """One line of the table."""
    balanced, by_score = run.runs
    cells = [network, str(groups)]
    for each in (by_score, balanced):
        report = each.timed.report
        cells += [f"{report.interval_ps / _PS_PER_MS:.3f}", f"{report.speedup:.2f}", f"{report.efficiency:.0%}"]
        cells.append(f"{report.imbalance:.2f}")
    cells += [f"{balanced.timed.report.latency_ps / _PS_PER_MS:.3f}", balanced.timed.report.bound, error_of(run.runs)]
    return f"| {' | '.join(cells)} |"


def error_of(runs: tuple[PartitionRun, ...]) -> str:
    """The largest difference from ONNX Runtime of any partition."""
    errors = [each.max_rel_error for each in runs if each.max_rel_error is not None]
    return f"{max(errors):.1g}" if errors else ""


def main() -> None:
    """Prints the table; writes the plot where it is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="chiplets-64")
    parser.add_argument("--values", action="store_true")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    print(
        "| network | groups | score: ms | speed-up | efficiency | imbalance | balanced: ms | speed-up | efficiency"
        " | imbalance | latency ms | bound by (balanced) | error |"
    )
    print("|---|" + "---|" * 12)
    series = []
    for network in NETWORKS:
        runs = runs_of(network, arguments.preset, arguments.values)
        for groups, run in runs.items():
            print(row(network, groups, run), flush=True)
        for place, name in ((0, "balanced"), (1, "by score")):
            points = [(1.0, 1.0)]
            points += [(float(count), run.runs[place].timed.report.speedup) for count, run in runs.items()]
            series.append(Series(f"{network}, {name}", tuple(points), ()))
    if arguments.plot is not None:
        title = f"Speed-up over one core of {arguments.preset}"
        plot = line_plot(series, title=title, x=Axis("core groups", "log"), y=Axis("speed-up", "log"))
        arguments.plot.write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
