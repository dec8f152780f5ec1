"""SQLite files that several threads and processes write to: durable, and each in its turn."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_S = 30.0
_PAUSE_S = 0.02
_WRITING = threading.Lock()
"""Threads of this process take turns at writing: SQLite lets processes wait for each other, but not in order."""


def open_durable(path: Path) -> sqlite3.Connection:
    """A connection with a write-ahead log whose commits survive; transactions are begun by hand.

    Raises sqlite3.Error.
    """
    db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
    try:
        _log_ahead(db)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        db.close()
        raise
    return db


def opening_step(error: Exception, otherwise: str) -> str:
    """What to do about a file that could not be opened: nothing is wrong with it where the disk or its folder is."""
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return "Free space on the disk, and check the permissions of the file and of its folder"
    return otherwise


def _log_ahead(db: sqlite3.Connection) -> None:
    """Switches to a write-ahead log; SQLite does not wait there for others who do the same to a new file."""
    deadline_s = time.monotonic() + _PATIENCE_S
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
    """All that is written inside is committed at its end, or nothing. Raises sqlite3.Error."""
    with _WRITING:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
