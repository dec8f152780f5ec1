"""Ctrl-C as commands that measure handle it."""

import contextlib
import itertools
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BufferedWriter, RawIOBase, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from nullbench import build_network

from harness.cli.app import main
from harness.cli.terminal.output import note
from harness.cli.terminal.progress import StopRequest, stop_on_interrupt
from harness.errors import Interrupted

TraceFunction = Callable[[FrameType, str, Any], Any]


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("line", range(12))
def test_ctrl_c_at_any_line_of_a_wait_ends_it(line: int) -> None:
    """The thread that waits for the stop may be anywhere in the wait, also where it holds a lock, when Ctrl-C comes."""
    lines = itertools.count()

    def trace(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        if event == "line" and next(lines) == line:
            signal.raise_signal(signal.SIGINT)
        return trace

    with stop_on_interrupt() as stop:
        sys.settrace(trace)
        try:
            stop.wait(0.05)
        finally:
            sys.settrace(None)
        assert stop.is_set() or next(lines) <= line


def test_ctrl_c_that_a_library_turns_into_its_error_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A library that reports an interrupt as an error of its own does not make a bug of it; a later one is a bug."""
    before = signal.getsignal(signal.SIGINT)

    def broken(number: int) -> Callable[..., NoReturn]:
        def fail(*_: object) -> NoReturn:
            try:
                signal.raise_signal(number)
            except Interrupted as error:
                raise ValueError("a schema cannot be built") from error
            raise ValueError("no schema")

        return fail

    def exit_code(number: int) -> object:
        monkeypatch.setattr("harness.lut.stored_tables.list_tables", broken(number))
        with pytest.raises(SystemExit) as end:
            main(["lut", "list", "--workspace", str(tmp_path)])
        return end.value.code

    try:
        assert exit_code(signal.SIGINT) == 130 and "bug" not in capsys.readouterr().err
        assert exit_code(signal.SIGWINCH) == 1 and "bug" in capsys.readouterr().err
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_stop_that_nobody_requests_is_waited_for() -> None:
    """Without a request, a wait ends at its timeout and returns that there was none; a request of before ends it."""
    stop = StopRequest()
    assert not stop.wait(0.01) and not stop.is_set()
    stop.set()
    assert stop.wait() and stop.is_set()


def test_ctrl_c_while_a_line_is_written_requests_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal in the middle of a write to stderr sets the stop and breaks nothing; the line arrives."""
    raw = _Interrupting()
    monkeypatch.setattr(sys, "stderr", TextIOWrapper(BufferedWriter(raw), write_through=True))
    with stop_on_interrupt() as stop:
        note("first line")
        sys.stderr.flush()
        assert stop.is_set()
    assert b"first line\n" in raw.written


def test_ctrl_c_in_a_process_with_limits_erases_its_line(tmp_path: Path) -> None:
    """The process that compiles a file is killed while it shows the time left: its line goes, the cursor is back."""
    network = build_network(tmp_path / "net.onnx", widths=(8, *[64] * 40))
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "harness", "npu", "split", str(network), "--cores", "4"]
    with subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower) as command:
        os.close(follower)
        shown = b""
        while b"\x1b[?25l" not in shown:
            shown += os.read(leader, 4096)
        command.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while True:
                shown += os.read(leader, 4096)
    os.close(leader)
    assert command.returncode == 130
    assert shown.endswith(b"\r\x1b[2K\x1b[?25herror: Interrupted\r\n")
