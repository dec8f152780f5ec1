"""Whether a runtime that refuses a probe lacked memory or disk: that is the device's trouble, not the probe's.

Runtimes tell it in words, if at all.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Optional

_MEMORY = re.compile(r"bad_alloc|(failed|unable) to allocate|out of memory|cannot allocate memory", re.IGNORECASE)
_DISK = re.compile(r"no space left|failed to write|quota exceeded|read-only file system", re.IGNORECASE)
_TRIAL_BYTES = 1 << 20


def is_memory(error: BaseException) -> bool:
    """Whether memory was short."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def disk_trouble(error: BaseException) -> Optional[str]:
    """Why no files can be written in the current folder, or None where that is not what `error` is about."""
    try:
        with tempfile.TemporaryFile(dir=os.getcwd()) as trial:
            trial.write(bytes(_TRIAL_BYTES))
    except OSError as reason:
        return "no files can be written: %s" % reason
    return "a file could not be written" if _DISK.search(str(error)) else None
