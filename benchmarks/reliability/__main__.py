"""Measure the figures of docs/reliability.md and rewrite its generated blocks.

    python -m benchmarks.reliability [--workspace DIR] [--parts fleet,kills,…] [--quick] [--page FILE]

Takes about an hour on an idle machine. --parts selects some; blocks and targets of the others stay. --quick runs all
parts with small numbers in about three minutes, and writes to a copy of the page in the workspace. Run from the root of
the repository. Needs the extra `test`, sshd for the link, and the extra `fuzz` for fuzzing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.generated_page import ROOT, Section
from benchmarks.parts import run_parts
from benchmarks.performance.measuring import Run
from benchmarks.reliability.fleet import measure_fleet
from benchmarks.reliability.golden import Golden, measure_golden_checks
from benchmarks.reliability.kills import measure_kills
from benchmarks.reliability.nights import NETWORKS, measure_nights
from benchmarks.reliability.page import (
    PAGE,
    faults_section,
    fleet_section,
    fuzz_section,
    golden_section,
    kills_section,
    nights_section,
    outcomes_of,
)

SEED = 1
FAULTS = ROOT / "tests" / "system" / "faults"
NO_ATHERIS = 2
IN_MEMORY = Path("/dev/shm")


def measured_golden(run: Run) -> list[Golden]:
    """Check the golden probe on sound devices and slower ones."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        return measure_golden_checks(Path(folder), 50 if run.quick else 1000, SEED)


def measured_faults(run: Run) -> dict[str, Any]:
    """Run the tests of faults. Each adds its row; tests that cannot inject their fault here give the reason."""
    rows, report = run.root / "faults.jsonl", run.root / "faults.xml"
    rows.unlink(missing_ok=True)  # the tests append to it
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [str(FAULTS / ("test_device_faults.py" if run.quick else "")), f"--junitxml={report.absolute()}"]
    environment = {**os.environ, "HARNESS_FAULT_TABLE": str(rows.absolute()), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=sys.stderr)
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return {"rows": [json.loads(line) for line in lines], **outcomes_of(report)}


def measured_fuzzing(run: Run) -> dict[str, Any]:
    """Fuzz the readers of foreign input under atheris. If it is missing, return that."""
    seconds, keep = "3" if run.quick else "600", str(run.root.absolute() / "fuzz")
    command = [sys.executable, "-m", "fuzz", "--seconds", seconds, "--keep", keep]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode == NO_ATHERIS:
        return {"missing": "atheris is not installed"}
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


PARTS: Mapping[str, Callable[[Run], Section]] = {
    "fleet": lambda run: fleet_section(measure_fleet(run.folder("fleet"), *((10, 2) if run.quick else (200, 5)))),
    "kills": lambda run: kills_section(measure_kills(run.folder("kills"), 4 if run.quick else 100, SEED)),
    "faults": lambda run: faults_section(measured_faults(run)),
    "golden": lambda run: golden_section(measured_golden(run)),
    "nights": lambda run: nights_section(
        measure_nights(5, ("dscnn",), SEED) if run.quick else measure_nights(1000, NETWORKS, SEED)
    ),
    "fuzz": lambda run: fuzz_section(measured_fuzzing(run)),
}

if __name__ == "__main__":
    raise SystemExit(run_parts(__doc__, PAGE, PARTS, Run))
