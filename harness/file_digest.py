"""The SHA-256 of a file, from its content each time: no time or inode says for certain that a file is as it was.

A write through mmap may keep the time of change, and two images mounted in turn may have equal inodes and times.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from harness.files import open_plain, read_rest

_MAX_BYTES = 1 << 31
"""No reader accepts a larger file."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; empty for one that cannot be read or is too large."""
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
