"""Call a vendor's tool: without a shell, without input, with capped output, and without leaving processes running.

A tool runs in a separate process group, so that it can be killed together with everything that it started. If the
worker itself is killed, a guard process that waits for the worker's end kills the group.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from typing import Dict, Sequence

from device_agents.child_processes import follow, kill_group
from device_agents.worker_process import signal_name

MAX_OUTPUT_BYTES = 4 << 20
_WORDS = 200
_KEPT_VARIABLES = ("HOME", "USER", "LOGNAME")
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_GUARD = """
import os, signal, sys
group = 0
for line in sys.stdin:
    group = int(line)
if group:
    os.killpg(group, signal.SIGKILL)
"""


class ToolFailed(Exception):
    """A call failed; the message gives the reason and the end of the tool's output."""


class ToolHung(ToolFailed):
    """A call did not end in time."""


@dataclass(frozen=True)
class ToolCall:
    """A call that succeeded: what the tool printed, and the wall time from start to end."""

    output: str
    errors: str
    wall_ns: int

    def last_words(self) -> str:
        """Return the ends of both outputs in one line, without control characters; empty if nothing was printed."""
        ends = (("Output", _end_of(self.output)), ("Errors", _end_of(self.errors)))
        return "".join(". %s: %s" % end for end in ends if end[1])


class Launcher:
    """Starts tools one at a time, and a guard that lives as long as this object."""

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        weakref.finalize(self, _dismiss, self._guard)

    def call(self, words: Sequence[str], timeout_s: float, folder: str) -> ToolCall:
        """Run a program to its end in `folder`.

        Raises ToolHung if it takes longer than `timeout_s`; ToolFailed if it cannot be started, exits with another code
        than 0 or prints more than MAX_OUTPUT_BYTES.
        """
        started_ns = time.perf_counter_ns()
        try:
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=environment(folder),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolFailed("%s cannot be started: %s" % (words[0], error)) from error
        outputs = [bytearray(), bytearray()]
        try:
            with process:
                try:
                    self._announce(process.pid)
                    problem = follow(process, outputs, timeout_s, MAX_OUTPUT_BYTES)
                    wall_ns = time.perf_counter_ns() - started_ns
                finally:
                    kill_group(process.pid)
        finally:
            self._announce(0)
        output, errors = (bytes(one).decode("utf-8", "replace") for one in outputs)
        call = ToolCall(output, errors, wall_ns)
        if not problem and process.returncode:
            code = process.returncode
            problem = "failed with exit code %d" % code if code > 0 else "was killed by %s" % signal_name(-code)
        if problem:
            failure = ToolHung if wall_ns >= timeout_s * 1e9 else ToolFailed
            raise failure("%s %s%s" % (os.path.basename(words[0]), problem, call.last_words()))
        return call

    def _announce(self, group: int) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.write(b"%d\n" % group)


def find_program(name: str) -> bool:
    """Return whether a program exists, by its absolute path or by its bare name on PATH."""
    return (os.path.isabs(name) or os.sep not in name) and shutil.which(name, path=_path()) is not None


def environment(folder: str) -> Dict[str, str]:
    """Return the whole environment of a tool: numbers with a decimal point, temporary files in `folder`."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, "PATH": _path(), "LC_ALL": "C", "TMPDIR": folder, "ORT_DISABLE_TELEMETRY": "1"}


def _path() -> str:
    return os.environ.get("PATH", _DEFAULT_PATH)


def _dismiss(guard: "subprocess.Popen[bytes]") -> None:
    if guard.stdin is not None:
        guard.stdin.close()
    guard.wait()


def _end_of(text: str) -> str:
    shown = " ".join("".join(one if one.isprintable() else " " for one in text[-4 * _WORDS :]).split())
    return shown if len(shown) <= _WORDS else "…" + shown[-_WORDS:]
