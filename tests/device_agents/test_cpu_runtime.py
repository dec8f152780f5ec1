"""Runs of a pool count as preempted if its threads waited for cores; profiled and plain runs take turns."""

import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_agents.backends import cpu_runtime
from device_agents.backends.cpu_runtime import CoreWaits, CpuRuntime, LoadedProbe
from device_agents.messages import LoadReport, LoadRequest, Sample

RUN_NS = 2_000_000


@pytest.mark.skipif(not CoreWaits().total_ns(), reason="this system does not count the waits of threads")
def test_a_program_on_the_same_core_adds_waits() -> None:
    """The waits of this process grow while it shares its core with another one that works."""
    cores, waits = os.sched_getaffinity(0), CoreWaits()
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                before = waits.total_ns()
                while waits.total_ns() == before:  # the other program wants the core as soon as it has started
                    pass
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert before is not None


def test_a_system_without_statistics_has_no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not count waits, there is no figure."""
    monkeypatch.setattr("device_agents.backends.cpu_runtime._TASKS", os.path.join(os.sep, "no", "such", "folder"))
    assert CoreWaits().total_ns() is None


def test_a_kernel_that_does_not_count_has_no_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Zeros alone are no figure: a kernel writes them whose statistics are off."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("0 0 0\n")
    monkeypatch.setattr("device_agents.backends.cpu_runtime._TASKS", str(tmp_path))
    assert CoreWaits().total_ns() is None


@pytest.mark.parametrize(("waited_ns", "preempted"), [(0, False), (RUN_NS // 1000, False), (1000 * RUN_NS, True)])
def test_a_pool_is_preempted_by_long_waits_alone(
    monkeypatch: pytest.MonkeyPatch, waited_ns: int, preempted: bool
) -> None:
    """A run of several threads whose cores were taken for a thousandth of its time counts as undisturbed."""
    switches, waits = itertools.count(), itertools.count(0, waited_ns)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=next(switches)))
    monkeypatch.setattr(CoreWaits, "total_ns", lambda _: next(waits))
    runtime = CpuRuntime(threads=2)
    request = LoadRequest("probe", b"", [], [], 4)
    runtime._loaded["probe"] = LoadedProbe(request, None, lambda: time.sleep(RUN_NS / 1e9), LoadReport(0.0))
    assert (runtime.run("probe").preemptions > 0) == preempted


@pytest.mark.parametrize(
    ("wall_ns", "runs"), [(0, 8), (1, 8), (125_000, 8), (125_001, 7), (400_000, 2), (500_001, 1), (10**9, 1)]
)
def test_as_many_profiled_runs_follow_as_plain_ones(wall_ns: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn has one run of each kind; later turns have as many as take a millisecond, from one to eight."""
    calls: list[str] = []
    monkeypatch.setattr(cpu_runtime, "_PROFILING_S", 0.0)
    monkeypatch.setattr(CpuRuntime, "_once", lambda _, run: run() or Sample(wall_ns, None, None, 0))
    samples = CpuRuntime(2)._alternate(lambda: calls.append("plain"), lambda: calls.append("profiled"))
    turns = cpu_runtime._FEWEST_TURNS - 1
    assert calls == ["plain", "profiled", *(["plain"] * runs + ["profiled"] * runs) * turns]
    assert len(samples) == 1 + runs * turns
