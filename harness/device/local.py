"""The agent as a subprocess of this machine, or reached through one."""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from device_agents.worker_process import import_path
from harness.device.transport import CLOSE_S, SEND_STALL_S, ErrorOutput, SendDeadline
from harness.errors import DeviceUnreachable

_READ_BYTES = 64 * 1024
_SLICE_S = 0.2
_ENDING_S = 0.02
_DRAINED_BYTES = 4 << 20
"""How much of the standard error is read in one call."""


class LocalConnection:
    """An agent process and its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("the agent needs pipes")
        self._process = process
        self._input, self._output, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = ErrorOutput()
        self._sending, self._draining = threading.Lock(), threading.Lock()
        self._closing = False
        self._has_errors = True
        for stream in (self._input, self._output, self._stderr):
            os.set_blocking(stream.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id of the agent."""
        return self._process.pid

    def send(self, data: bytes, stall_s: float = SEND_STALL_S) -> None:
        """Send all bytes; raises TimeoutError if the agent takes too few of them, OSError if it has ended."""
        rest, deadline = memoryview(data), SendDeadline(stall_s)
        with self._sending:
            while rest:
                wait_s = min(_SLICE_S, deadline.left_s())
                if self._closing:
                    raise BrokenPipeError("the connection is closed")
                if self._is_ready(self._input, select.POLLOUT, wait_s):
                    sent = os.write(self._input.fileno(), rest)
                    deadline.took(sent)
                    rest = rest[sent:]

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raises TimeoutError and TooManyErrors."""
        ends_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, ends_s - time.monotonic())
            is_ready = self._is_ready(self._output, select.POLLIN, left_s)
            self._errors.check()
            if is_ready:
                return os.read(self._output.fileno(), _READ_BYTES)
            if not left_s:
                raise TimeoutError("the agent sends nothing")

    def close(self) -> None:
        """End the agent by end of input, after a few seconds by SIGKILL, and reap it."""
        self._closing = True
        with self._sending:
            self._input.close()
        ends_s = time.monotonic() + CLOSE_S
        while not self._has_ended(_ENDING_S) and time.monotonic() < ends_s:
            self._drain_errors()
            with contextlib.suppress(BlockingIOError):  # an agent that waits until its output is read does not end
                os.read(self._output.fileno(), _READ_BYTES)
        if not self._has_ended(0):
            self._process.kill()  # its worker dies with it (PR_SET_PDEATHSIG)
            self._has_ended(CLOSE_S)
        self._drain_errors()
        self._output.close()
        with self._draining:
            self._has_errors = False
            self._stderr.close()

    def diagnosis(self) -> str:
        """Return the end of the agent's standard error, and its exit status if it has ended."""
        ending = f"the agent ended with status {self._process.returncode}" if self._has_ended(0.5) else ""
        self._drain_errors()
        parts = (ending or "the agent still runs", self._errors.text)
        return ": ".join(filter(None, parts))

    def _has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _is_ready(self, stream: IO[bytes], event: int, timeout_s: float) -> bool:
        """Wait for a stream while reading standard error: an agent blocks until its errors are read."""
        poll = select.poll()
        poll.register(stream.fileno(), event)
        if self._has_errors:
            poll.register(self._stderr.fileno(), select.POLLIN)
        ready = {handle for handle, _ in poll.poll(timeout_s * 1000)}
        if ready - {stream.fileno()}:
            self._drain_errors()
        return stream.fileno() in ready

    def _drain_errors(self) -> None:
        """Read the standard error that has arrived, for a moment at most; two threads may call this."""
        with self._draining, contextlib.suppress(BlockingIOError):
            for _ in range(_DRAINED_BYTES // _READ_BYTES if self._has_errors else 0):
                data = os.read(self._stderr.fileno(), _READ_BYTES)
                if not data:
                    self._has_errors = False
                    break
                self._errors.add(data)


def start_here() -> LocalConnection:
    """Start the agent of this package, with the interpreter that runs harness."""
    words = [sys.executable, "-P", "-m", "device_agents"]  # -P: nothing of the current folder is imported
    return start_process("The local agent", words, {**os.environ, "PYTHONPATH": import_path()})


def start_process(what: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> LocalConnection:
    """Start a program that is an agent on its standard input and output; `what` names it in errors.

    It has a separate process session, so that Ctrl-C reaches only the controller.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceUnreachable(f"{what} cannot be started", why=str(error)) from error
    return LocalConnection(process)
