"""Turns of a runtime's plain and profiled runs: as many of each, and short ones several times in a turn."""

import pytest

from device_agents.backends import cpu_runtime
from device_agents.backends.cpu_runtime import CpuRuntime
from device_agents.messages import Sample


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
