"""Files: read up to a limit, written whole or not at all, and tables as CSV.

The `csv` module writes and reads tables. pandas takes 0.3 s of processor time to import, and commands that read or
write a small table finish sooner than that; only `harness lut export`, which also writes Parquet, uses pandas.
"""

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from harness.errors import ConfigurationError, InputError, reason_of
from harness.text import printable

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk and of a quota."""
_BLOCK_BYTES = 1 << 20
_WRITING = ".writing-"
"""The beginning of the names of temporary files."""
_LEFT_OVER = re.compile(re.escape(_WRITING) + r"[0-9a-f]{12}(\.[^.]*)?")
_LOCKING_S = 60.0
"""How long a writer may take to lock the temporary file that it has created."""
_BEFORE_FORMULA = re.compile(r"""(\A|;)(?=[\s"']*[=+@\-\uFF1D\uFF0B\uFF0D\uFF20\uFE62-\uFE66\uFE6B\u2212])""")
"""The beginning of a cell, or a semicolon, which separates cells in some countries, before a sign, also a wide one."""
_MAX_BYTES = 1 << 31
"""No reader accepts a larger file."""


@contextlib.contextmanager
def open_plain(path: Path) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading; raise OSError for pipes and devices."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for a writer
    try:
        with os.fdopen(handle, "rb", closefd=False) as file:  # it would not close a folder
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(0, "not a plain file")
            yield file
    finally:
        os.close(handle)


def in_home(text: str) -> Path:
    """Return a path, ~ and ~USER replaced by a home folder; raise ConfigurationError if that is not known."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        step = "Set HOME, or write the path without ~"
        raise ConfigurationError(
            f"There is no home folder for {text[:200]!r}", why=str(error), next_step=step
        ) from error


def read_file(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a regular file; raise OSError for pipes, devices, and files over the limit."""
    with open_plain(path) as file:
        return read_rest(file, limit_bytes)


def read_input(path: Path, limit_bytes: int, next_step: str = "") -> bytes:
    """Return the content of a file that the user names; raises InputError if it cannot be read."""
    try:
        return read_file(path, limit_bytes)
    except OSError as error:
        what = f"{printable(str(path), 200)} cannot be read"
        raise InputError(what, why=reason_of(error), next_step=next_step) from error


def read_input_text(path: Path, limit_bytes: int, next_step: str = "") -> str:
    """Return the text of a file that the user names; raises InputError if it cannot be read or is not UTF-8."""
    try:
        return read_input(path, limit_bytes, next_step).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"{printable(str(path), 200)} cannot be read"
        raise InputError(what, why="It is not UTF-8 text", next_step=next_step) from error


def read_large(path: Path, limit_bytes: int) -> memoryview:
    """Return the content of a regular file, read into large pages: three times as fast as `read_file`."""
    import numpy as np  # reserves such memory; most commands load it anyway

    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise OSError(0, f"larger than {limit_bytes:,} bytes")
        return np.fromfile(file, np.uint8, size).data


def read_rest(file: io.BufferedReader, limit_bytes: int) -> bytes:
    """Return what follows in an open file; raise OSError if that is over the limit."""
    # One read of a limit of gigabytes would reserve as much memory for any file; a file may grow while it is read.
    size = os.fstat(file.fileno()).st_size - file.tell()
    if size > limit_bytes:
        raise OSError(0, f"larger than {limit_bytes:,} bytes")
    content = file.read(size + 1)
    if len(content) > size:
        blocks = itertools.takewhile(len, (file.read(_BLOCK_BYTES) for _ in range(limit_bytes // _BLOCK_BYTES + 1)))
        content = b"".join(itertools.chain([content], blocks))
    if len(content) > limit_bytes:
        raise OSError(0, f"larger than {limit_bytes:,} bytes")
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Replace or create a file atomically: readers see the old content or all of the new one.

    Writes and syncs a temporary file in the folder of the target and renames it. Raises ConfigurationError if that
    fails or the target is not a regular file.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise OSError(0, "It is not a regular file")
        _remove_left_over(target.parent)
        temporary = target.parent / f"{_WRITING}{os.urandom(6).hex()}{target.suffix}"
        try:
            with temporary.open("xb") as file:
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                _write_synced(file, content)
                temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        is_full = isinstance(error, OSError) and error.errno in FULL
        step = "Free space on the disk" if is_full else "Name a file in a folder that exists and that you may write to"
        raise ConfigurationError(f"{path} cannot be written", why=reason_of(error), next_step=step) from error


def may_hold(folder: Path) -> bool:
    """Return whether this user can make a file in a folder, or make the folder if it does not exist."""
    # Path.exists raises PermissionError in Python 3.11 for a path through a folder that this user may not enter.
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.exists(one))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def write_synced(path: Path, content: bytes) -> None:
    """Create a file and wait until its content is on the disk; raise OSError if it exists or cannot be written."""
    with path.open("xb") as file:
        _write_synced(file, content)


def _write_synced(file: io.BufferedWriter, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _remove_left_over(folder: Path) -> None:
    """Remove temporary files of writers that were killed; a living writer has locked its file, or is about to."""
    for path in filter(lambda each: _LEFT_OVER.fullmatch(each.name), folder.glob(f"{_WRITING}*")):
        with contextlib.suppress(OSError), open_plain(path) as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _LOCKING_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until renames and new files in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]], *, quoting: Literal[0, 1, 2, 3] = 0) -> str:
    """Return a table as CSV text, each cell exactly as given; `quoting` is a constant of the `csv` module."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def spreadsheet_csv(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV text for people: no cell is a formula to a spreadsheet program."""
    return csv_text(header, ([spreadsheet_cell(cell) for cell in row] for row in rows))


def spreadsheet_cell(value: object) -> object:
    """Return a cell that no spreadsheet program takes for a formula: the sign gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    clean = printable(value)
    return _BEFORE_FORMULA.sub(r"\1'", clean)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; empty for one that cannot be read or is too large.

    The content is read each time: a write through mmap may keep the time of change, and two images mounted in turn may
    have equal inodes and times.
    """
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size >= _MAX_BYTES:
                return ""
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


def read_with_digest(path: Path, limit_bytes: int) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256; raises the errors of `read_file`."""
    with open_plain(path) as file:
        content = read_rest(file, limit_bytes)
    return content, hashlib.sha256(content).hexdigest()
