"""Everything that docs/accuracy.md tells, measured, and its generated blocks rewritten.

    python benchmarks/accuracy.py [--workspace DIR] [--parts npu,cpu,…] [--quick] [--page FILE]

Each part can be run by itself; blocks and rows of other parts stay as they are. `--quick` measures three small
networks in two minutes, to see that everything works, and writes to a copy of the page in the workspace. Run from the
root of the repository, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "predictor")]

from accuracy_devices import Run, say  # noqa: E402
from accuracy_leave_out import leave_out_section  # noqa: E402
from accuracy_networks import cpu_section, npu_section, openvino_section  # noqa: E402
from accuracy_others import fusion_section, overhead_section, v100_section  # noqa: E402
from accuracy_page import Section, check_page, write_section  # noqa: E402
from accuracy_time import time_section  # noqa: E402

from harness.errors import HarnessError  # noqa: E402
from harness.network.models import BUILTIN_NAMES  # noqa: E402

PARTS: Mapping[str, Callable[[Run], Section]] = {
    "npu": npu_section,
    "cpu": cpu_section,
    "leave-out": leave_out_section,
    "openvino": openvino_section,
    "overhead": overhead_section,
    "v100": v100_section,
    "fusion": fusion_section,
    "time": time_section,
}
QUICK_NETWORKS = ("squeezenet", "mobilenetv2", "dscnn")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"


def main() -> int:
    """Runs the parts; what one reached is on the page before the next one begins. 1 where a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, help="folder that is kept; a temporary one by default")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="three small networks, few draws")
    parser.add_argument("--page", type=Path, help="the page to rewrite instead of docs/accuracy.md")
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
    """Whether the part came through; one that fails is told and leaves its block as it was."""
    started_s = time.monotonic()
    say(f"== {part}")
    try:
        section = PARTS[part](run)
    except HarnessError as error:
        say(f"{part} failed: {error}")
        return False
    write_section(page, part, section, time.monotonic() - started_s)
    for one in section.reached:
        say(f"{one.target}: {one.figure} ({ {True: 'met', False: 'not met', None: 'no threshold'}[one.met] })")
    return True


def _copy_of_page(root: Path) -> Path:
    copy = root / PAGE.name
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return copy


if __name__ == "__main__":
    raise SystemExit(main())
