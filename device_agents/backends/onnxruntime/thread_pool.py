"""The threads of ONNX Runtime: one pool for all sessions of the process.

A session has a pool of its own by default, and its threads spin for a while after each run. A campaign loads dozens of
sessions: their pools then take the cores from each other. A network that runs alone has one pool that spins from one
run to the next, and so does a process whose sessions share one.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import onnxruntime

_STOP_SPINNING = "session.force_spinning_stop"
_shared_threads: Optional[int] = None


class ThreadPool:
    """How sessions with `threads` threads get them.

    `kind` is "none" for one thread, "shared" for one pool of the process, and "own" for releases before 1.23: each
    session has a pool there, which stops spinning when a run ends.
    """

    def __init__(self, threads: int) -> None:
        """Create the pool of the process if several threads are asked for; raises ValueError if it has another one."""
        self._threads = threads
        self.kind = "none" if threads == 1 else "shared" if _share(threads) else "own"

    def apply(self, options: Any) -> None:
        """Set the options of a session."""
        options.inter_op_num_threads = 1
        if self.kind == "shared":
            options.use_per_session_threads = False
            return
        options.intra_op_num_threads = self._threads
        if self.kind == "own":
            options.add_session_config_entry(_STOP_SPINNING, "1")


def _share(threads: int) -> bool:
    """Return whether this release lets sessions share a pool, and create it.

    All sessions of the process must use it from then on, and its size cannot be changed.
    """
    global _shared_threads
    create: Optional[Callable[[int, int], None]] = getattr(onnxruntime, "set_global_thread_pool_sizes", None)
    if create is None:
        return False
    if _shared_threads is None:
        create(threads, 1)
        _shared_threads = threads
    if _shared_threads != threads:
        raise ValueError(f"this process has a pool of {_shared_threads} threads, which cannot become {threads}")
    return True
