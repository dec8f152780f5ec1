"""The SHA-256 of a file, without reading it where it is known: as git does, by its place, inode, size and times.

Every change of a file gives it another time of change, which no program can set back. Only a change within the same
tick of a clock leaves the time as it is, so a digest is kept if the last change was some time ago.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from harness import cache

MAX_BYTES = 1 << 31
"""No reader accepts a larger file."""
_SETTLED_NS = 2_000_000_000
"""The longest tick of a file system."""
_BLOCK_BYTES = 1 << 18


def file_digest(path: str) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; empty for one that cannot be read or is too large."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for a writer
        try:
            status, now_ns = os.fstat(handle), time.time_ns()
            if not stat.S_ISREG(status.st_mode) or status.st_size >= MAX_BYTES:
                return ""
            key = _key(path, status)
            known = cache.get(key)
            if known is not None:
                return known.decode("ascii")
            digest = _hash(handle)
            is_settled = max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - _SETTLED_NS
            if digest and is_settled and _key(path, os.fstat(handle)) == key:
                cache.put(key, digest.encode("ascii"))
            return digest
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return ""


def _key(path: str, status: os.stat_result) -> str:
    place = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return cache.key_of("file 1", os.path.abspath(path), *map(str, place))


def _hash(handle: int) -> str:
    """Return the hash of what an open file holds; empty if it grows beyond the limit."""
    digest, left = hashlib.sha256(), MAX_BYTES
    with open(handle, "rb", buffering=0, closefd=False) as file:
        block = memoryview(bytearray(_BLOCK_BYTES))
        while left > 0 and (count := file.readinto(block)):
            digest.update(block[:count])
            left -= count
    return digest.hexdigest() if left > 0 else ""
