"""The agent as a subprocess of this machine, or behind one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from device_agents.worker_process import import_path, tail_of
from harness.device.transport import CLOSE_S, SEND_STALL_S
from harness.errors import DeviceUnreachable

_READ_BYTES = 64 * 1024


class LocalConnection:
    """An agent process and its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the agent needs pipes")
        self._process = process
        self._errors = errors
        self._input, self._output = process.stdin, process.stdout
        os.set_blocking(self._input.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id of the agent."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send all bytes; raises TimeoutError if the agent takes none for SEND_STALL_S."""
        rest = memoryview(data)
        while rest:
            if not _wait(self._input.fileno(), select.POLLOUT, SEND_STALL_S):
                raise TimeoutError("the agent reads nothing")
            rest = rest[os.write(self._input.fileno(), rest) :]

    def recv(self, timeout_s: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raises TimeoutError."""
        if not _wait(self._output.fileno(), select.POLLIN, timeout_s):
            raise TimeoutError("the agent sends nothing")
        return os.read(self._output.fileno(), _READ_BYTES)

    def close(self) -> None:
        """End the agent by end of input, after a few seconds by SIGKILL, and reap it."""
        self._input.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its worker dies with it (PR_SET_PDEATHSIG)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def diagnosis(self) -> str:
        """Return the end of the agent's standard error, and its exit status if it has ended."""
        text = tail_of(self._errors)
        try:
            code: int | None = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            code = None
        ending = "the agent still runs" if code is None else f"the agent ended with status {code}"
        return f"{ending}: {text}" if text else ending


def start_here() -> LocalConnection:
    """Start the agent of this package, with the interpreter that runs harness."""
    words = [sys.executable, "-P", "-m", "device_agents"]  # -P: nothing of the current folder is imported
    return start_process("The local agent", words, {**os.environ, "PYTHONPATH": import_path()})


def start_process(what: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> LocalConnection:
    """Start a program whose standard input and output are those of an agent; `what` names it in errors.

    It has a process session of its own, so that Ctrl-C reaches the controller only.
    """
    try:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
    except OSError as error:
        step = "Free space in the folder for temporary files, or set TMPDIR to another folder"
        raise DeviceUnreachable(f"{what} cannot be started", why=str(error), next_step=step) from error
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        errors.close()
        raise DeviceUnreachable(f"{what} cannot be started", why=str(error)) from error
    return LocalConnection(process, errors)


def _wait(handle: int, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(handle, event)
    return bool(poll.poll(timeout_s * 1000))
