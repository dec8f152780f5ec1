"""The engine of one host: a thread per board, each board's jobs one after the other."""

from __future__ import annotations

import queue
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.device.inventory import find_device, load_inventory
from harness.errors import HarnessError
from harness.fleet.execution import ConnectGate, Patience, run_job
from harness.fleet.job import Failure, Job, JobOutcome
from harness.fleet.store import now
from harness.measure.progress import Observer, ignore
from harness.workspace import Workspace

DEFAULT_WIDTH = 32
_FILES_PER_JOB = 24
_ENDING_S = 5.0


def _no_observer(_: Job) -> Observer:
    return ignore


@dataclass(frozen=True)
class LocalEngine:
    """Runs jobs in threads of this process, at most `width` at once; `observer` gives each job what follows it."""

    workspace: Workspace
    patience: Patience = field(default_factory=Patience)
    width: int = DEFAULT_WIDTH
    observer: Callable[[Job], Observer] = _no_observer

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[JobOutcome]:
        """Outcomes in the order in which jobs end.

        Jobs of one board keep their order. Whoever stops reading stops the jobs, after the visit they are at.
        """
        boards: dict[str, deque[Job]] = {}
        inventory = load_inventory(self.workspace.devices)
        for job in jobs:
            boards.setdefault(find_device(inventory, job.device).board, deque()).append(job)
        waiting = deque(boards.values())
        ended: queue.SimpleQueue[JobOutcome] = queue.SimpleQueue()
        gate, quit = ConnectGate(), _Either(stop)
        count = min(self.width, len(waiting))
        _allow_files(count)
        threads = [
            threading.Thread(target=self._serve, args=(waiting, ended, gate, quit), name=f"jobs {number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in jobs:
                yield ended.get()
        finally:
            quit.own.set()
            for thread in threads:
                thread.join(_ENDING_S)

    def _serve(
        self,
        waiting: deque[deque[Job]],
        ended: queue.SimpleQueue[JobOutcome],
        gate: ConnectGate,
        stop: threading.Event,
    ) -> None:
        while True:
            try:
                board = waiting.popleft()
            except IndexError:
                return
            for job in board:
                ended.put(self._run(job, gate, stop))

    def _run(self, job: Job, gate: ConnectGate, stop: threading.Event) -> JobOutcome:
        started = now()
        try:
            observe = self.observer(job)
            return run_job(job, self.workspace, stop=stop, gate=gate, patience=self.patience, observe=observe)
        except HarnessError as error:  # of the workspace itself: journal or store
            return JobOutcome(job, started, now(), 1, failure=Failure.of(error))
        except Exception as error:  # a bug on one device is that device's finding, and told in full
            what, why = "This is a bug in harness", f"{type(error).__name__}: {error}"
            bug = HarnessError(what, why=why, next_step="Run `harness --debug …` and report it")
            bug.__cause__ = error
            return JobOutcome(job, started, now(), 1, failure=Failure.of(bug))


class _Either(threading.Event):
    """Set when another event is, or when it is set itself."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self.own = threading.Event()
        self._other = other

    def is_set(self) -> bool:
        return self.own.is_set() or self._other.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or self._other.wait(timeout) or self.own.is_set()


def _allow_files(jobs: int) -> None:
    """Raises the soft limit on open files as far as the jobs need and the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + _FILES_PER_JOB * jobs
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
