"""The engine of one host: a thread per board, which runs the board's requests in order."""

from __future__ import annotations

import contextlib
import queue
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.device.inventory import find_device
from harness.errors import HarnessError, bug
from harness.fleet.execution import WaitPolicy, run_request
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.shared_reading import SharedReading
from harness.fleet.store import now
from harness.measure.progress import FAILED, Observer, ignore
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

DEFAULT_WIDTH = 32
_FILES_PER_REQUEST = 24
_ENDING_S = 5.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class LocalEngine:
    """Runs requests in threads of this process, at most `width` at a time; `observer` returns the observer of each."""

    workspace: Workspace
    wait: WaitPolicy = field(default_factory=WaitPolicy)
    width: int = DEFAULT_WIDTH
    observer: Callable[[ProfileRequest], Observer] = lambda _: ignore

    def run(self, requests: Sequence[ProfileRequest], stop: threading.Event) -> Iterator[ProfileOutcome]:
        """Yield the outcome of each request as it ends.

        Requests for one board keep their order; a device that does not finish one in time gets no other. A list of
        networks that several requests name is read once. Closing the iterator stops all requests after their current
        visit.
        """
        boards: dict[str, deque[ProfileRequest]] = {}
        reading = SharedReading()
        inventory = reading.inventory(self.workspace.devices)
        for request in requests:
            boards.setdefault(find_device(inventory, request.device).board, deque()).append(request)
        if len(boards) > 1:  # beside their threads, each network would be read in a new interpreter
            reading.ahead(requests, stop)
        waiting = deque(boards.values())
        ended: queue.SimpleQueue[ProfileOutcome] = queue.SimpleQueue()
        quit = _Either(stop)
        count = min(self.width, len(waiting))
        _allow_files(count)

        def serve() -> None:
            with contextlib.suppress(IndexError):  # no board is left
                while True:
                    given_up: dict[str, ProfileOutcome] = {}
                    for request in waiting.popleft():
                        before = given_up.get(request.device)
                        outcome = before.not_started(request) if before else self._run(request, quit, reading)
                        if outcome.gives_up_device:
                            given_up[request.device] = outcome
                        ended.put(outcome)

        threads = [threading.Thread(target=serve, name=f"requests {number}", daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            for _ in requests:
                yield _next(ended)
        finally:
            quit.own.set()
            for thread in threads:
                thread.join(_ENDING_S)

    def _run(self, request: ProfileRequest, stop: threading.Event, reading: SharedReading) -> ProfileOutcome:
        started, observe = now(), self.observer(request)
        try:
            found = run_request(request, self.workspace, stop=stop, wait=self.wait, observe=observe, reading=reading)
        except HarnessError as error:  # of the workspace itself: journal or store
            found = ProfileOutcome.failed(request, error, started, 1)
        except Exception as error:  # a bug met on one device must not end the requests for the others
            found = ProfileOutcome.failed(request, bug(error), started, 1)
        if found.failure is not None:
            observe(FAILED)
        return found


def _next(ended: queue.SimpleQueue[ProfileOutcome]) -> ProfileOutcome:
    """Return the next outcome. Each wait is short: between two of them the main thread handles signals."""
    while True:
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOK_EVERY_S)


class _Either(threading.Event):
    """An event that is set when another one is, or when its own is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self.own = threading.Event()
        self._other = other

    def is_set(self) -> bool:
        return self.own.is_set() or self._other.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or self._other.wait(timeout) or self.own.is_set()


def _allow_files(requests: int) -> None:
    """Raise the soft limit on open files to what the requests need, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + _FILES_PER_REQUEST * requests
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
