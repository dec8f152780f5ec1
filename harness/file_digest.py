"""The SHA-256 of a file, without hashing it where it is known: as git does, by its path, inode, size and times.

Every change of a file gives it another time of change, which no program can set back. Only a change within the same
tick of a clock leaves the time as it is, so a digest is kept if the last change was some time ago.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from harness import cache
from harness.files import open_plain, read_rest

_MAX_BYTES = 1 << 31
"""No reader accepts a larger file."""
_LARGE_BYTES = 1 << 20
"""Smaller files are hashed as fast as the cache is read."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTLED_NS = 2_000_000_000
"""The longest tick of a file system."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; empty for one that cannot be read or is too large."""
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size >= _MAX_BYTES:
                return ""
            stamp = _Stamp.of(path, file)
            return stamp.digest() or stamp.keep(hashlib.file_digest(file, "sha256").hexdigest())
    except (OSError, ValueError):
        return ""


def read_with_digest(path: Path, limit_bytes: int) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256; raises the errors of `read_file`."""
    with open_plain(path) as file:
        stamp = _Stamp.of(path, file)
        content = read_rest(file, limit_bytes)
        known = stamp.digest() if stamp.is_current() else ""
        return content, known or stamp.keep(hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class _Stamp:
    """The state of an open file when it was about to be read, and the time of this."""

    path: Path
    file: io.BufferedReader
    status: os.stat_result
    seen_ns: int

    @classmethod
    def of(cls, path: Path, file: io.BufferedReader) -> _Stamp:
        return cls(path, file, os.fstat(file.fileno()), time.time_ns())

    def is_current(self) -> bool:
        """Return whether the file was not changed since."""
        return _facts(os.fstat(self.file.fileno())) == _facts(self.status)

    def digest(self) -> str:
        """Return the digest of a large file in this state, empty if it is not known."""
        if self.status.st_size < _LARGE_BYTES:
            return ""
        known = (cache.get(self._key()) or b"").decode("ascii", "replace")
        return known if _SHA256.fullmatch(known) else ""

    def keep(self, digest: str) -> str:
        """Store the digest of what was read, if it is that of this state, and return it."""
        changed_ns = max(self.status.st_mtime_ns, self.status.st_ctime_ns)
        if self.status.st_size >= _LARGE_BYTES and changed_ns < self.seen_ns - _SETTLED_NS and self.is_current():
            cache.put(self._key(), digest.encode("ascii"))
        return digest

    def _key(self) -> str:
        return cache.key_of("file 1", os.path.abspath(self.path), *map(str, _facts(self.status)))


def _facts(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
