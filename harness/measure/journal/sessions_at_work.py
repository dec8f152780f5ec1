"""Which sessions are at work in a workspace, on devices that several sessions use at the same time.

Each such session holds a lock on its own file next to the journal, named by device and token. The kernel releases
the lock when the process of the session ends, however it ends, so a campaign of a session that was killed is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import JournalError, reason_of


def _file(journal: Path, device: str, token: int) -> Path:
    return journal.parent / "sessions" / f"{device}-{token}"


@contextlib.contextmanager
def at_work(journal: Path, device: str, token: int) -> Iterator[None]:
    """Mark a session as at work until the end of the block; raises JournalError if its file cannot be written."""
    path = _file(journal, device, token)
    hidden = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        step = "Free space on the disk, and check the permissions of the folder"
        raise JournalError(f"{path} cannot be written", why=reason_of(error), next_step=step) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        hidden.rename(path)  # others see the file with its lock held, or not at all
        yield
    finally:
        for each in (path, hidden):
            each.unlink(missing_ok=True)
        os.close(handle)


def is_at_work(journal: Path, device: str, token: int) -> bool:
    """Return whether the session with this token is at work; removes the file of one that was killed."""
    path = _file(journal, device, token)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it has ended, or never shared its device
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        path.unlink(missing_ok=True)  # tokens are never used again
        return False
    finally:
        os.close(handle)
