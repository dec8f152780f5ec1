"""Measure the figures of docs/accuracy.md and rewrite its generated blocks.

    python -m benchmarks.accuracy [--workspace DIR] [--parts npu,cpu,…] [--quick] [--page FILE]

--parts selects some of the parts; blocks and targets of the others stay. --quick measures three small networks in about
two minutes, as a check, and writes to a copy of the page in the workspace. Run from the root of the repository, on a
machine that is otherwise idle.
"""

from collections.abc import Callable, Mapping

from benchmarks.accuracy.auxiliary_kinds import auxiliary_section
from benchmarks.accuracy.device_time import time_section
from benchmarks.accuracy.devices import Run
from benchmarks.accuracy.fusion_rules import fusion_section
from benchmarks.accuracy.known_layers import known_layers_section
from benchmarks.accuracy.left_out import leave_out_section
from benchmarks.accuracy.networks import cpu_section, npu_section, openvino_section, threads_section
from benchmarks.accuracy.overhead_intervals import overhead_section
from benchmarks.accuracy.page import PAGE
from benchmarks.accuracy.predictor_v100 import v100_section
from benchmarks.generated_page import Section
from benchmarks.parts import run_parts
from harness.network.model_references import BUILTIN_NAMES

PARTS: Mapping[str, Callable[[Run], Section]] = {
    "npu": npu_section,
    "known-layers": known_layers_section,
    "cpu": cpu_section,
    "threads": threads_section,
    "leave-out": leave_out_section,
    "openvino": openvino_section,
    "auxiliary": auxiliary_section,
    "overhead": overhead_section,
    "v100": v100_section,
    "fusion": fusion_section,
    "time": time_section,
}
QUICK_NETWORKS = ("squeezenet", "mobilenetv2", "dscnn")

if __name__ == "__main__":
    raise SystemExit(
        run_parts(
            __doc__, PAGE, PARTS, lambda root, quick: Run(root, QUICK_NETWORKS if quick else BUILTIN_NAMES, quick)
        )
    )
