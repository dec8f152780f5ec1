"""The clocks of this machine around one run of a runtime."""

from __future__ import annotations

import resource
import time
from typing import Any, Callable

from device_agents.backends import Sample


def clock_of(threads: int) -> str:
    """The clock to use: CPU time of the calling thread, which is blind to the other threads of a pool."""
    return "cpu" if threads == 1 else "wall"


def timed(run: Callable[[], Any], threads: int) -> Sample:
    """One call of `run`, with CPU time only where its work is done on this thread alone."""
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    wall = time.perf_counter_ns()
    cpu = time.thread_time_ns()
    outputs = run()
    cpu = time.thread_time_ns() - cpu
    wall = time.perf_counter_ns() - wall
    del outputs
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches
    return Sample(wall, cpu if threads == 1 else None, None, switches)
