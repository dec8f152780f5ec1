"""One fault, one campaign: the error, the time until the board is free, what is kept, and how the next session ends."""

import contextlib
import functools
import getpass
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nullbench import DEVICE, Bench
from sshd_server import Sshd

from device_agents.lease import Lease, LeaseHeld
from harness.device.session import Deadlines, open_session
from harness.errors import HarnessError, Interrupted
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.measure.progress import Progress

POLICY = RepeatPolicy(runs=4)
TTL_S = 2.0
SHORT = Deadlines(lease_ttl_s=TTL_S, start_s=20.0, reply_s=10.0, load_s=2.0, run_s=2.0, margin_s=0.5)
BUSY_MACHINE_S = 30.0
"""What a machine that does other things may add to a bound; a lease of the usual length lasts longer."""
TABLE = "HARNESS_FAULT_TABLE"
"""Names a file to which every fault that was met adds a line of JSON: the fields of `Row`."""

PROFILES = "FROM campaigns WHERE json_extract(settings, '$.purpose')='profile'"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """A line of the table of faults.

    `error` is the class of the error that the controller ended with, the signal that ended it, or "none";
    `seconds_to_free` is the time from the fault until another controller could take the lease, null where the campaign
    went on with it.
    """

    fault: str
    error: str
    exit_code: int
    seconds_to_free: float | None
    bound_s: float
    kept: int
    lost: int
    doubled: int
    resumed: bool

    def record(self) -> None:
        """Adds the line to the file that the environment names, if it does."""
        path = os.environ.get(TABLE)
        if path:
            with Path(path).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(vars(self)) + "\n")


class FreeAgain:
    """Another controller, which tries to take the lease from `start` on and releases it at once."""

    def __init__(self, resource: str) -> None:
        self.seconds: float | None = None
        self._resource = resource
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._try, daemon=True)

    def start(self) -> None:
        """Begins to try; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self, seconds: float) -> float | None:
        """Seconds until the lease was free, or None after `seconds`."""
        self._thread.join(seconds)
        self.give_up()
        return self.seconds

    def give_up(self) -> None:
        """End the attempts."""
        self._given_up.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _try(self) -> None:
        started_s = time.monotonic()
        while not self._given_up.wait(0.02):
            lease = Lease(self._resource)
            with contextlib.suppress(LeaseHeld):
                lease.acquire("the next controller")
                self.seconds = time.monotonic() - started_s
                lease.release()
                return


@dataclass
class Rig:
    """A workspace whose device `bench` can fail, and the result of the same campaign without faults."""

    bench: Bench
    undisturbed: Mapping[str, Any]
    monkeypatch: pytest.MonkeyPatch
    resource: str = DEVICE
    rounds: int = field(default=0, init=False)

    def run_session(self, deadlines: Deadlines | None = None, **options: Any) -> ProfileResult:
        """One session of the campaign, with the usual deadlines by default."""
        with self.monkeypatch.context() as patch:
            if deadlines is not None:
                patch.setattr("harness.device.session.Deadlines", functools.partial(_replaced, deadlines))
            return self.bench.profile(connect=open_session, policy=POLICY, **options)

    def put_behind(self, sshd: Sshd, port: int | None = None, **settings: str | float) -> None:
        """Puts the device behind SSH at this port; the campaign is kept."""
        # The same Python there as here: another one is another device.
        known = {
            "user": getpass.getuser(),
            "python": sys.executable,
            "identity": str(sshd.identity),
            "known_hosts": str(sshd.known_hosts),
        }
        values = {**known, "host": sshd.address, "port": port or sshd.port, "transport": "ssh", **settings}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        options = "".join(f"{key} = {value!r}\n" for key, value in vars(self.bench.truth).items())
        self.bench.workspace.devices.write_text(
            f'[devices.{DEVICE}]\nbackend = "null"\nexclusive = true\n{lines}[devices.{DEVICE}.options]\n{options}'
        )

    def begin(self, rounds: int = 3) -> None:
        """A first session, stopped after `rounds` rounds."""
        stop = threading.Event()
        with pytest.raises(Interrupted):
            self.run_session(observe=self._after(rounds, stop.set), stop=stop)

    def meet(
        self,
        fault: str,
        strike: Callable[[], object],
        error: type[HarnessError] | tuple[type[HarnessError], ...] | None,
        *,
        after_rounds: int = 3,
        mend: Callable[[], object] = lambda: None,
        bound_s: float = TTL_S,
        deadlines: Deadlines | None = None,
    ) -> HarnessError | None:
        """A session that the fault strikes after some rounds, or before it begins with 0; then a whole one.

        The session must end with an error of exactly this class, or of one of these, or without one; by default its
        deadlines are then the usual ones, which a busy machine keeps.
        """
        free = FreeAgain(self.resource)

        def struck() -> None:
            strike()
            free.start()

        if after_rounds == 0:
            strike()
        caught: HarnessError | None = None
        try:
            self.run_session(deadlines or (SHORT if error else None), observe=self._after(after_rounds, struck))
        except HarnessError as raised:
            caught = raised
        else:
            free.give_up()
        assert type(caught) in (error if isinstance(error, tuple) else (error or type(None),)), repr(caught)
        seconds = None
        if caught is not None:
            free.start()
            seconds = free.wait(bound_s + 30.0)
            assert seconds is not None and seconds <= bound_s + BUSY_MACHINE_S, seconds
        self.finish(fault, caught, seconds, bound_s, mend)
        return caught

    def finish(
        self,
        fault: str,
        caught: HarnessError | str | None,
        seconds: float | None,
        bound_s: float = TTL_S,
        mend: Callable[[], object] = lambda: None,
    ) -> None:
        """Repeats the command: it must end like an undisturbed campaign and keep all samples.

        `caught` is how the disturbed session ended: an error, or the name of a signal.
        """
        mend()
        kept = self.samples()
        if not self.complete():
            self.run_session()
        after = self.samples()
        lost = sum((kept - after).values())
        doubled = sum(count - 1 for count in after.values())
        resumed = self.outcome() == self.undisturbed
        error = caught if isinstance(caught, str) else type(caught).__name__ if caught else "none"
        exit_code = caught.exit_code if isinstance(caught, HarnessError) else 0
        Row(fault, error, exit_code, seconds, bound_s, kept.total(), lost, doubled, resumed).record()
        assert (lost, doubled) == (0, 0)
        assert self.outcome() == self.undisturbed

    def outcome(self) -> dict[str, Any]:
        """Plan, completeness and visits of the only campaign; golden probes are campaigns of another purpose."""
        rows = self.query(f"SELECT id, plan, complete {PROFILES}")
        return {"campaigns": [row[1:] for row in rows], "visits": [self.bench.visits(row[0]) for row in rows]}

    def complete(self) -> bool:
        """Whether the campaign is there and complete."""
        return self.has_journal() and self.query(f"SELECT complete {PROFILES}") == [(1,)]

    def has_journal(self) -> bool:
        """Whether the journal has tables; a controller may be killed before it commits them."""
        return self.bench.workspace.journal.exists() and bool(self.query("SELECT name FROM sqlite_master"))

    def samples(self) -> Counter[tuple[Any, ...]]:
        """Every sample with its place and values, straight from the file."""
        if not self.has_journal():
            return Counter()
        rows = self.query(
            "SELECT campaign, batch, round, position, probe, ordinal, wall_ns, cpu_ns, device_ns, preemptions"
            " FROM series JOIN samples ON samples.series=series.id"
        )
        return Counter(rows)

    def query(self, sql: str) -> Rows:
        """Rows of the journal."""
        with contextlib.closing(sqlite3.connect(self.bench.workspace.journal, timeout=30)) as database:
            return database.execute(sql).fetchall()

    def _after(self, rounds: int, act: Callable[[], object]) -> Callable[[Progress], None]:
        self.rounds = 0

        def observe(progress: Progress) -> None:
            self.rounds += progress.stage == "measuring"
            if self.rounds == rounds and progress.stage == "measuring":
                act()

        return observe


def _replaced(deadlines: Deadlines) -> Deadlines:
    return deadlines


def send_signal(processes: Callable[[Path], list[int]], runtime_folder: Path, number: int) -> None:
    """Sends a signal to the only one of the agents, or of the workers."""
    (pid,) = processes(runtime_folder)
    os.kill(pid, number)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of so many bytes at `folder`; skips the test where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here ({mounted.stderr.strip()}): needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
