"""Work on the machines of a sweep, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from harness.errors import UnsupportedNetwork

_T = TypeVar("_T")

_work: Callable[[int], Any] | None = None
"""What a process of a pool does. It is inherited by the fork, because it holds the network."""


def results(work: Callable[[int], _T], count: int, jobs: int) -> Iterator[_T]:
    """Yield `work` of 0, 1, … in order, done by `jobs` processes; its errors are raised here."""
    jobs = min(jobs, count)
    if jobs <= 1:
        yield from map(work, range(count))
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(work, os.getpid()))
    try:
        yield from pool.map(_one, range(count))
    except BrokenProcessPool as error:
        why = "It may have taken more memory or processor time than a process may"
        step = "Use --jobs 1, which names the limit"
        raise UnsupportedNetwork("A process of the sweep ended early", why=why, next_step=step) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[int], Any], parent: int) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent cancels what has not started
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process soon after the parent, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _one(number: int) -> Any:
    if _work is None:
        raise RuntimeError("a process of the pool was not started by _start")
    return _work(number)
