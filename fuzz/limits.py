"""The limits of the isolated reader, put on this process while it reads one input."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from harness.network.reading.limits import READING


class TooLong(BaseException):
    """Reading took more processor time than the isolated reader has; no `except Exception` catches it."""


@contextlib.contextmanager
def limited(size_bytes: int) -> Iterator[None]:
    """Raise MemoryError or TooLong where the isolated process, which reads files of this size, would be ended."""
    limits = READING.limits(size_bytes)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, _raise)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (held + limits.memory_bytes, hard))
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise TooLong
