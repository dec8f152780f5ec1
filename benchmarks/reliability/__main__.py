"""Measure the figures of docs/reliability.md and rewrite its generated blocks.

    python -m benchmarks.reliability [fleet] [kills] [faults] [golden] [nights] [fuzz] [page] [--quick] [--seed N]

Names select parts; the default is all of them. The figures of a part are stored as JSON in
benchmarks/reliability/results/, and the page is written from the files there, so that other parts stay. `page` only
writes the page. --quick runs all parts with small numbers in about three minutes, in a folder of its own, and prints
the page. Exits with 1 if a target is missed. Run from the root of the repository. Needs the extra `test`, sshd for the
link, and the extra `fuzz` for fuzzing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.generated_page import ROOT, machine
from benchmarks.reliability.fleet import measure_fleet
from benchmarks.reliability.golden import measure_golden_checks
from benchmarks.reliability.kills import measure_kills
from benchmarks.reliability.nights import measure_nights
from benchmarks.reliability.page import PAGE, RESULTS, check_page, write_page
from harness.fleet.local_engine import DEFAULT_WIDTH

FAULTS = ROOT / "tests" / "system" / "faults"
NO_ATHERIS = 2
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Sizes:
    """The size of each part."""

    devices: int
    campaigns: int
    width: int
    kills: int
    golden: int
    nights: int
    networks: tuple[str, ...]
    fuzz_s: int
    faults: str


WHOLE = Sizes(200, 5, DEFAULT_WIDTH, 100, 1000, 1000, (), 600, "")
QUICK = Sizes(10, 2, DEFAULT_WIDTH, 4, 50, 5, ("dscnn",), 3, "test_device_faults.py")


@dataclass(frozen=True)
class Run:
    """One run: its sizes, seed and folder."""

    sizes: Sizes
    seed: int
    folder: Path


def golden_part(run: Run) -> Any:
    """Check the golden probe on sound devices and slower ones."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        return [asdict(one) for one in measure_golden_checks(Path(folder), run.sizes.golden, run.seed)]


def faults_part(run: Run) -> Any:
    """Run the tests of faults. Each adds its row; tests that cannot inject their fault here give the reason."""
    rows, report = run.folder / "faults.jsonl", run.folder / "faults.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [str(FAULTS / run.sizes.faults), f"--junitxml={report.absolute()}"]
    environment = {**os.environ, "HARNESS_FAULT_TABLE": str(rows.absolute()), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=sys.stderr)
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest has just written it
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return {
        "rows": [json.loads(line) for line in lines],
        "tests": len(cases),
        "failed": [str(case.get("name")) for case in cases if case.find("failure") or case.find("error")],
        "skipped": [[str(case.get("name")), str(one.get("message"))] for case in cases for one in case.iter("skipped")],
    }


def fuzz_part(run: Run) -> Any:
    """Fuzz the readers of foreign input under atheris. If it is missing, return that."""
    keep = str(run.folder.absolute() / "fuzz")
    command = [sys.executable, "-m", "fuzz", "--seconds", str(run.sizes.fuzz_s), "--keep", keep]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode == NO_ATHERIS:
        return {"missing": "atheris is not installed"}
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return json.loads(line)


PARTS: Mapping[str, Callable[[Run], Any]] = {
    "fleet": lambda run: measure_fleet(run.folder / "fleet", run.sizes.devices, run.sizes.campaigns, run.sizes.width),
    "kills": lambda run: measure_kills(run.folder / "kills", run.sizes.kills, run.seed),
    "faults": faults_part,
    "golden": golden_part,
    "nights": lambda run: measure_nights(run.sizes.nights, run.sizes.networks, run.seed),
    "fuzz": fuzz_part,
}


def main() -> int:
    """Run the parts; the figures of each are stored before the next one begins."""
    given = _arguments()
    parts = [part for part in PARTS if part in given.parts or not given.parts]
    with tempfile.TemporaryDirectory(prefix="harness-reliability-") as temporary:
        folder = given.workspace or Path(temporary)
        results = given.results or (folder / "results" if given.quick else RESULTS)
        page = given.page or (folder / PAGE.name if given.quick else PAGE)
        for directory in (folder, results):
            directory.mkdir(parents=True, exist_ok=True)
        if page not in (PAGE, given.page):
            page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
        check_page(page)
        run = Run(QUICK if given.quick else WHOLE, given.seed, folder)
        for part in parts:
            print(f"== {part}", file=sys.stderr, flush=True)
            quick = " --quick" if given.quick else ""
            _run_part(part, run, results, f"python -m benchmarks.reliability {part}{quick} --seed {given.seed}")
        missed = write_page(page, results)
        if given.quick and given.page is None:
            print(page.read_text(encoding="utf-8"))
    for line in missed:
        print(f"target missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = f"{', '.join(PARTS)}, or page, which only writes the page; default: all"
    parser.add_argument("parts", nargs="*", metavar="PART", help=words)
    parser.add_argument("--quick", action="store_true", help="small numbers, a copy of the page")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workspace", type=Path, help="folder to work in; default: a temporary one")
    parser.add_argument("--results", type=Path, help="folder of the figures; default: benchmarks/reliability/results")
    parser.add_argument("--page", type=Path, help="page to rewrite; default: docs/reliability.md")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in (*PARTS, "page")]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; parts are {', '.join(PARTS)}, page")
    return given


def _run_part(part: str, run: Run, results: Path, command: str) -> None:
    """Run a part and store its figures with the date, the machine and the command."""
    load, started_s = os.getloadavg()[0], time.monotonic()
    found = PARTS[part](run)
    stored = {
        "part": part,
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(time.monotonic() - started_s),
        "load_before": round(load, 1),
        "machine": machine(),
        "sizes": asdict(run.sizes),
        "seed": run.seed,
        "found": found,
    }
    (results / f"{part}.json").write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
