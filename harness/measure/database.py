"""Durable SQLite files that several threads and processes write to."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_TIMEOUT_S = 30.0
_PAUSE_S = 0.02
_WRITING = threading.Lock()
"""Held while a thread writes: SQLite makes writers wait, but does not serve them in order."""


def open_durable(path: Path) -> sqlite3.Connection:
    """Open a connection with a write-ahead log and synchronous commits, without implicit transactions.

    Raises sqlite3.Error.
    """
    db = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)
    try:
        _log_ahead(db)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        db.close()
        raise
    return db


def opening_step(error: Exception, otherwise: str) -> str:
    """Return the next step for a file that cannot be opened: `otherwise`, unless disk or folder are at fault."""
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return "Free space on the disk, and check the permissions of the file and of its folder"
    return otherwise


def _log_ahead(db: sqlite3.Connection) -> None:
    """Switch to a write-ahead log, waiting for other processes that do the same: SQLite itself does not wait here."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything written inside, or nothing; raises sqlite3.Error."""
    with _WRITING:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
