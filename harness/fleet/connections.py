"""Sessions that are opened in turn, and waits that a stop ends."""

import contextlib
import random
import threading
from collections.abc import Iterator

from harness.device.inventory import Device, Ssh
from harness.device.session import AgentSession, open_session
from harness.errors import Interrupted

_SLICE_S = 0.2
_OPENING = threading.BoundedSemaphore(16)
"""Sessions that this process opens at the same time; `ssh_client` lets fewer connect."""


def open_in_turn(device: Device, stop: threading.Event) -> AgentSession:
    """Open a session; raises a DeviceError, and Interrupted if a stop is requested before its turn comes."""
    if isinstance(device.transport, Ssh):
        pause(random.uniform(0.0, 0.1), stop)  # noqa: S311 - jitter, no secret
    with turn(_OPENING, stop):
        return open_session(device)


@contextlib.contextmanager
def turn(semaphore: threading.Semaphore, stop: threading.Event) -> Iterator[None]:
    """Wait for a semaphore and hold it; raises Interrupted if a stop is requested before."""
    while not semaphore.acquire(timeout=_SLICE_S):
        pause(0.0, stop)
    try:
        yield
    finally:
        semaphore.release()


def pause(seconds: float, stop: threading.Event) -> None:
    """Sleep; raises Interrupted if a stop is requested."""
    if stop.wait(seconds):
        raise Interrupted("Stopped on request", why="All samples so far are in the journal")
