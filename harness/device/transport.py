"""What a session needs of a transport: bytes out and bytes in, each with a deadline."""

from __future__ import annotations

from typing import Protocol

SEND_STALL_S = 30.0
CLOSE_S = 5.0


class Connection(Protocol):
    """A connection to a running agent. One thread may send while another receives."""

    def send(self, data: bytes) -> None:
        """Send all bytes; raises TimeoutError if the peer takes none for SEND_STALL_S, OSError if it has gone."""

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raises TimeoutError."""

    def close(self) -> None:
        """End the agent and wait a few seconds for it, so that its lease is free afterwards."""

    def diagnosis(self) -> str:
        """Return the agent's last output and how it ended, if known; raw text from the device."""
