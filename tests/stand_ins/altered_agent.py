"""A real agent process whose frames a test alters, drops or replaces before the host reads them."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from device_agents import wire
from harness.device.local import LocalConnection, start_here

Alter = Callable[[wire.Frame], Iterable[wire.Frame]]
"""Returns the frames that the host gets instead of one of the agent; raises OSError to break the connection."""


class AlteredConnection:
    """A connection to a new local agent; every frame of it passes through `alter` and is numbered anew."""

    def __init__(self, alter: Alter) -> None:
        self.agent: LocalConnection = start_here()
        self.received_bytes = 0
        self._alter = alter
        self._decoder = wire.Decoder()
        self._ready = bytearray()
        self._seq = 0
        self._broken: OSError | None = None

    def send(self, data: bytes, stall_s: float = 30.0) -> None:
        """Pass bytes to the agent."""
        self.agent.send(data, stall_s)

    def recv(self, timeout_s: float) -> bytes:
        """Return altered bytes, or none at the end of the stream; raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while not self._ready:
            if self._broken is not None:
                raise self._broken
            data = self.agent.recv(max(0.0, deadline_s - time.monotonic()))
            if not data:
                return b""
            try:
                for frame in self._decoder.feed(data):
                    for altered in self._alter(frame):
                        self._ready += wire.encode(replace(altered, seq=self._seq))
                        self._seq += 1
            except OSError as error:  # after the frames before it
                self._broken = error
        part = bytes(self._ready[: wire.READ_BYTES])
        del self._ready[: wire.READ_BYTES]
        self.received_bytes += len(part)
        return part

    def close(self) -> None:
        """End the agent."""
        self.agent.close()

    def diagnosis(self) -> str:
        """Return that of the agent."""
        return self.agent.diagnosis()


def alter_agents(monkeypatch: pytest.MonkeyPatch, alter: Alter) -> None:
    """Put `alter` between the host and every agent that it starts on this machine."""
    monkeypatch.setattr("harness.device.session.start_here", lambda: AlteredConnection(alter))
