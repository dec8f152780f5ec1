"""Results that can be computed again, kept in the user's cache folder under the hash of all that they depend on.

Host and agents share it: networks and tables that were read, models that were timed. The folder is `results` in
`HARNESS_CACHE_DIR`, else in `harness` in the system's folder for caches; an empty `HARNESS_CACHE_DIR` turns the cache
off. A file begins with the hash of its key and its content, so it is ignored under a different name. Files and folders
that belong to another user, or that others may write, are ignored, and so are damaged ones: the result is then computed
again. Disk errors are ignored as well. Files appear whole, by renaming, so that any number of processes may use the
folder at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
from typing import Callable, Iterator, Optional, Tuple

VARIABLE = "HARNESS_CACHE_DIR"
MAX_BYTES = 1 << 29
"""Approximate limit for all files together; the least recently used ones are removed."""
_MAX_FILE_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 12
"""The least that a file counts as, because a disk gives it no less."""
_LOOKS = 256
"""Sizes are added up about as often while files of `MAX_BYTES` are stored."""
_HASH_BYTES = 32
_FOLDER = "results"
"""Devices keep the tokens of leases next to this folder."""
_OWN_NAME = re.compile(r"[0-9a-f]{64}|\.writing-[0-9a-f]{12}")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def key_of(*parts: str) -> str:
    """Return the key of a result that depends on these texts."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def get(key: str) -> Optional[bytes]:
    """Return what was stored under a key; None if there is nothing that can be trusted."""
    try:
        place = _results()
        if not place or not _is_ours(os.lstat(place), stat.S_ISDIR):
            return None
        handle = os.open(os.path.join(place, key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not _is_ours(status, stat.S_ISREG) or status.st_size > _MAX_FILE_BYTES:
                return None
            with open(handle, "rb", closefd=False) as file:
                digest, content = file.read(_HASH_BYTES), file.read(_MAX_FILE_BYTES)
            with contextlib.suppress(OSError):  # a disk that is read only
                os.utime(handle)
        finally:
            os.close(handle)
    except OSError:
        return None
    return content if _digest(key, content) == digest else None


def put(key: str, content: bytes) -> None:
    """Store a result, whole or not at all."""
    if len(content) + _HASH_BYTES > _MAX_FILE_BYTES:
        return
    with contextlib.suppress(OSError):
        place = _results()
        if not place:
            return
        os.makedirs(place, mode=0o700, exist_ok=True)
        if not _is_ours(os.lstat(place), stat.S_ISDIR):
            return
        _write(os.path.join(place, f".writing-{os.urandom(6).hex()}"), place, key, content)
        # Keys are random numbers: larger files are more often followed by a look.
        if int(key[:8], 16) * MAX_BYTES < _counted(len(content)) * _LOOKS << 32:
            _bound(place)


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).digest()


def _write(temporary: str, place: str, key: str, content: bytes) -> None:
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_digest(key, content))
            file.write(content)
        os.replace(temporary, os.path.join(place, key))
    except BaseException:
        os.unlink(temporary)
        raise


def folder() -> str:
    """Return the absolute path of the folder of caches; empty if there is none."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return given and os.path.abspath(given)
    home, system = os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        return ""
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "harness")
    return os.path.join(system if os.path.isabs(system) else os.path.join(home, ".cache"), "harness")


def _results() -> str:
    found = folder()
    return found and os.path.join(found, _FOLDER)


def _is_ours(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a file or folder is of this kind, belongs to this user, and nobody else may write it."""
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS


def _counted(size: int) -> int:
    return max(size, _BLOCK_BYTES)


def _bound(place: str) -> None:
    """Remove the least recently used files until the others take at most nine tenths of `MAX_BYTES`."""
    files = sorted(_files(place))
    total = sum(size for _, size, _ in files)
    if total <= MAX_BYTES:
        return
    for _, size, path in files:
        if total <= MAX_BYTES * 9 // 10:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


def _files(place: str) -> Iterator[Tuple[float, int, str]]:
    """Yield the time of the last use, the size and the path of each file, parts of killed processes included."""
    with os.scandir(place) as found:
        for one in found:
            with contextlib.suppress(FileNotFoundError):  # another process also removes files
                if _OWN_NAME.fullmatch(one.name):
                    status = one.stat(follow_symlinks=False)
                    yield status.st_mtime, _counted(status.st_size), one.path
