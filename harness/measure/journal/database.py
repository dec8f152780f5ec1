"""Durable SQLite files that several threads and processes write to, and what errors of SQLite mean for them."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from harness.errors import JournalError, reason_of

_LEAST_BYTES = 512
"""SQLite takes a shorter file for an empty one, and would write over it."""
_PAUSE_S = 0.02
_WRITING = threading.Lock()
"""Held while a thread writes: SQLite makes writers wait, but does not serve them in order."""
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


@dataclass(frozen=True)
class Schema:
    """The tables of a file."""

    version: int
    tables: str

    def in_memory(self) -> sqlite3.Connection:
        """Return an empty database in memory that has these tables and can attach files."""
        db = sqlite3.connect("file::memory:", uri=True, isolation_level=None)
        db.executescript(f"{self.tables};PRAGMA user_version={self.version}")
        return db

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the tables and indexes."""
        with contextlib.closing(self.in_memory()) as db:
            return _names(db)

    def version_at(self, path: Path, file: str) -> int:
        """Return the version of the file at `path`, 0 if there is none yet, without writing to it.

        Raises sqlite3.Error, and JournalError for a file of another program or version; `file` names it there.
        """
        size = _size(path)
        if size == 0:
            return 0
        if size < _LEAST_BYTES:
            raise no_database(file, f"It has {size} bytes only")
        try:
            version, names = _state(path, "ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            version, names = _state(path, "rw")  # what a process that was killed has begun to write is undone
        if names and not names & self.names:
            step = "Use another workspace"
            raise JournalError(f"{file} belongs to another program", why="It has other tables", next_step=step)
        if version != self.version and (version, names) != (0, frozenset()):
            why = f"It has schema {version}; this version reads schema {self.version}"
            step = "Use the version of harness that wrote it, or another workspace"
            raise JournalError(f"{file} was written by another version of harness", why=why, next_step=step)
        if version == self.version and not self.names <= names:
            raise damaged(file, f"It lacks {', '.join(sorted(self.names - names))}")
        return version

    def create(self, db: sqlite3.Connection) -> None:
        """Create the tables, unless another process already did."""
        with _transaction(db):
            (version,) = db.execute("PRAGMA user_version").fetchone()
            for statement in self.tables.split(";") if not version else ():
                db.execute(statement)
            db.execute(f"PRAGMA user_version={self.version}")


class DurableFile:
    """An SQLite file whose committed transactions survive; one per thread, use as a context manager.

    `TITLE` names the file in errors, and `SPARE` says what follows from giving it up, if other files can replace it.
    """

    SCHEMA: ClassVar[Schema]
    TITLE: ClassVar[str]
    SPARE: ClassVar[str] = ""

    def __init__(self, path: Path, *, to_read: bool = False) -> None:
        """Open or create the file; raises JournalError.

        `to_read` opens it even if it may not be written, and creates none: without a file, there are no records.
        """
        self.path = path
        try:
            if to_read and not path.exists():
                self._db = self.SCHEMA.in_memory()
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            check_path(self._named, path)
            found = self.SCHEMA.version_at(path, self._named)
            is_fixed = to_read and _is_fixed(path)
            if is_fixed:
                self._db = _connected(path, "ro")
            else:
                self._db = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
            try:
                if not is_fixed:
                    _log_ahead(self._db)
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("PRAGMA foreign_keys=ON")
                if not found:
                    self.SCHEMA.create(self._db)
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise database_error(self._named, self.path, "opened", error, self.SPARE) from error
        except UnicodeDecodeError as error:  # SQLite quotes damaged tables in its messages
            raise damaged(self._named, str(error), self.SPARE) from error
        except OSError as error:
            step = "Check that you may write to its folder, and that no file has the name of the folder"
            raise JournalError(f"{self._named} cannot be opened", why=reason_of(error), next_step=step) from error

    @property
    def _named(self) -> str:
        return f"{self.TITLE} {self.path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors of a damaged file, and of a file that cannot be read now, into a JournalError."""
        try:
            yield
        except sqlite3.Error as error:
            raise database_error(self._named, self.path, "read", error, self.SPARE) from error
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(self._named, str(error), self.SPARE) from error

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read one state of the file inside, even while another process writes."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit everything written inside, or nothing; raises JournalError.

        A transaction inside another one is part of it.
        """
        if self._db.in_transaction:
            yield self._db
            return
        try:
            with _transaction(self._db):
                yield self._db
        except sqlite3.IntegrityError as error:
            raise JournalError(f"{self._named} already has this record", why=str(error)) from error
        except sqlite3.Error as error:
            raise database_error(self._named, self.path, "written", error, self.SPARE) from error
        except UnicodeDecodeError as error:
            raise damaged(self._named, str(error), self.SPARE) from error


def _state(path: Path, mode: Literal["ro", "rw"]) -> tuple[int, frozenset[str]]:
    """Return the version of a file and the names in it, both from one state: another process may be creating it."""
    with contextlib.closing(_connected(path, mode)) as db:
        db.execute("BEGIN")
        names = _names(db)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return int(version), names


def _names(db: sqlite3.Connection) -> frozenset[str]:
    return frozenset(name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if there is none; whoever closes a database last removes its log."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_fixed(path: Path) -> bool:
    """Return whether nobody can change a file from here, as on a file system that is read-only, and its log is empty.

    SQLite would write to its folder even to read it. A file that its owner has open has an index of the log next to it.
    """
    path = path.resolve()
    log, index = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm"))
    return path.exists() and not os.access(path.parent, os.W_OK) and not index.exists() and _size(log) == 0


def _connected(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Open a file that exists."""
    fixed = "&immutable=1" if _is_fixed(path) else ""
    address = f"{path.absolute().as_uri()}?mode={mode}{fixed}"
    return sqlite3.connect(address, uri=True, timeout=LOCK_WAIT_S, isolation_level=None)


def _log_ahead(db: sqlite3.Connection) -> None:
    """Switch to a write-ahead log, waiting for other processes that do the same: SQLite itself does not wait here."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
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
