"""Find out whether a runtime refused a probe for lack of memory or disk: a fault of the device, not of the probe.

Most runtimes report this in the text of their error only.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Optional, Union

_MEMORY = re.compile(
    r"bad_alloc|(failed|unable) to allocate|out of memory|cannot allocate memory|memory allocation"
    r"|MemoryError|failed to map segment",
    re.IGNORECASE,
)
_DISK = re.compile(r"no space left|failed to write|quota exceeded|read-only file system", re.IGNORECASE)
_TRIAL_BYTES = 1 << 20


def is_out_of_memory(error: Union[BaseException, str]) -> bool:
    """Return whether the error, or what a process printed, reports a lack of memory."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def disk_error(error: BaseException) -> Optional[str]:
    """Return why files cannot be written in the current folder, or None if `error` has another cause."""
    try:
        with tempfile.TemporaryFile(dir=os.getcwd()) as trial:
            trial.write(bytes(_TRIAL_BYTES))
    except OSError as reason:
        return "no files can be written: %s" % reason
    return "a file could not be written" if _DISK.search(str(error)) else None
