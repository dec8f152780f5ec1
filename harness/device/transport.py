"""The seam between a session and the way to its agent: bytes out, bytes in, each with a deadline."""

from __future__ import annotations

from typing import Protocol

SEND_STALL_S = 30.0
CLOSE_S = 5.0


class Connection(Protocol):
    """A running agent. One thread may send while another receives."""

    def send(self, data: bytes) -> None:
        """Sends all of it; raises TimeoutError where the peer takes no byte for SEND_STALL_S, OSError where it left."""

    def recv(self, timeout_s: float) -> bytes:
        """Some bytes, or none at the end of the stream; raises TimeoutError."""

    def close(self) -> None:
        """Ends the agent and waits a few seconds for it, so that its lease is free afterwards."""

    def diagnosis(self) -> str:
        """What the agent printed last and how it ended, as far as known; raw text from the device."""


class Transport(Protocol):
    """A way to start an agent."""

    def open(self) -> Connection:
        """Starts an agent; raises a DeviceError."""
