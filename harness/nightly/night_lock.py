"""The lock that keeps two nightlies of one workspace apart. The kernel releases it when its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import CHECK_FILE, ConfigurationError, NightBusy, reason_of
from harness.file_locks import take
from harness.fleet.store import now
from harness.text import printable
from harness.workspace import Workspace

_MOMENT_S = 0.15
"""How long a night waits for a holder that is about to end."""


@dataclass(frozen=True)
class Holder:
    """The process that runs a nightly, its host, its night, and when it began (UTC, ISO 8601)."""

    pid: int
    host: str
    night: str
    since: str


def lock_file(workspace: Workspace) -> Path:
    """Return the path of the lock; the file stays after the night and names the last holder."""
    return workspace.root / ".harness" / "nightly.lock"


@contextlib.contextmanager
def night_lock(workspace: Workspace, night: str) -> Iterator[None]:
    """Hold the lock; raise NightBusy, which names the holder, or ConfigurationError."""
    path = lock_file(workspace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be opened", why=reason_of(error), next_step=CHECK_FILE) from error
    try:
        if not take(handle, fcntl.LOCK_EX, _MOMENT_S):
            raise _busy(_read(handle))
        record = asdict(Holder(os.getpid(), socket.gethostname(), night, now()))
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(record).encode(), 0)
        yield
    finally:
        os.close(handle)  # releases the lock


def running(workspace: Workspace) -> Holder | None:
    """Return the holder of the lock, or None if no nightly runs."""
    try:
        handle = os.open(lock_file(workspace), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return None if take(handle, fcntl.LOCK_SH, _MOMENT_S) else _read(handle)
    finally:
        os.close(handle)


def _read(handle: int) -> Holder:
    try:
        record = json.loads(os.pread(handle, 4096, 0))
        return Holder(int(record["pid"]), str(record["host"]), str(record["night"]), str(record["since"]))
    except (ValueError, KeyError, TypeError, RecursionError):  # not written yet, or killed while writing
        return Holder(0, "", "", "")


def _busy(holder: Holder) -> NightBusy:
    who = f"Process {holder.pid} on {printable(holder.host, 80)}" if holder.pid else "Another process"
    why = f"{who} runs the night of {holder.night} since {holder.since}" if holder.pid else f"{who} has just begun"
    step = "Wait for it to finish; `harness nightly status` shows its state"
    return NightBusy("Another nightly run is active in this workspace", why=why, next_step=step)
