"""Faults of the controller: killed at every step of the journal, stopped beyond its lease, two at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_rig import BUSY_MACHINE_S, POLICY, TTL_S, FreeAgain, Rig, Row
from sshd_server import REPOSITORY

from harness.errors import DeviceBusy, JournalError, LeaseLost

HERE = Path(__file__).parent
COMMITS = 15


@dataclass
class Controllers:
    """Controllers of the rig's campaign in processes of their own, with a fault at a step of the journal."""

    process: subprocess.Popen[str]
    rig: Rig
    runtime_folder: Path

    def start(
        self,
        *arguments: str,
        at: int = 0,
        number: int = signal.SIGKILL,
        moment: str = "before",
        lease_ttl_s: float = 0.0,
        file_bytes: int = 0,
    ) -> int:
        """Starts a campaign without golden probes, or a command; returns its process id. `at` 0 plants no fault."""
        return self._ask(
            arguments=arguments,
            folder=str(self.rig.bench.root),
            runs=POLICY.runs,
            output=str(self.output),
            at=at,
            environment={"HARNESS_RUNTIME_FOLDER": str(self.runtime_folder)},
            signal=int(number),
            moment=moment,
            lease_ttl_s=lease_ttl_s,
            file_bytes=file_bytes,
        )

    @property
    def output(self) -> Path:
        """The output of the last controller."""
        return self.rig.bench.root / "printed.txt"

    def wait(self, pid: int) -> int:
        """Waits until the process has ended, with its exit code or the negative signal, or stopped, with 0x1000."""
        status = self._ask(wait=pid)
        return 0x1000 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)

    def _ask(self, **order: object) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def fork_server() -> Iterator[subprocess.Popen[str]]:
    """The process that forks the controllers."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "fault_controller.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(300)


@pytest.fixture
def controllers(fork_server: subprocess.Popen[str], rig: Rig, runtime_folder: Path) -> Controllers:
    """Controllers of the rig's campaign."""
    return Controllers(fork_server, rig, runtime_folder)


@pytest.fixture
def command(rig: Rig) -> tuple[str, ...]:
    """The campaign as a command; its journal holds those of the golden probe, too."""
    return ("profile", "--device", "bench", "--runs", str(POLICY.runs), str(rig.bench.model))


def _freed(rig: Rig) -> float:
    """Seconds until another controller could take the lease, from now."""
    free = FreeAgain(rig.resource)
    free.start()
    seconds = free.wait(TTL_S + 30.0)
    assert seconds is not None and seconds <= TTL_S + BUSY_MACHINE_S
    return seconds


def _done(rig: Rig) -> tuple[int, ...]:
    """How much of the campaign is in the journal: tables, campaigns, samples, marked rounds, the end."""
    if not rig.has_journal():
        return (0,)
    campaigns, rounds = rig.query("SELECT count(*) FROM campaigns"), rig.query("SELECT sum(finished) FROM rounds")
    return 1, campaigns[0][0], rig.samples().total() + (rounds[0][0] or 0), rig.complete()


def test_a_controller_killed_at_every_step_of_the_journal(rig: Rig, controllers: Controllers) -> None:
    """Killed in every round between samples and their round's mark, the campaign still becomes the same one.

    In turn after the samples' commit, before that of the mark, and after it; also while the campaign is recorded,
    and before and after it is marked complete. No session does more than a request, and each leaves something behind.
    """
    kept, done, killed, slowest_s = rig.samples(), _done(rig), 0, 0.0
    steps = ((1, "after"), (2, "before"), (2, "after"))
    while not rig.complete():
        at, moment = steps[killed % len(steps)]
        status = controllers.wait(controllers.start(at=at, moment=moment))
        assert status in (-signal.SIGKILL, 0), controllers.output.read_text()
        killed += status != 0
        slowest_s = max(slowest_s, _freed(rig))
        after = rig.samples()
        assert not kept - after and max(after.values(), default=1) == 1
        kept, before, done = after, done, _done(rig)
        assert done > before
    assert killed >= 10
    assert rig.outcome() == rig.undisturbed
    Row(
        f"controller killed (-9) in {killed} sessions in a row",
        "SIGKILL",
        0,
        slowest_s,
        TTL_S,
        kept.total(),
        0,
        0,
        True,
    ).record()


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(1, COMMITS))
def test_a_controller_killed_at_one_step(rig: Rig, controllers: Controllers, at: int, moment: str) -> None:
    """Killed once, at any commit of the whole campaign, the next session ends with the same campaign."""
    assert controllers.wait(controllers.start(at=at, moment=moment)) == -signal.SIGKILL
    rig.finish(f"controller killed (-9) {moment} commit {at}", "SIGKILL", _freed(rig))


def test_the_campaign_has_no_further_commit(rig: Rig, controllers: Controllers) -> None:
    """A fault at the step behind the last commit that the other tests name never happens."""
    assert controllers.wait(controllers.start(at=COMMITS, moment="before")) == 0, controllers.output.read_text()
    assert rig.outcome() == rig.undisturbed


@pytest.mark.parametrize(("at", "where"), [pytest.param(8, "golden probe", marks=pytest.mark.long), (30, "campaign")])
def test_a_command_that_is_killed(
    rig: Rig, controllers: Controllers, command: tuple[str, ...], at: int, where: str
) -> None:
    """`harness profile` killed in the middle and given again ends with the same campaign, golden probe and all."""
    assert controllers.wait(controllers.start(*command, at=at, moment="after")) == -signal.SIGKILL
    seconds, kept = _freed(rig), rig.samples()
    assert controllers.wait(controllers.start(*command)) == 0, controllers.output.read_text()
    assert not kept - rig.samples()
    rig.finish(f"`harness profile` killed (-9) in its {where}", "SIGKILL", seconds)


@pytest.mark.parametrize(
    ("at", "next_write"),
    [
        pytest.param(3, "samples", marks=pytest.mark.long),
        (6, "the mark of a round"),
        pytest.param(COMMITS - 2, "the end of the campaign", marks=pytest.mark.long),
    ],
)
def test_a_stale_controller_that_returns(rig: Rig, controllers: Controllers, at: int, next_write: str) -> None:
    """Stopped beyond its lease and woken when another has measured, a controller's next write is refused.

    This holds for each kind of write; the rows of the journal stay exactly as the other one left them.
    """
    stale = controllers.start(at=at, number=signal.SIGSTOP, moment="after", lease_ttl_s=TTL_S)
    try:
        assert controllers.wait(stale) == 0x1000
        seconds = _freed(rig)
        rig.run_session()
        done = rig.outcome(), rig.samples(), rig.query("SELECT * FROM rounds"), rig.query("SELECT * FROM campaigns")
    finally:
        os.kill(stale, signal.SIGCONT)
    code = controllers.wait(stale)
    printed = controllers.output.read_text()
    assert (code, printed.split(":")[0]) == (LeaseLost.exit_code, "LeaseLost"), printed
    assert done == (
        rig.outcome(),
        rig.samples(),
        rig.query("SELECT * FROM rounds"),
        rig.query("SELECT * FROM campaigns"),
    )
    tokens = [token for (token,) in rig.query("SELECT DISTINCT token FROM series ORDER BY id")]
    assert tokens == sorted(tokens)
    rig.finish(f"stale controller returns to write {next_write}", LeaseLost(printed), seconds)


def test_two_controllers_for_one_device(rig: Rig, controllers: Controllers) -> None:
    """A second controller gets the name of the first one and disturbs nothing."""
    first = controllers.start(at=9, number=signal.SIGSTOP, moment="after")
    try:
        assert controllers.wait(first) == 0x1000
        with pytest.raises(DeviceBusy, match=f"pid {first}"):
            rig.run_session()
    finally:
        os.kill(first, signal.SIGCONT)
    assert controllers.wait(first) == 0, controllers.output.read_text()
    rig.finish("two controllers for one device", DeviceBusy("the second"), None)


def test_a_quota_on_the_host(rig: Rig, controllers: Controllers) -> None:
    """A user who may write no larger files keeps what was committed, and the board is free."""
    assert controllers.wait(controllers.start(file_bytes=150_000)) == JournalError.exit_code
    printed = controllers.output.read_text()
    assert printed.startswith("JournalError"), printed
    seconds = _freed(rig)
    assert rig.samples()
    rig.finish("quota on the host", JournalError(printed), seconds)
