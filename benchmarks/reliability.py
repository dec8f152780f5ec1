"""Everything that docs/reliability.md tells, measured, and its generated blocks rewritten.

    python benchmarks/reliability.py [fleet] [kills] [faults] [golden] [nights] [fuzz] [page] [--quick] [--seed N]

Each part can be run by itself; its figures are kept as JSON in benchmarks/results/reliability/, and the page is written
from what is there, so that parts that were not run stay as they are. `--quick` runs everything with small numbers in
about three minutes, in a folder of its own, and prints the page. Ends with 1 where something that is to be zero is not.
Run from the root of the repository. Needs the extra `test`; sshd for the link; the extra `fuzz` for fuzzing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from accuracy_page import machine  # noqa: E402
from reliability_fleet import measure_fleet  # noqa: E402
from reliability_golden import measure_golden_checks  # noqa: E402
from reliability_kills import measure_kills  # noqa: E402
from reliability_page import PAGE, RESULTS, check_page, write_page  # noqa: E402

from harness.fleet.local_engine import DEFAULT_WIDTH  # noqa: E402

FAULTS = ROOT / "tests" / "system" / "faults"
NO_ATHERIS = 2
SIZE_OPTIONS = ("devices", "campaigns", "kills", "nights", "fuzz_s")
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    devices: int
    campaigns: int
    width: int
    kills: int
    golden: int
    nights: int
    networks: tuple[str, ...]
    fuzz_s: int
    faults: str


WHOLE = Sizes(200, 5, DEFAULT_WIDTH, 100, 1000, 1000, (), 60, "")
QUICK = Sizes(10, 2, DEFAULT_WIDTH, 4, 50, 5, ("dscnn",), 3, "test_device_faults.py")


@dataclass(frozen=True)
class Run:
    """One run: how much, with which seed, in which folder."""

    sizes: Sizes
    seed: int
    folder: Path


def fleet_part(run: Run) -> Any:
    """Many devices under one controller."""
    return asdict(measure_fleet(run.folder / "fleet", run.sizes.devices, run.sizes.campaigns, run.sizes.width))


def kills_part(run: Run) -> Any:
    """Controller, agent, worker and link at random moments."""
    return [asdict(one) for one in measure_kills(run.folder / "kills", run.sizes.kills, run.seed)]


def golden_part(run: Run) -> Any:
    """Sound devices and slower ones."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        return [asdict(one) for one in measure_golden_checks(Path(folder), run.sizes.golden, run.seed)]


def faults_part(run: Run) -> Any:
    """The suite of faults; each adds its row, and those that cannot be injected here say why."""
    rows, report = run.folder / "faults.jsonl", run.folder / "faults.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [str(FAULTS / run.sizes.faults), f"--junitxml={report}"]
    environment = {**os.environ, "HARNESS_FAULT_TABLE": str(rows), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=sys.stderr)
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - written by pytest just now
    told = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return {
        "rows": [json.loads(line) for line in told],
        "tests": len(cases),
        "failed": [str(case.get("name")) for case in cases if case.find("failure") or case.find("error")],
        "skipped": [[str(case.get("name")), str(one.get("message"))] for case in cases for one in case.iter("skipped")],
    }


def nights_part(run: Run) -> Any:
    """Simulated nights, unchanged and with one slow layer."""
    output = run.folder / "nights.json"
    command = [sys.executable, str(Path(__file__).with_name("regression_nights.py"))]
    command += ["--nights", str(run.sizes.nights), "--seed", str(run.seed), "--output", str(output)]
    command += ["--networks", *run.sizes.networks] if run.sizes.networks else []
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    return json.loads(output.read_text(encoding="utf-8"))


def fuzz_part(run: Run) -> Any:
    """The four readers under atheris; says so where that is missing."""
    command = [sys.executable, "-m", "fuzz", "--seconds", str(run.sizes.fuzz_s), "--keep", str(run.folder / "fuzz")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode == NO_ATHERIS:
        return {"missing": "atheris is not installed"}
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return json.loads(line)


PARTS: Mapping[str, Callable[[Run], Any]] = {
    "fleet": fleet_part,
    "kills": kills_part,
    "faults": faults_part,
    "golden": golden_part,
    "nights": nights_part,
    "fuzz": fuzz_part,
}


def main() -> int:
    """Runs the parts; what one found is kept before the next one begins."""
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
        run = Run(_sizes(given), given.seed, folder)
        for part in parts:
            print(f"== {part}", file=sys.stderr, flush=True)
            _keep(part, run, results, _command(part, given))
        amiss = write_page(page, results)
        if given.quick and given.page is None:
            print(page.read_text(encoding="utf-8"))
    for line in amiss:
        print(f"amiss: {line}", file=sys.stderr)
    return 1 if amiss else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = f"of {', '.join(PARTS)}; or page, which only writes the page anew; default: all"
    parser.add_argument("parts", nargs="*", metavar="PART", help=words)
    parser.add_argument("--quick", action="store_true", help="small numbers, a copy of the page")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workspace", type=Path, help="folder that is kept; a temporary one by default")
    parser.add_argument("--results", type=Path, help="folder of the figures, instead of benchmarks/results/reliability")
    parser.add_argument("--page", type=Path, help="the page to rewrite instead of docs/reliability.md")
    parser.add_argument("--devices", type=int, help=f"of the fleet, {WHOLE.devices} by default")
    parser.add_argument("--campaigns", type=int, help=f"on each device of the fleet, {WHOLE.campaigns} by default")
    parser.add_argument("--kills", type=int, help=f"of each victim, {WHOLE.kills} by default")
    parser.add_argument("--nights", type=int, help=f"of each kind, {WHOLE.nights} by default")
    parser.add_argument("--fuzz-s", type=int, help=f"seconds for each reader, {WHOLE.fuzz_s} by default")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in (*PARTS, "page")]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; parts are {', '.join(PARTS)}, page")
    return given


def _sizes(given: argparse.Namespace) -> Sizes:
    known = asdict(QUICK if given.quick else WHOLE)
    chosen = {name: getattr(given, name) for name in SIZE_OPTIONS}
    return Sizes(**known | {name: size for name, size in chosen.items() if size is not None})


def _command(part: str, given: argparse.Namespace) -> str:
    """What does the same again, anywhere."""
    words = ["python", "benchmarks/reliability.py", part, *(["--quick"] if given.quick else []), "--seed", given.seed]
    for name in SIZE_OPTIONS:
        if getattr(given, name) is not None:
            words += [f"--{name.replace('_', '-')}", getattr(given, name)]
    return shlex.join(map(str, words))


def _keep(part: str, run: Run, results: Path, command: str) -> None:
    """Runs a part and keeps what it found, with when, where and how."""
    load, started_s = os.getloadavg()[0], time.monotonic()
    found = PARTS[part](run)
    kept = {
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
    (results / f"{part}.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
