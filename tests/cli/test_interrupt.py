"""Ctrl-C as commands that measure handle it."""

from __future__ import annotations

import signal
import sys
from io import BufferedWriter, RawIOBase, TextIOWrapper

import pytest

from harness.cli.output import note
from harness.cli.progress import stop_on_interrupt


class _Interrupting(RawIOBase):
    """A stream during whose first write the user presses Ctrl-C."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Takes all bytes."""
        if not self.written:
            signal.raise_signal(signal.SIGINT)
        self.written += bytes(data)
        return len(data)


def test_ctrl_c_while_a_line_is_written_requests_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal in the middle of a write to stderr sets the stop and breaks nothing; the line arrives."""
    raw = _Interrupting()
    monkeypatch.setattr(sys, "stderr", TextIOWrapper(BufferedWriter(raw), write_through=True))
    with stop_on_interrupt() as stop:
        note("first line")
        sys.stderr.flush()
        assert stop.is_set()
    assert b"first line\n" in raw.written
