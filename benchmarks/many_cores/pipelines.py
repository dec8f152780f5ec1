"""Run networks as pipelines over core groups, partitioned by score and balanced: a table of many_cores.md, and a plot.

    python -m benchmarks.many_cores.pipelines [--preset chiplets-64] [--values] [--plot FILE.html]

Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.machine import load_preset
from harness.npu.loading import load_model
from harness.npu.npu_options import PipelineOptions
from harness.npu.pipeline.pipeline_run import PartitionRun, PipelineRun, run_pipeline
from harness.report.html import write_figure
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot

NETWORKS = ("resnet50", "densenet121", "inception_v1")
GROUPS = (2, 4, 8, 16)
_PS_PER_MS = 1e9


def pipelines_of(network: str, groups_of_run: Sequence[int], preset: str, with_values: bool) -> dict[int, PipelineRun]:
    """Run the network on each number of groups of one core."""
    model, machine = load_model(f"builtin:{network}", {}), load_preset(preset)
    found = {}
    for groups in groups_of_run:
        options = PipelineOptions(groups=str(groups), values=with_values)
        found[groups] = run_pipeline(model, machine, DEFAULT, options, note=print)
    return found


def row(network: str, groups: int, run: PipelineRun) -> str:
    """Return a row of the table."""
    balanced, by_score = run.runs
    cells = [network, str(groups)]
    for each in (by_score, balanced):
        report = each.timed.report
        cells += [f"{report.interval_ps / _PS_PER_MS:.3f}", f"{report.speedup:.2f}", f"{report.efficiency:.0%}"]
        cells.append(f"{report.imbalance:.2f}")
    cells += [f"{balanced.timed.report.latency_ps / _PS_PER_MS:.3f}", balanced.timed.report.bound, error_of(run.runs)]
    return f"| {' | '.join(cells)} |"


def error_of(runs: tuple[PartitionRun, ...]) -> str:
    """Return the largest relative difference from ONNX Runtime of all partitions."""
    errors = [each.max_rel_error for each in runs if each.max_rel_error is not None]
    return f"{max(errors):.1g}" if errors else ""


def main() -> None:
    """Print the table; write the plot if --plot is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS)
    parser.add_argument("--preset", default="chiplets-64")
    parser.add_argument("--values", action="store_true", help="compare outputs with ONNX Runtime")
    parser.add_argument("--plot", type=Path, help="file for the plot, HTML")
    arguments = parser.parse_args()
    print(
        "| network | groups | score: ms | speed-up | efficiency | imbalance | balanced: ms | speed-up | efficiency"
        " | imbalance | latency ms | bound by (balanced) | error |"
    )
    print("|---|" + "---|" * 12)
    series = []
    for network in arguments.networks:
        runs = pipelines_of(network, arguments.groups, arguments.preset, arguments.values)
        for groups, run in runs.items():
            print(row(network, groups, run), flush=True)
        for at, name in ((0, "balanced"), (1, "by score")):
            points = [(1.0, 1.0)]
            points += [(float(count), run.runs[at].timed.report.speedup) for count, run in runs.items()]
            series.append(PlotSeries(f"{network}, {name}", tuple(points)))
    if arguments.plot is not None:
        write_plot(arguments.plot, series, arguments.preset)


def write_plot(path: Path, series: Sequence[PlotSeries], preset: str) -> None:
    """Write a page with the speed-up by number of groups."""
    ticks = tuple((float(count), str(count)) for count in (1, *GROUPS))
    axes = PlotAxis("core groups", "log", ticks), PlotAxis("speed-up", "log", ticks)
    write_figure(path, f"Speed-up over one core of {preset}", line_plot(series, *axes))


if __name__ == "__main__":
    main()
