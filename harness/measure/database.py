"""Durable SQLite files that several threads and processes write to."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from harness.errors import JournalError

_TIMEOUT_S = 30.0
_PAUSE_S = 0.02
_WRITING = threading.Lock()
"""Held while a thread writes: SQLite makes writers wait, but does not serve them in order."""


@dataclass(frozen=True)
class Schema:
    """The tables of a file, and the statement that migrates each older version of them to the next."""

    version: int
    tables: str
    changes: Mapping[int, str] = field(default_factory=dict)

    def in_memory(self) -> sqlite3.Connection:
        """Return an empty database in memory that has these tables and can attach files."""
        db = sqlite3.connect("file::memory:", uri=True, isolation_level=None)
        db.executescript(f"{self.tables};PRAGMA user_version={self.version}")
        return db

    def version_at(self, path: Path) -> int:
        """Return the version of the file at `path`, 0 if there is none yet, without changing the file.

        Raises JournalError for any other file.
        """
        if not path.exists() or path.stat().st_size == 0:
            return 0
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            db.isolation_level = None
            db.execute("BEGIN")  # both values from one state: another process may be creating the file
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (*self.changes, self.version) and (version, tables) != (0, 0):
            why = f"It has schema {version}; this version reads schema {self.version}"
            step = "Use the version of harness that wrote it, or another workspace"
            raise JournalError(f"{path} is not a file of this version", why=why, next_step=step)
        return int(version)

    def bring_up_to_date(self, db: sqlite3.Connection) -> None:
        """Create the tables, or migrate those of an older version, unless another process already did."""
        with _transaction(db):
            (version,) = db.execute("PRAGMA user_version").fetchone()
            steps = [self.changes[older] for older in range(version, self.version)] if version else []
            for statement in steps if version else self.tables.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={self.version}")


class DurableFile:
    """An SQLite file whose committed transactions survive; one per thread, use as a context manager.

    `TITLE` names the file in errors, and `LOSS` says what follows from moving a damaged one away.
    """

    SCHEMA: ClassVar[Schema]
    TITLE: ClassVar[str]
    LOSS: ClassVar[str]

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises JournalError if it is another file."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = self.SCHEMA.version_at(path)
            self._db = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)
            try:
                _log_ahead(self._db)
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("PRAGMA foreign_keys=ON")
                if found != self.SCHEMA.version:
                    self.SCHEMA.bring_up_to_date(self._db)
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last for the text of SQLite's own error
            step = f"Move the file away{self.LOSS}"
            if isinstance(error, (sqlite3.OperationalError, OSError)):
                step = "Free space on the disk, and check the permissions of the file and of its folder"
            raise JournalError(f"{self.TITLE} {path} cannot be opened", why=str(error), next_step=step) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors of a damaged file into a JournalError."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            # The file was opened: much of it can be read, and must not be given up.
            step = "Keep the file; `sqlite3 FILE .recover` writes what can be read of it as SQL for a new file"
            raise JournalError(f"{self.TITLE} {self.path} is damaged", why=str(error), next_step=step) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit everything written inside, or nothing; raises JournalError."""
        named = f"{self.TITLE} {self.path}"
        try:
            with _transaction(self._db):
                yield self._db
        except sqlite3.IntegrityError as error:
            raise JournalError(f"{named} already has this record", why=str(error)) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            step = "Free space on the disk, then run the same command again: it continues"
            raise JournalError(f"{named} cannot be written", why=str(error), next_step=step) from error


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
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything written inside, or nothing; raises sqlite3.Error."""
    with _WRITING:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
