"""Run a fleet of emulated devices under one controller: one job at a time on each board, nothing lost, nothing leaked.

    python -m benchmarks.reliability.fleet FOLDER --devices 200 --campaigns 5

The controller is `LocalEngine` in a process of its own, so that its memory can be measured. Its sessions and samples
are read from its journal by plain SQL.
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from nullbench import build_network

from benchmarks.generated_page import ROOT
from benchmarks.reliability.journal import reading, visits
from harness.fleet.execution import run_request
from harness.fleet.local_engine import DEFAULT_WIDTH, LocalEngine
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

POLICY = RepeatPolicy(runs=4)
MODEL, REFERENCE, CONTROLLER = "small.onnx", "reference", "controller.json"
SETTLE_S = 1.0
"""Threads that are left after this time count as leaked."""
_SAMPLE_S = 0.25


def measure_fleet(folder: Path, devices: int, campaigns: int) -> dict[str, Any]:
    """Run the fleet in `folder`, which must be empty; return the figures of `control` and of `read_evidence`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"emu{number:03}" for number in range(devices)]
    build_network(folder / MODEL, widths=(8, 16))
    tables = (f'[devices.{name}]\nbackend = "emulated-npu"\noptions = {{ preset = "edge" }}\n' for name in names)
    (folder / "devices.toml").write_text("".join(tables), encoding="utf-8")
    environment = {**os.environ, "HARNESS_RUNTIME_FOLDER": str(folder / "leases"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.reliability.fleet", str(folder.absolute()), "--devices", str(devices)]
    command += ["--campaigns", str(campaigns)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return {
        "devices": devices,
        "campaigns": campaigns,
        "controller": json.loads((folder / CONTROLLER).read_text(encoding="utf-8")),
        "evidence": read_evidence(folder, names, campaigns),
    }


def control(folder: Path, devices: int, campaigns: int) -> dict[str, Any]:
    """Run all jobs in this process, and record its resources meanwhile.

    `children_cpu_s` is the CPU time of agents and workers; `parts` has the controller after each round of jobs.
    """
    workspace = Workspace(folder)
    run_request(_job("emu000", REFERENCE, folder), Workspace(_beside(folder)), stop=threading.Event())
    jobs = [
        _job(f"emu{number:03}", f"round-{round}/emu{number:03}", folder)
        for round in range(campaigns)
        for number in range(devices)
    ]
    before, children_before_s = _progress(0, time.monotonic(), 0.0), _cpu_s(resource.RUSAGE_CHILDREN)
    started_s, own_before_s = time.monotonic(), _cpu_s()
    failures: Counter[str] = Counter()
    outcomes = retried = golden = 0
    parts = []
    with _watching() as peaks:
        for outcome in LocalEngine(workspace).run(jobs, threading.Event()):
            outcomes += 1
            retried += outcome.attempts > 1
            golden += outcome.golden_s is not None
            if outcome.failure is not None:
                failures[f"{outcome.request.name}: {outcome.failure.kind}: {outcome.failure.what}"] += 1
            if outcomes % devices == 0:
                parts.append(_progress(outcomes, started_s, own_before_s))
    after = _progress(outcomes, started_s, own_before_s)
    settling_s = time.monotonic()
    while _threads() > 1 and time.monotonic() - settling_s < SETTLE_S:  # threads of heartbeats are never joined
        time.sleep(0.01)
    return {
        "width": DEFAULT_WIDTH,
        "outcomes": outcomes,
        "failures": list(failures),
        "retried": retried,
        "golden_checked": golden,
        "seconds": after["seconds"],
        "cpu_s": after["cpu_s"],
        "children_cpu_s": round(_cpu_s(resource.RUSAGE_CHILDREN) - children_before_s, 1),
        "rss_before_mb": before["rss_mb"],
        "rss_peak_mb": _status_mb("VmHWM"),
        "files_before": before["files"],
        "files_peak": peaks["files"],
        "files_after": _files(),
        "threads_peak": peaks["threads"],
        "threads_after": _threads(),
        "parts": parts,
    }


def read_evidence(folder: Path, names: Sequence[str], campaigns: int) -> dict[str, Any]:
    """Compare the jobs in the journal with one campaign that was measured alone.

    `overlaps` counts sessions of a device that wrote before an earlier session had ended; `gap_s` is the shortest time
    between two sessions of a device. `at_once` is the largest number of devices measured at the same time.
    """
    (expected,) = visits(Workspace(_beside(folder)).journal).values()
    path = Workspace(folder).journal
    found = visits(path)
    with reading(path) as db:
        (complete,) = db.execute(
            "SELECT count(*) FROM campaigns WHERE json_extract(settings, '$.purpose')='profile' AND complete=1"
            " AND excluded IS NULL"
        ).fetchone()
        sessions = db.execute(
            "SELECT device, series.token, min(taken), max(taken), min(series.id) FROM series"
            " JOIN campaigns ON campaigns.id=series.campaign GROUP BY 1, 2 ORDER BY 5"
        ).fetchall()
    held: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for device, token, first, last, _ in sessions:
        held[device].append((token, *(datetime.fromisoformat(moment).timestamp() for moment in (first, last))))
    pairs = [(one, other) for taken in held.values() for one, other in itertools.pairwise(taken)]
    assert set(held) <= set(names), "the journal has devices of other runs"
    return {
        "complete": complete,
        "samples": sum(visit[-1] for campaign in found.values() for visit in campaign),
        "expected_samples": len(names) * campaigns * sum(visit[-1] for visit in expected),
        "differing": sum(campaign != expected for campaign in found.values()),
        "doubled": sum(len(campaign) - len({visit[:3] for visit in campaign}) for campaign in found.values()),
        "sessions": len(sessions),
        "overlaps": sum(other[1] < one[2] for one, other in pairs),
        "tokens_not_growing": sum(other[0] <= one[0] for one, other in pairs),
        "gap_s": round(min(other[1] - one[2] for one, other in pairs), 3) if pairs else None,
        "at_once": _most_at_once([span for taken in held.values() for _, *span in taken]),
        "journal_mb": round(path.stat().st_size / 1e6, 1),
    }


def _job(device: str, name: str, folder: Path) -> ProfileRequest:
    return ProfileRequest(device=device, models=(str(folder / MODEL),), policy=POLICY, name=name)


def _beside(folder: Path) -> Path:
    """Create a workspace with the same devices, for the campaign that all others are compared with."""
    beside = folder / REFERENCE
    beside.mkdir(exist_ok=True)
    (beside / "devices.toml").write_text((folder / "devices.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return beside


def _most_at_once(spans: Sequence[Sequence[float]]) -> int:
    steps = sorted([(first, 1) for first, _ in spans] + [(last, -1) for _, last in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


@contextlib.contextmanager
def _watching() -> Iterator[dict[str, int]]:
    """Record the largest numbers of open files and threads of this process while the body runs."""
    peaks, over = {"files": 0, "threads": 0}, threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            peaks["files"] = max(peaks["files"], _files())
            peaks["threads"] = max(peaks["threads"], _threads())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def _progress(jobs: int, started_s: float, cpu_before_s: float) -> dict[str, Any]:
    """Return the controller after so many jobs; its times are since its start."""
    return {
        "jobs": jobs,
        "seconds": round(time.monotonic() - started_s, 1),
        "cpu_s": round(_cpu_s() - cpu_before_s, 1),
        "rss_mb": _status_mb("VmRSS"),
        "files": _files(),
        "threads": _threads(),
    }


def _cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return round(int(line.split()[1]) / 1024, 1)


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> int:
    """Count threads of Python; numeric libraries also keep one per core."""
    return threading.active_count()


def main() -> None:
    """Run all jobs as the controller, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a workspace with devices.toml and the network")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--campaigns", type=int, required=True)
    given = parser.parse_args()
    figures = control(given.folder, given.devices, given.campaigns)
    (given.folder / CONTROLLER).write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
