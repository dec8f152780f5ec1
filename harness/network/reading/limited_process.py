"""Run one step in a child process with limits on address space, processor time and wall time.

The child is a fork of this process where no other thread runs, which takes milliseconds. Otherwise a fork could inherit
a lock that another thread holds for ever, so the child is a new interpreter, which takes about half a second.
"""

import contextlib
import faulthandler
import gc
import json
import math
import os
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.network.reading.limits import NODES_PER_S, Limits
from harness.parallel import may_fork, paused_threads

_BLOCK_BYTES = 1 << 20
_CRASH = 1
_ADDRESS_SPACE, _DATA = 0, 5
"""Fields of /proc/self/statm."""

_limits: Limits | None = None
"""Those of this process, if it is a child."""
_start_bytes = 0
"""The data that this process had when it became a child that keeps its streams."""

Step = Callable[[], bytes]
IsWhole = Callable[[bytearray], bool]
"""Whether an answer has arrived in full."""


@dataclass(frozen=True)
class Answer:
    """What a child wrote, and the signal that ended it, 0 if none did; `late` if its wall time ran out.

    `cpu_s` is the processor time that it took.
    """

    content: bytes
    signal: int = 0
    late: bool = False
    cpu_s: float = 0.0

    @property
    def is_out_of_time(self) -> bool:
        """Whether its processor time or its wall time ran out."""
        return self.late or self.signal in (signal.SIGXCPU, signal.SIGALRM)

    def time(self, limits: Limits) -> str:
        """Return how long it took until its time ran out, in words."""
        return f"{limits.wall_s:.0f} s" if self.late else f"{max(1, round(self.cpu_s))} s of processor time"


def allow_for_nodes(count: int) -> None:
    """Allow this process, a child with limits, more processor time for a network of many nodes."""
    extra_s = min(count // NODES_PER_S, _limits.more_s) if _limits else 0
    if extra_s and _limits:
        _set_limit(resource.RLIMIT_CPU, _limits.cpu_s + extra_s)


def allow_for_size(stored_bytes: int) -> None:
    """Allow this process, a child that keeps its streams, more memory for a file with its external data."""
    if _limits and _limits.bytes_per_byte and _start_bytes:
        memory_bytes = _limits.memory_bytes + _limits.bytes_per_byte * stored_bytes
        _set_limit(resource.RLIMIT_DATA, _start_bytes + memory_bytes)


def answer_of(step: Step, module: str, request: Step, limits: Limits, is_whole: IsWhole) -> Answer:
    """Return what a step writes, run in a child; `request` is the step for `python -m module`, which `serve`s it."""
    reading, writing = os.pipe()
    try:
        try:
            if may_fork():
                with paused_threads():
                    child = _forked(step, writing, limits)
            else:
                child = _started(module, request(), writing, limits)
        finally:
            os.close(writing)
        return _answer(child, reading, limits, is_whole)
    finally:
        os.close(reading)


def answer_of_command(step: Step, limits: Limits, is_whole: IsWhole) -> Answer:
    """Return what a step writes that prints, run in a fork with the standard streams of this process.

    The threads of libraries take address space that they do not use, so the limit is on data. This process must have
    one thread.
    """
    reading, writing = os.pipe()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            child = _forked(step, writing, limits, keeps_streams=True)
        finally:
            os.close(writing)
        return _answer(child, reading, limits, is_whole)
    finally:
        os.close(reading)


def serve(step: Callable[[bytes], bytes]) -> None:
    """Answer one request of `answer_of` in a new interpreter, whose limits begin after its imports."""
    with open(0, "rb", closefd=False) as requested:
        limits = Limits(**json.loads(requested.readline()))
        request = requested.read()
    _run(lambda: step(request), os.dup(1), limits)


def _forked(step: Step, writing: int, limits: Limits, *, keeps_streams: bool = False) -> int:
    with warnings.catch_warnings():  # threads of numpy's own are ready for a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(step, writing, limits, keeps_streams=keeps_streams)
    _lead_group(child)
    return child


def _started(module: str, request: bytes, writing: int, limits: Limits) -> int:
    root = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with _unnamed_file() as file:
        file.write(json.dumps(vars(limits)).encode() + b"\n" + request)
        file.flush()
        file.seek(0)
        actions = [
            (os.POSIX_SPAWN_DUP2, file.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        # -P: a module in the current folder must not take the place of one of the program.
        words = [sys.executable, "-P", "-m", module]
        environment = {**os.environ, "PYTHONPATH": paths}
        child = os.posix_spawn(sys.executable, words, environment, file_actions=actions)
    _lead_group(child)
    return child


def _lead_group(child: int) -> None:
    """Put a child into a group of processes with the children that it may start, so that they end with it."""
    if _limits is None:
        with contextlib.suppress(OSError):  # the child has done it, or has ended
            os.setpgid(child, child)


def _unnamed_file() -> IO[bytes]:
    """Return a file in memory, which needs no room for temporary files; on disk where the system has none in memory."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("request"), "w+b")
    return tempfile.TemporaryFile()


def _run(step: Step, writing: int, limits: Limits, *, keeps_streams: bool = False) -> None:
    """Run a step in this process, write what it returns, and end the process."""
    code = _CRASH
    try:
        gc.freeze()  # what the parent holds must not be finalised here, such as its temporary folders
        _become_limited(limits, keeps_streams)
        content = memoryview(step())
        while content:
            content = content[os.write(writing, content) :]
        code = 0
    finally:
        os._exit(code)


def _become_limited(limits: Limits, keeps_streams: bool) -> None:
    global _limits, _start_bytes
    _lead_group(os.getpid())
    _limits = limits
    faulthandler.disable()  # it keeps the parent's stderr
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.alarm(math.ceil(limits.wall_s) + 1)
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_CPU, limits.cpu_s)
    if keeps_streams:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a closed pipe is an exception, as in the parent
        _start_bytes = _pages(_DATA)
        _set_limit(resource.RLIMIT_DATA, _start_bytes + limits.memory_bytes)
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # native libraries write messages before they abort
        os.dup2(nowhere, stream)
    _set_limit(resource.RLIMIT_AS, _pages(_ADDRESS_SPACE) + limits.memory_bytes)


def _set_limit(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS has no limit on address space
        resource.setrlimit(kind, (limit, hard))


def _pages(kind: int) -> int:
    """Return the size in bytes of the address space or the data of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[kind])
    except OSError:
        return 1 << 30
    return pages * os.sysconf("SC_PAGE_SIZE")


def _answer(child: int, reading: int, limits: Limits, is_whole: IsWhole) -> Answer:
    content = bytearray()
    deadline_s = time.monotonic() + limits.wall_s
    ended = None
    try:
        while (left_s := deadline_s - time.monotonic()) > 0 and len(content) <= limits.memory_bytes:
            if not select.select([reading], [], [], left_s)[0]:
                continue
            block = os.read(reading, _BLOCK_BYTES)
            if not block:
                break
            content += block
        while ended is None and not is_whole(content) and time.monotonic() < deadline_s:
            found = os.wait4(child, os.WNOHANG)
            if found[0]:
                ended = found
            else:
                time.sleep(0.001)
    finally:
        if ended is None:
            _kill(child)
            ended = os.wait4(child, 0)
    _, status, used = ended
    if is_whole(content):
        return Answer(bytes(content))
    late = time.monotonic() >= deadline_s
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Answer(b"", number, late, used.ru_utime + used.ru_stime)


def _kill(child: int) -> None:
    with contextlib.suppress(OSError):  # a child of a child leads no group
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
