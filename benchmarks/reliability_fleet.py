"""A fleet of emulated devices under one controller: each board used by one job at a time, nothing lost, nothing leaked.

    python benchmarks/reliability_fleet.py FOLDER --devices 200 --campaigns 5

The controller is `LocalEngine` in a process of its own, so that its memory is its own. What it did is read from the
journal that it left, by plain SQL: sessions by their fencing tokens, places with their samples.
"""

from __future__ import annotations

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
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from nullbench import build_network  # noqa: E402
from reliability_journal import reading, visits  # noqa: E402

from harness.fleet.execution import run_request  # noqa: E402
from harness.fleet.local_engine import DEFAULT_WIDTH, LocalEngine  # noqa: E402
from harness.measure.policy import RepeatPolicy  # noqa: E402
from harness.measure.request import ProfileRequest  # noqa: E402
from harness.workspace import Workspace  # noqa: E402

POLICY = RepeatPolicy(runs=4)
MODEL, REFERENCE, CONTROLLER = "small.onnx", "reference", "controller.json"
SETTLE_S = 1.0
"""What is a leak is still there after this."""
_SAMPLE_S = 0.25


@dataclass(frozen=True)
class Fifth:
    """The controller after a part of all jobs; `seconds` and `cpu_s` are its own, from its beginning."""

    jobs: int
    seconds: float
    cpu_s: float
    rss_mb: float
    files: int
    threads: int


@dataclass(frozen=True)
class Controller:
    """What the controller says of itself; `children_cpu_s` is that of agents and workers."""

    width: int
    outcomes: int
    failures: tuple[str, ...]
    retried: int
    golden_checked: int
    seconds: float
    cpu_s: float
    children_cpu_s: float
    rss_before_mb: float
    rss_peak_mb: float
    files_before: int
    files_peak: int
    files_after: int
    threads_peak: int
    threads_after: int
    parts: tuple[Fifth, ...]


@dataclass(frozen=True)
class Evidence:
    """What the journal says of all jobs.

    `overlaps` are sessions of a device that wrote before an earlier one had ended, `gap_s` is the shortest time between
    two of them; `at_once` is how many devices were measured at the same time, at most.
    """

    complete: int
    samples: int
    expected_samples: int
    differing: int
    doubled: int
    sessions: int
    overlaps: int
    tokens_not_growing: int
    gap_s: float | None
    at_once: int
    journal_mb: float


@dataclass(frozen=True)
class FleetResult:
    """The fleet's figures."""

    devices: int
    campaigns: int
    controller: Controller
    evidence: Evidence


def measure_fleet(folder: Path, devices: int, campaigns: int, width: int = DEFAULT_WIDTH) -> FleetResult:
    """Runs the fleet in `folder`, which is to be empty, and looks at what it left."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"emu{number:03}" for number in range(devices)]
    build_network(folder / MODEL, widths=(8, 16))
    tables = (f'[devices.{name}]\nbackend = "emulated-npu"\noptions = {{ preset = "edge" }}\n' for name in names)
    (folder / "devices.toml").write_text("".join(tables), encoding="utf-8")
    environment = {**os.environ, "HARNESS_RUNTIME_FOLDER": str(folder / "leases"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), str(folder), "--devices", str(devices)]
    command += ["--campaigns", str(campaigns), "--width", str(width)]
    subprocess.run(command, env=environment, check=True)
    told = json.loads((folder / CONTROLLER).read_text(encoding="utf-8"))
    parts = tuple(Fifth(**part) for part in told.pop("parts"))
    failures = tuple(told.pop("failures"))
    return FleetResult(
        devices,
        campaigns,
        Controller(**told, parts=parts, failures=failures),
        look_at_journal(folder, names, campaigns),
    )


def control(folder: Path, devices: int, campaigns: int, width: int) -> Controller:
    """Runs all jobs in this process, and looks at it meanwhile."""
    workspace = Workspace(folder)
    run_request(_job("emu000", REFERENCE, folder), Workspace(_beside(folder)), stop=threading.Event())
    jobs = [
        _job(f"emu{number:03}", f"round-{round}/emu{number:03}", folder)
        for round in range(campaigns)
        for number in range(devices)
    ]
    before, children_before_s = _look(0, time.monotonic(), 0.0), _children_cpu_s()
    started_s, own_before_s = time.monotonic(), _own_cpu_s()
    failures: Counter[str] = Counter()
    outcomes = retried = golden = 0
    parts = []
    with _watching() as peaks:
        for outcome in LocalEngine(workspace, width=width).run(jobs, threading.Event()):
            outcomes += 1
            retried += outcome.attempts > 1
            golden += outcome.golden_s is not None
            if outcome.failure is not None:
                failures[f"{outcome.request.name}: {outcome.failure.kind}: {outcome.failure.what}"] += 1
            if outcomes % devices == 0:
                parts.append(_look(outcomes, started_s, own_before_s))
    after = _look(outcomes, started_s, own_before_s)
    settling_s = time.monotonic()
    while _threads() > 1 and time.monotonic() - settling_s < SETTLE_S:  # nobody joins the thread of a heartbeat
        time.sleep(0.01)
    return Controller(
        width=width,
        outcomes=outcomes,
        failures=tuple(failures),
        retried=retried,
        golden_checked=golden,
        seconds=round(after.seconds, 1),
        cpu_s=after.cpu_s,
        children_cpu_s=round(_children_cpu_s() - children_before_s, 1),
        rss_before_mb=before.rss_mb,
        rss_peak_mb=_status_mb("VmHWM"),
        files_before=before.files,
        files_peak=peaks["files"],
        files_after=_files(),
        threads_peak=peaks["threads"],
        threads_after=_threads(),
        parts=tuple(parts),
    )


def look_at_journal(folder: Path, names: Sequence[str], campaigns: int) -> Evidence:
    """What the journal holds of the fleet's jobs, against one campaign that was measured by itself."""
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
    assert set(held) <= set(names), "the journal holds others' devices"
    return Evidence(
        complete=complete,
        samples=sum(visit[-1] for campaign in found.values() for visit in campaign),
        expected_samples=len(names) * campaigns * sum(visit[-1] for visit in expected),
        differing=sum(campaign != expected for campaign in found.values()),
        doubled=sum(len(campaign) - len({visit[:3] for visit in campaign}) for campaign in found.values()),
        sessions=len(sessions),
        overlaps=sum(other[1] < one[2] for one, other in pairs),
        tokens_not_growing=sum(other[0] <= one[0] for one, other in pairs),
        gap_s=round(min(other[1] - one[2] for one, other in pairs), 3) if pairs else None,
        at_once=_most_at_once([span for taken in held.values() for _, *span in taken]),
        journal_mb=round(path.stat().st_size / 1e6, 1),
    )


def _job(device: str, name: str, folder: Path) -> ProfileRequest:
    return ProfileRequest(device=device, models=(str(folder / MODEL),), policy=POLICY, name=name)


def _beside(folder: Path) -> Path:
    """A workspace with the same devices, for the campaign that others are compared with."""
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
    """The most files and threads of this process while something runs."""
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


def _look(jobs: int, started_s: float, cpu_before_s: float) -> Fifth:
    cpu_s = round(_own_cpu_s() - cpu_before_s, 1)
    seconds = round(time.monotonic() - started_s, 1)
    return Fifth(jobs, seconds, cpu_s, _status_mb("VmRSS"), _files(), _threads())


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return round(int(line.split()[1]) / 1024, 1)


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> int:
    """Those of Python: numeric libraries keep some of their own, as many as there are cores."""
    return threading.active_count()


def main() -> None:
    """The controller: runs all jobs and writes what it saw of itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a workspace with devices.toml and the network")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--campaigns", type=int, required=True)
    parser.add_argument("--width", type=int, default=DEFAULT_WIDTH)
    given = parser.parse_args()
    told = control(given.folder, given.devices, given.campaigns, given.width)
    (given.folder / CONTROLLER).write_text(json.dumps(asdict(told)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
