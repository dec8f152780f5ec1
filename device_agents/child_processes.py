"""Processes that this one starts: read what they print within limits, kill them, and end them with their parent."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import List

_READ_BYTES = 1 << 16
_SLICE_S = 0.05
_PR_SET_PDEATHSIG = 1


def follow(process: "subprocess.Popen[bytes]", outputs: List[bytearray], timeout_s: float, most_bytes: int) -> str:
    """Read standard output and standard error into `outputs` until the program ends, and leave it to be reaped.

    Returns why it must be killed, or an empty text.
    """
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for stream, output in ((process.stdout, outputs[0]), (process.stderr, outputs[1])):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, output)
        # A process that the program started may keep its pipes open, so the end of the program is also checked.
        while selector.get_map():
            has_ended = _has_ended(process.pid)  # asked first: what a program prints before its end is read
            ready = selector.select(0.0 if has_ended else _SLICE_S)
            for key, _ in ready:
                data = os.read(key.fd, _READ_BYTES)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            if sum(map(len, outputs)) > most_bytes:
                return "printed more than %d MiB and was killed" % (most_bytes >> 20)
            if has_ended and not ready:
                return ""
            if not has_ended and time.monotonic() > deadline:
                break
    pause_s = 1e-4
    while not _has_ended(process.pid):
        if time.monotonic() > deadline:
            return "did not end within %g s" % timeout_s
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _SLICE_S)
    return ""


def kill_group(pid: int) -> None:
    """Kill a process group; call this before its leader is reaped: until then no other group can take its number."""
    with suppress(ProcessLookupError, PermissionError):  # some systems raise the second for zombies
        os.killpg(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_with_parent(parent: int = 0) -> None:
    """Let the kernel kill this process when the thread that started it ends; Linux only.

    With `parent`, a fork of that process ends immediately if it is already gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)
