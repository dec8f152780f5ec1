"""Faults of the device: its worker, its agent, its version, its runtime, its reboot, its clocks."""

import contextlib
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_rig import SHORT, TTL_S, Rig, Row, send_signal
from processes import agents, is_stopped, sabotaged, wait_until, workers

from harness.device.inventory import load_inventory
from harness.device.session import AgentSession, LoadRequest, Visit, open_session, start_agent
from harness.errors import BackendError, DeviceBusy, LinkLost, ProtocolError, WorkerDied
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.summary import Measurement, summarise

GRACE_S = 5.0
"""How long after its lease a holder has to end itself, before the next one ends it."""


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Plants faults in the local device; without an argument removes them."""

    def bend(**faults: object) -> None:
        if faults:
            for name, value in sabotaged(**faults).items():
                monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv("PYTHONPATH")

    return bend


@pytest.mark.parametrize(
    ("fault", "number", "ending"),
    [
        ("worker killed", signal.SIGKILL, "SIGKILL"),
        ("worker segfaults", signal.SIGSEGV, "SIGSEGV"),
        ("worker exits early with 0", signal.SIGUSR1, "exit code 0"),
    ],
)
def test_a_worker_that_ends(
    rig: Rig, runtime_folder: Path, sabotage: Callable[..., None], fault: str, number: int, ending: str
) -> None:
    """However the worker ends, even with exit code 0, it is reported as died, with its ending."""
    sabotage(leaves_on_signal=True)

    def strike() -> None:
        send_signal(workers, runtime_folder, number)

    error = rig.meet(fault, strike, WorkerDied, mend=sabotage)
    assert ending in str(error)


def test_a_worker_that_is_stopped(rig: Rig, runtime_folder: Path) -> None:
    """A worker that sends nothing is killed at its deadline, even if it is stopped."""
    error = rig.meet(
        "worker stopped (SIGSTOP)",
        lambda: send_signal(workers, runtime_folder, signal.SIGSTOP),
        WorkerDied,
        bound_s=SHORT.load_s,
    )
    assert "sent no frame" in str(error)
    assert not workers(runtime_folder)


def test_a_worker_that_runs_out_of_memory(rig: Rig, runtime_folder: Path, sabotage: Callable[..., None]) -> None:
    """A worker without memory ends and reports it; the next one measures the same probe."""
    sabotage(hoards_bytes=4 << 20)

    def strike() -> None:
        (pid,) = workers(runtime_folder)
        used_bytes = int((Path("/proc") / str(pid) / "statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used_bytes, used_bytes))

    error = rig.meet("worker out of memory", strike, WorkerDied, mend=sabotage)
    assert "out of memory" in str(error)
    assert rig.query("SELECT count(*) FROM probes WHERE refused IS NOT NULL") == [(0,)]


def test_a_runtime_that_reports_no_memory(rig: Rig, sabotage: Callable[..., None]) -> None:
    """A probe that lacked memory once is not refused for good."""
    rig.begin()
    error = rig.meet(
        "runtime out of memory",
        lambda: sabotage(refuses="Gemm", reason="Exception during initialization: std::bad_alloc"),
        WorkerDied,
        after_rounds=0,
        mend=sabotage,
    )
    assert "bad_alloc" in str(error)
    assert rig.query("SELECT count(*) FROM probes WHERE refused IS NOT NULL") == [(0,)]


def test_a_copy_without_memory_is_refused_and_nothing_else_is(rig: Rig, sabotage: Callable[..., None]) -> None:
    """Without memory a copy of a loaded probe is refused; another probe gets the empty memory of a new worker."""
    sabotage(refuses="model", reason="std::bad_alloc", after_loads=1)
    device = load_inventory(rig.bench.workspace.devices)["bench"]
    with AgentSession(start_agent(device), device) as session:
        session.greet()
        session.acquire("the test")
        session.put(LoadRequest("p", b"model", (), (), 4))
        with pytest.raises(BackendError, match="another copy"):
            session.put(LoadRequest("p#1", b"model", (), (), 4))
        assert [len(series) for series, _ in session.run([Visit("p", 0, 1)])] == [1]
        with pytest.raises(WorkerDied, match="bad_alloc"):
            session.put(LoadRequest("q", b"another model", (), (), 4))


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"refuses": "full", "reason": "std::bad_alloc"}, "out of memory while loading full"),
        ({"loaders": 1}, "out of memory or threads"),
    ],
)
def test_a_worker_without_memory_waits_for_no_thread(
    rig: Rig, runtime_folder: Path, sabotage: Callable[..., None], lack: dict[str, Any], message: str
) -> None:
    """A worker that lacks memory or threads ends by itself, also while an earlier load hangs in another thread."""
    sabotage(hangs="stuck", **lack)
    device = load_inventory(rig.bench.workspace.devices)["bench"]
    with AgentSession(start_agent(device), device, replace(SHORT, load_s=20.0)) as session:
        session.greet()
        session.acquire("the test")
        requests = [LoadRequest(name, name.encode(), (), (), 4) for name in ("stuck", "full")]
        send_signal(workers, runtime_folder, signal.SIGSTOP)
        wait_until(lambda: all(map(is_stopped, workers(runtime_folder))), "the stop of the worker")
        assert all(map(session.put_ahead, requests))
        for _ in range(3):  # in the turns between its answers, the agent passes both on: the worker takes them together
            session._link.ask("status", 30.0, resource=device.resource)
        send_signal(workers, runtime_folder, signal.SIGCONT)
        with pytest.raises(WorkerDied, match=f"the worker ended.*{message}") as caught:
            session.put(requests[0])
    assert "Free memory on bench" in caught.value.next_step


def test_an_agent_that_is_killed(rig: Rig, runtime_folder: Path) -> None:
    """The kernel frees the lock of a killed agent, and its worker ends with it."""
    rig.meet("agent killed", lambda: send_signal(agents, runtime_folder, signal.SIGKILL), LinkLost)
    wait_until(lambda: not workers(runtime_folder), "the worker's end")


def test_a_local_agent_that_is_stopped(rig: Rig, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of this machine that does not answer is killed by its controller."""
    monkeypatch.setattr("harness.device.local.CLOSE_S", 0.3)
    strike = lambda: send_signal(agents, runtime_folder, signal.SIGSTOP)  # noqa: E731
    rig.meet("agent stopped (SIGSTOP)", strike, LinkLost, bound_s=0.75 * TTL_S + SHORT.margin_s + 0.3)
    assert not agents(runtime_folder)


@pytest.mark.long
def test_a_remote_agent_that_is_stopped(remote: Rig, runtime_folder: Path) -> None:
    """An agent stopped beyond its lease is killed by the next controller that wants the board."""
    strike = lambda: send_signal(agents, runtime_folder, signal.SIGSTOP)  # noqa: E731
    remote.meet("agent behind SSH stopped (SIGSTOP)", strike, LinkLost, bound_s=TTL_S * 9 / 8 + GRACE_S)
    wait_until(lambda: not workers(runtime_folder), "the worker's end")


def test_a_stopped_agent_keeps_the_board_while_its_lease_lasts(rig: Rig, runtime_folder: Path) -> None:
    """A slow holder keeps the device: no one is evicted before the lease has run out."""
    device = load_inventory(rig.bench.workspace.devices)["bench"]
    with AgentSession(start_agent(device), device) as session:
        session.greet()
        session.acquire("a patient controller")
        send_signal(agents, runtime_folder, signal.SIGSTOP)
        with AgentSession(start_agent(device), device) as other, pytest.raises(DeviceBusy, match="patient"):
            other.greet()
        send_signal(agents, runtime_folder, signal.SIGCONT)
        assert session.status()["holder"] == "a patient controller"


def test_another_version_of_the_agent(rig: Rig, sabotage: Callable[..., None]) -> None:
    """An agent that speaks another major version is refused with the command that installs the right one."""
    rig.begin()
    error = rig.meet("agent version mismatch", lambda: sabotage(major=1), ProtocolError, after_rounds=0, mend=sabotage)
    assert error is not None and "harness agent install" in error.next_step


def test_an_operator_that_the_device_does_not_know(rig: Rig, sabotage: Callable[..., None]) -> None:
    """Probes that the runtime refuses are recorded with its reason; all others are measured as ever, once."""
    sabotage(refuses="Gemm", reason="no kernel for Gemm")
    result = rig.run_session()
    refused = {probe for (probe,) in rig.query("SELECT probe FROM probes WHERE refused LIKE '%no kernel for Gemm%'")}
    assert len(refused) == result.refused > 0 and "no kernel for Gemm" in result.refusal
    kept = [row for row in rig.undisturbed["visits"][0] if row[3] not in refused]
    assert rig.outcome() == {**rig.undisturbed, "visits": [kept]}
    Row("unknown operator", "none", 0, None, TTL_S, result.samples, 0, 0, True).record()


def test_a_reboot_in_the_middle(rig: Rig, runtime_folder: Path, sabotage: Callable[..., None]) -> None:
    """A board that comes back without its lock files, and with its clock years behind, still counts tokens up."""
    lock = runtime_folder / "bench.lease"

    def reboot() -> None:
        send_signal(agents, runtime_folder, signal.SIGKILL)
        sabotage(wall_clock_s=-3e8)

    rig.meet("reboot in the middle, clock reset", reboot, LinkLost, mend=lock.unlink)
    tokens = [token for (token,) in rig.query("SELECT DISTINCT token FROM series ORDER BY id")]
    assert len(tokens) == 2 and tokens == sorted(tokens)


def test_a_wall_clock_that_jumps(rig: Rig, sabotage: Callable[..., None]) -> None:
    """Leases and deadlines do not depend on the wall clock of either side."""
    sabotage(wall_clock_jumps_s=1e6)
    jump = random.Random(1)
    real = time.time
    with rig.monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + jump.uniform(-1e6, 1e6))
        rig.meet("wall clock jumps by days", lambda: None, None)


@pytest.mark.parametrize("kind", ["throttling", "frequency step", "bimodal"])
def test_a_device_whose_latency_is_not_one(rig: Rig, sabotage: Callable[..., None], kind: str) -> None:
    """Such a campaign ends without error and reports drift of the reference probe or wider intervals."""
    policy = RepeatPolicy(min_rounds=8, max_rounds=8)
    quiet = rig.bench.profile(connect=open_session, policy=policy)
    sabotage(distorts=kind)
    bent = rig.bench.profile(connect=open_session, policy=policy, fresh=True)
    assert quiet.drift < 0.05 and bent.campaign != quiet.campaign
    widened = _halfwidth(rig, bent.campaign) / _halfwidth(rig, quiet.campaign)
    assert widened > 2
    assert bent.unsettled > quiet.unsettled if kind == "bimodal" else bent.drift > 0.1
    Row(kind, "none", 0, None, TTL_S, bent.samples, 0, 0, True).record()


def test_background_load(rig: Rig) -> None:
    """A busy neighbour on every core shows in preempted runs, which the journal keeps, and not in their CPU time."""
    policy = RepeatPolicy(runs=4)
    with contextlib.ExitStack() as load:
        for _ in range(2 * (os.cpu_count() or 1)):
            spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            load.callback(spinner.wait)
            load.callback(spinner.kill)
        preempted: list[tuple[int, int]] = []
        for _ in range(20):  # a run is short: now and then none of a campaign meets the end of a time slice
            if not preempted:
                busy = rig.bench.profile(connect=open_session, device="cpu01", policy=policy, fresh=True)
                preempted = rig.query("SELECT wall_ns, cpu_ns FROM samples WHERE preemptions>0")
    waited_ns = sum(wall_ns - cpu_ns for wall_ns, cpu_ns in preempted)
    assert preempted and waited_ns > 0
    Row("background load", "none", 0, None, TTL_S, busy.samples, 0, 0, True).record()


def _measured(rig: Rig, campaign: int) -> dict[str, Measurement]:
    with Journal(rig.bench.workspace.journal) as journal:
        clock = journal.campaign(campaign).clock
        return {probe: summarise(taken, clock) for probe, taken in journal.samples(campaign).items()}


def _halfwidth(rig: Rig, campaign: int) -> float:
    """Relative halfwidth of the interval, as the median over all probes."""
    return statistics.median(one.halfwidth_s / one.latency_s for one in _measured(rig, campaign).values())
