"""Measure the figures of docs/accuracy.md and rewrite its generated blocks.

    python -m benchmarks.accuracy [--workspace DIR] [--parts npu,cpu,…] [--quick] [--page FILE]

--parts selects some of the parts; blocks and targets of the others stay. --quick measures three small networks in about
two minutes, as a check, and writes to a copy of the page in the workspace. Run from the root of the repository, on a
machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.accuracy.auxiliary_kinds import auxiliary_section
from benchmarks.accuracy.device_time import time_section
from benchmarks.accuracy.devices import Run, say
from benchmarks.accuracy.fusion_rules import fusion_section
from benchmarks.accuracy.known_layers import known_layers_section
from benchmarks.accuracy.left_out import leave_out_section
from benchmarks.accuracy.networks import cpu_section, npu_section, openvino_section
from benchmarks.accuracy.overhead_intervals import overhead_section
from benchmarks.accuracy.page import PAGE, check_page, write_section
from benchmarks.accuracy.predictor_v100 import v100_section
from benchmarks.generated_page import Section
from harness.errors import HarnessError
from harness.network.model_references import BUILTIN_NAMES

PARTS: Mapping[str, Callable[[Run], Section]] = {
    "npu": npu_section,
    "known-layers": known_layers_section,
    "cpu": cpu_section,
    "leave-out": leave_out_section,
    "openvino": openvino_section,
    "auxiliary": auxiliary_section,
    "overhead": overhead_section,
    "v100": v100_section,
    "fusion": fusion_section,
    "time": time_section,
}
QUICK_NETWORKS = ("squeezenet", "mobilenetv2", "dscnn")
_MET_WORDS = {True: "met", False: "not met", None: "no target"}


def main() -> int:
    """Run the parts and write each to the page before the next one begins. Return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, help="folder to work in; default: a temporary one")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to run, separated by commas; default: all")
    parser.add_argument("--quick", action="store_true", help="three small networks, few draws, a copy of the page")
    parser.add_argument("--page", type=Path, help="page to rewrite; default: docs/accuracy.md")
    given = parser.parse_args()
    parts = [part for part in given.parts.split(",") if part]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; parts are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        root = given.workspace or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        page = given.page or (_copy_of_page(root) if given.quick else PAGE)
        check_page(page, parts)
        run = Run(root, QUICK_NETWORKS if given.quick else BUILTIN_NAMES, given.quick)
        failed = [part for part in parts if not run_part(part, run, page)]
        if given.quick and given.page is None and given.workspace is None:
            print(page.read_text(encoding="utf-8"))
    return 1 if failed else 0


def run_part(part: str, run: Run, page: Path) -> bool:
    """Run a part and write it to the page. If it fails, print why, leave its block as it was and return False."""
    started_s = time.monotonic()
    say(f"== {part}")
    try:
        section = PARTS[part](run)
    except HarnessError as error:
        say(f"{part} failed: {error}")
        return False
    write_section(page, part, section, time.monotonic() - started_s)
    for row in section.reached:
        say(f"{row.target}: {row.figure} ({_MET_WORDS[row.met]})")
    return True


def _copy_of_page(root: Path) -> Path:
    copy = root / PAGE.name
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return copy


if __name__ == "__main__":
    raise SystemExit(main())
