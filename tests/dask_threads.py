"""Threads that distributed keeps after a test: beside them, networks are read in new interpreters."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PATIENCE_S = 300.0
_POOL = "Dask-Offload"


def end_dask_threads() -> None:
    """End that of callbacks, the pool for large messages, and the loop of a client that could not connect."""
    library: Any = sys.modules.get("distributed")
    if library is None:
        return
    if library.Future._cb_executor is not None:
        library.Future._cb_executor.shutdown()
        library.Future._cb_executor = None
    pool, library.utils._offload_executor = library.utils._offload_executor, ThreadPoolExecutor(1, _POOL)
    pool.shutdown()
    loops = library.utils.LoopRunner._all_loops
    while loops:
        _, (_, runner) = loops.popitem()
        runner._real_stop(_PATIENCE_S)
