"""What the errors of SQLite mean for a file of harness, and the next step after each."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import tempfile
from pathlib import Path
from typing import Literal

from harness.errors import JournalError, reason_of

LOCK_WAIT_S = 30.0
"""How long a command waits for another process's lock."""

Task = Literal["opened", "read", "written"]

_RESTORE = (
    "Keep the file. Restore it from a backup; without one, `sqlite3 FILE .recover` writes what can be read of it as SQL"
    " for a new file"
)
_PERMISSION = "Check that you may write to the file, to its folder, and to the files -wal and -shm next to it"
_RELEASE = "Wait until that process ends, or end it"
_STEPS = {
    sqlite3.SQLITE_FULL: "Free space on the disk",
    sqlite3.SQLITE_IOERR: "Check the free space of the disk, your quota, and the disk itself",
    sqlite3.SQLITE_BUSY: _RELEASE,
    sqlite3.SQLITE_LOCKED: _RELEASE,
    sqlite3.SQLITE_READONLY: _PERMISSION,
    sqlite3.SQLITE_CANTOPEN: _PERMISSION,
    sqlite3.SQLITE_PERM: _PERMISSION,
}
"""What helps against errors that are not about the content of the file."""


def database_error(file: str, path: Path, task: Task, error: sqlite3.Error, spare: str = "") -> JournalError:
    """Return the error for the file at `path`, named with what it is, that could not be opened, read or written.

    `spare` says what follows from giving up the file, if other files can replace it.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the other bits say more of the same
    if code == sqlite3.SQLITE_NOTADB:
        return no_database(file, str(error), spare)
    if code not in _STEPS:
        return damaged(file, str(error), spare)
    why = str(error)
    if _STEPS[code] is _RELEASE:
        if refusal := _lock_refusal(path.parent):
            step = "Use a workspace on a local disk"
            return JournalError(f"{file} cannot be locked", why=f"Its file system: {refusal}", next_step=step)
        why = f"Another process has locked it for {LOCK_WAIT_S:.0f} s"
    again = "then run the same command again" + (": it continues" if task == "written" else "")
    return JournalError(f"{file} cannot be {task}", why=why, next_step=f"{_STEPS[code]}; {again}")


def _lock_refusal(folder: Path) -> str:
    """Return why the file system of a folder locks no file, which SQLite reports as a lock of another process."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as trial:  # a full folder shows nothing
        try:
            fcntl.lockf(trial, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return reason_of(error)
    return ""


def damaged(file: str, why: str, spare: str = "") -> JournalError:
    """Return the error for a file whose content cannot be read."""
    return JournalError(f"{file} is damaged", why=why, next_step=f"{_RESTORE}{spare}")


def no_database(file: str, why: str, spare: str = "") -> JournalError:
    """Return the error for a file that SQLite does not know as one of its own."""
    step = "If it was one, restore it from a backup; else use another workspace"
    return JournalError(f"{file} is not a database", why=why, next_step=f"{step}{spare}")


def check_path(file: str, path: Path) -> None:
    """Raise JournalError for a path at which no database can be or be created."""
    if path.is_dir():
        why = "It is a folder"
    elif path.is_symlink() and not path.exists():
        why = "It is a link to a file that does not exist"
    elif path.exists() and not path.is_file():
        why = "It is neither a file nor a folder"
    else:
        return
    raise JournalError(f"{file} is not a file", why=why, next_step="Rename it, or use another workspace")
