"""Run networks as pipelines over core groups, partitioned by score and balanced: a table of docs/many_cores.md.

    python -m benchmarks.many_cores.pipelines [--networks NAME ...] [--groups N ...]

Prints Markdown.
"""

import argparse

from benchmarks.generated_page import print_head, print_row
from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.machine import load_preset
from harness.npu.loading import load_model
from harness.npu.npu_options import PipelineOptions
from harness.npu.pipeline.pipeline_run import PipelineRun, run_pipeline

NETWORKS, PRESET = ("resnet50", "densenet121", "inception_v1"), "chiplets-64"
GROUPS = (2, 4, 8, 16)
_PS_PER_MS = 1e9


def _cells(run: PipelineRun) -> list[str]:
    balanced, by_score = run.runs
    cells = []
    for each in (by_score, balanced):
        report = each.timed.report
        cells += [f"{report.interval_ps / _PS_PER_MS:.3f}", f"{report.speedup:.2f}", f"{report.efficiency:.0%}"]
        cells.append(f"{report.imbalance:.2f}")
    return [*cells, f"{balanced.timed.report.latency_ps / _PS_PER_MS:.3f}", balanced.timed.report.bound]


def main() -> None:
    """Print the table; each group has one core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS)
    arguments = parser.parse_args()
    rest = ("speed-up", "efficiency", "imbalance")
    print_head("network", "groups", "score: ms", *rest, "balanced: ms", *rest, "latency ms", "bound by (balanced)")
    for network in arguments.networks:
        model = load_model(f"builtin:{network}", {})
        for groups in arguments.groups:
            options = PipelineOptions(groups=str(groups), values=False)
            run = run_pipeline(model, load_preset(PRESET), DEFAULT, options, note=print)
            print_row(network, groups, *_cells(run))


if __name__ == "__main__":
    main()
