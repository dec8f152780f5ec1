"""How long the threads of this process waited for a core that other programs held: part of the wall time of a run."""

from __future__ import annotations

import os
from typing import Dict, Optional

_TASKS = "/proc/self/task"
_LINE_BYTES = 80
_MOST_THREADS = 256  # each takes a file descriptor


class CoreWaits:
    """The scheduler's statistics of all threads of this process; Linux alone has them."""

    def __init__(self) -> None:
        self._files: Dict[str, int] = {}

    def total_ns(self) -> Optional[int]:
        """Return how long the present threads have waited for a core so far; None if the system does not count it."""
        try:
            threads = os.listdir(_TASKS)[:_MOST_THREADS]
            for thread in set(threads) - self._files.keys():
                self._files[thread] = os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY)
            for thread in self._files.keys() - set(threads):
                os.close(self._files.pop(thread))
            # Processor time, time of waiting, and number of slices; kernels that do not count have zeros alone.
            counts = [os.pread(file, _LINE_BYTES, 0).split() for file in self._files.values()]
            is_counted = any(int(count[0]) for count in counts)
            return sum(int(count[1]) for count in counts) if is_counted else None
        except (OSError, ValueError, IndexError):  # another system, or a thread that has just ended
            return None
