"""Time one run of a runtime with the clocks of this machine."""

from __future__ import annotations

import resource
import time
from typing import Any, Callable

from device_agents.values import Sample


def clock_of(threads: int) -> str:
    """Return the clock for latencies: CPU time of the calling thread, or wall time if a pool of threads works."""
    return "cpu" if threads == 1 else "wall"


def timed(run: Callable[[], Any], threads: int) -> Sample:
    """Call `run` once and time it; CPU time is None if other threads share the work."""
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    wall = time.perf_counter_ns()
    cpu = time.thread_time_ns()
    outputs = run()
    cpu = time.thread_time_ns() - cpu
    wall = time.perf_counter_ns() - wall
    del outputs
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches
    return Sample(wall, cpu if threads == 1 else None, None, switches)
