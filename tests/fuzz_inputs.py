"""Inputs of fuzzing, read within bounds of time and memory."""

import contextlib
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fuzz.outcome import Outcome
from fuzz.target import HANG_S, memory_folder, target

MEMORY_BYTES = 2 << 30
"""Memory that a reader of inputs of some kilobytes may use beyond that of the process."""


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Limit memory: a reader that needs more raises MemoryError, which is not a documented error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def read_in_bounds(name: str, data: bytes) -> Outcome:
    """Return what became of an input; fail if its reader needed too much time or memory."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder, bounded_memory():
        started_s = time.process_time()
        outcome = target(name).read(data, Path(folder))
        assert time.process_time() - started_s < HANG_S
    return outcome


def is_accepted(name: str, data: bytes) -> bool:
    """Return whether the reader accepted an input, within bounds."""
    return read_in_bounds(name, data).is_accepted
