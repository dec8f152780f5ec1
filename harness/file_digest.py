"""The SHA-256 of a file, without hashing it where it is known: as git does, by its place, inode, size and times.

Every change of a file gives it another time of change, which no program can set back. Only a change within the same
tick of a clock leaves the time as it is, so a digest is kept if the last change was some time ago.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from harness import cache
from harness.files import open_plain, read_rest

_MAX_BYTES = 1 << 31
"""No reader accepts a larger file."""
_SETTLED_NS = 2_000_000_000
"""The longest tick of a file system."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; empty for one that cannot be read or is too large."""
    try:
        with open_plain(path) as file:
            status, now_ns = os.fstat(file.fileno()), time.time_ns()
            known = _known(path, status)
            if known or status.st_size >= _MAX_BYTES:
                return known
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            is_settled = max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - _SETTLED_NS
            if is_settled and _key(path, os.fstat(file.fileno())) == _key(path, status):
                cache.put(_key(path, status), digest.encode("ascii"))
            return digest
    except (OSError, ValueError):
        return ""


def read_with_digest(path: Path, limit_bytes: int) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256; raises the errors of `read_file`."""
    with open_plain(path) as file:
        status = os.fstat(file.fileno())
        content = read_rest(file, limit_bytes)
        is_unchanged = _key(path, os.fstat(file.fileno())) == _key(path, status)
    return content, (_known(path, status) if is_unchanged else "") or hashlib.sha256(content).hexdigest()


def _known(path: Path, status: os.stat_result) -> str:
    return (cache.get(_key(path, status)) or b"").decode("ascii")


def _key(path: Path, status: os.stat_result) -> str:
    place = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return cache.key_of("file 1", os.path.abspath(path), *map(str, place))
