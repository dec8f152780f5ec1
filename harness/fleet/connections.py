"""Limits on how many connections are set up at the same time."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

from harness.device.inventory import Device, Ssh
from harness.errors import Interrupted

_SLICE_S = 0.2


class ConnectGate:
    """Limits the connections being set up at the same time, in total and per host: sshd drops bursts."""

    def __init__(self, total: int = 16, per_host: int = 4) -> None:
        self._total = threading.BoundedSemaphore(total)
        self._per_host = per_host
        self._hosts: dict[str, threading.BoundedSemaphore] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def connecting(self, device: Device, stop: threading.Event) -> Iterator[None]:
        """Wait for a turn; raises Interrupted if a stop is requested before it comes."""
        with contextlib.ExitStack() as turns:
            if isinstance(device.transport, Ssh):
                address = f"{device.transport.host}:{device.transport.port}"
                with self._guard:
                    host = self._hosts.setdefault(address, threading.BoundedSemaphore(self._per_host))
                turns.enter_context(turn(host, stop))
                pause(random.uniform(0.0, 0.1), stop)  # noqa: S311 - jitter, no secret
            turns.enter_context(turn(self._total, stop))
            yield


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
