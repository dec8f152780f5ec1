"""Work on many items in this process or in several forks of it, which share what it holds."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from harness.errors import HarnessError, UnsupportedNetwork

_T = TypeVar("_T")
_LOOK_EVERY_S = 0.5
_WAIT_S = 0.1
FEWER_CORES = "Build the table again with fewer cores, as with taskset"
"""What helps a fit whose process ended early."""

_work: Callable[[int], Any] | None = None
"""What a process of a pool does. It is inherited by the fork, because it holds networks and tables."""

_pauses: list[Callable[[], AbstractContextManager[None]]] = []
"""Each stops a thread of this process for a while; a fork has none of these threads."""
os.register_at_fork(after_in_child=_pauses.clear)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_fork() -> bool:
    """Return whether this process has no other thread, whose locks a fork could inherit, but those that can pause."""
    return threading.active_count() == 1 + len(_pauses)


@contextlib.contextmanager
def pausable(pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let `paused_threads` stop a thread by `pause`."""
    _pauses.append(pause)
    try:
        yield
    finally:
        _pauses.remove(pause)


@contextlib.contextmanager
def paused_threads() -> Iterator[None]:
    """Stop the threads that may be stopped, so that this process may fork."""
    with ExitStack() as stack:
        for pause in _pauses:
            stack.enter_context(pause())
        yield


def results(
    work: Callable[[int], _T], count: int, jobs: int, *, next_step: str, error: type[HarnessError] = UnsupportedNetwork
) -> Iterator[_T]:
    """Yield `work` of 0, 1, … in order, done by `jobs` processes; its errors are raised here.

    Raises `error`, with this next step, if a process ends early.
    """
    jobs = min(jobs, count)
    if jobs <= 1:
        yield from map(work, range(count))
        return
    import multiprocessing  # with what follows, a tenth of the start of a command
    from collections import deque
    from concurrent.futures import ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(work, os.getpid()))
    try:
        with paused_threads():  # all processes fork when the first work is submitted
            running = deque(pool.submit(_one, number) for number in range(count))
        while running:
            if wait([running[0]], _WAIT_S).done:  # Ctrl-C may have no effect before a wait ends
                yield running.popleft().result()
    except BrokenProcessPool as broken:
        why = "It may have taken more memory or processor time than a process may"
        raise error("One of several processes ended early", why=why, next_step=next_step) from broken
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[int], Any], parent: int) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent cancels what has not started
    # A thread would wait better, but a process with two threads cannot fork safely, as the work may.
    signal.signal(signal.SIGALRM, lambda _signal, _frame: _end_without(parent))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY_S, _LOOK_EVERY_S)


def _end_without(parent: int) -> None:
    """End this process if the parent has ended, which may have been killed."""
    if os.getppid() != parent:
        os._exit(1)


def _one(number: int) -> Any:
    if _work is None:
        raise RuntimeError("a process of the pool was not started by _start")
    return _work(number)
