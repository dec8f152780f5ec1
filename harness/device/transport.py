"""What a session needs of a transport: bytes out and bytes in, each with a deadline and a budget."""

import time
from typing import Protocol

SEND_STALL_S = 30.0
SEND_LEAST_BYTES = 256 << 10
"""A peer must take this many bytes, or the rest, within SEND_STALL_S: a trickle of single bytes is not enough."""
CLOSE_S = 5.0
ERROR_BYTES = 16 << 20
"""How much an agent may write to its standard error in all; it writes nothing unless something is wrong."""
QUIET_SHELL = (
    "Let the account's shell print nothing when it is no terminal: `ssh HOST true` shows the text, which ~/.bashrc or"
    " another file of the shell prints"
)
"""The next step where text of a shell comes before the bytes of a program."""
_TAIL_BYTES = 480
"""Small enough to leave room for how the agent ended in the same message."""


class Connection(Protocol):
    """A connection to a running agent. One thread may send while another receives."""

    def send(self, data: bytes, stall_s: float = SEND_STALL_S) -> None:
        """Send all bytes; raises TimeoutError as `SendDeadline` does, OSError or EOFError if the peer has gone."""

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raises TimeoutError and TooManyErrors."""

    def close(self) -> None:
        """End the agent and wait a few seconds for it, so that its lease is free afterwards."""

    def diagnosis(self) -> str:
        """Return the agent's last output and how it ended, if known; raw text from the device."""


class TooManyErrors(Exception):
    """The agent wrote more than ERROR_BYTES to its standard error."""

    def __init__(self) -> None:
        super().__init__(f"it wrote more than {ERROR_BYTES >> 20} MiB to its standard error")


class ErrorOutput:
    """The end of what an agent wrote to its standard error."""

    def __init__(self) -> None:
        self._tail = b""
        self._count = 0

    def add(self, data: bytes) -> None:
        """Keep the end of what was read so far."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._count += len(data)

    def check(self) -> None:
        """Raise TooManyErrors if it was more than an agent may write."""
        if self._count > ERROR_BYTES:
            raise TooManyErrors

    @property
    def text(self) -> str:
        """The end as text."""
        return self._tail.decode("utf-8", "replace").strip()


class SendDeadline:
    """The time that a peer has to take what is sent; every SEND_LEAST_BYTES that it takes restart it."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._begin()

    def _begin(self) -> None:
        self._ends_s = time.monotonic() + self._stall_s
        self._taken = 0

    def left_s(self) -> float:
        """Return the remaining time; raises TimeoutError if there is none."""
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the agent took {self._taken} bytes within {self._stall_s:g} s")
        return left_s

    def took(self, count: int) -> None:
        """Count bytes that the peer took."""
        self._taken += count
        if self._taken >= SEND_LEAST_BYTES:
            self._begin()
