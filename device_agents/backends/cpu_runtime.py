"""What the backends of runtimes on this machine's processor share: the clocks, the loaded probes and their inputs."""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from device_agents import arrays
from device_agents.backends import Refused
from device_agents.messages import LoadReport, LoadRequest, Sample

# A profile differs more from process to process than within one: several short profiles say more than a long one.
_FEWEST_TURNS, _MOST_TURNS = 12, 40
_MOST_RUNS, _TURN_NS = 8, 1_000_000
"""Runs in a turn, at most, and about how long it takes."""
_PROFILING_S = 1.5
_LEAST_WAIT = 0.01
"""Share of a run for which threads of a pool must have waited for cores: a kernel's own tasks take microseconds."""
_CLOCK_TRIES = 5
"""Runs in place of one sample: the CPU clock of a thread on a virtual machine stands still in one run of a million."""
_TASKS = "/proc/self/task"
_LINE_BYTES = 80
_MOST_THREADS = 256  # each takes a file descriptor


@dataclass(frozen=True)
class LoadedProbe:
    """A probe ready to `run`: its request, the runtime's object that runs it, and how it was loaded.

    `inputs` are arrays that the engine reads and does not keep alive.
    """

    request: LoadRequest
    engine: Any
    run: Callable[[], Any]
    report: LoadReport
    inputs: Any = None


def first_run(run: Callable[[], Any], compile_s: float) -> LoadReport:
    """Run a loaded model for the first time and report how long that took."""
    started = time.perf_counter()
    run()
    return LoadReport(compile_s, first_run_s=time.perf_counter() - started)


class CpuRuntime:
    """Loaded probes of a runtime with a number of threads; times are thread CPU time and wall time.

    Latencies use CPU time of the calling thread, or wall time if a pool of threads works. The inputs of all probes are
    views of the same memory, so that inputs are as cached as those of a network.
    """

    reveals: Tuple[str, ...] = ("fusion",)

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.clock = "cpu" if threads == 1 else "wall"
        self._loaded: Dict[str, LoadedProbe] = {}
        self._views: Dict[str, "np.ndarray[Any, Any]"] = {}
        self._making = threading.Lock()
        self._waits = CoreWaits()

    def unload(self, probe: str) -> None:
        """Drop the probe."""
        self._loaded.pop(probe, None)

    def load_report(self, probe: str) -> LoadReport:
        """Return how long compilation took, and what runs on the CPU."""
        return self._loaded[probe].report

    def run(self, probe: str) -> Sample:
        """Run once, from input arrays to output arrays."""
        return self._timed(self._loaded[probe].run)

    def _timed(self, run: Callable[[], Any]) -> Sample:
        """Call `run` once and time it; CPU time is None if other threads share the work.

        A run during which the CPU clock stood still is discarded and repeated. Raises Refused if the clock
        stands still again and again.
        """
        for _ in range(_CLOCK_TRIES):
            sample = self._once(run)
            if sample.cpu_ns != 0:
                return sample
        raise Refused(f"the CPU clock of the thread stood still during {_CLOCK_TRIES} runs in a row")

    def _once(self, run: Callable[[], Any]) -> Sample:
        is_pool = self.clock == "wall"
        waited = self._waits.total_ns() if is_pool else None
        who = resource.RUSAGE_THREAD if waited is None else resource.RUSAGE_SELF
        switches = resource.getrusage(who).ru_nivcsw
        wall = time.perf_counter_ns()
        cpu = time.thread_time_ns()
        outputs = run()
        cpu = time.thread_time_ns() - cpu
        wall = time.perf_counter_ns() - wall
        del outputs
        switches = resource.getrusage(who).ru_nivcsw - switches
        after = self._waits.total_ns() if waited is not None else None
        if waited is not None and after is not None and after - waited < _LEAST_WAIT * wall:
            switches = 0
        return Sample(wall, None if is_pool else cpu, None, switches)

    def _alternate(self, plain: Callable[[], Any], profiled: Callable[[], Any]) -> List[Sample]:
        """Return timed runs of `plain`, which take turns with as many calls of `profiled`, for _PROFILING_S.

        Short ones run several times in a turn: after the other one, the first runs find none of their data in the
        caches.
        """
        samples: List[Sample] = []
        turns, runs, end_s = 0, 1, time.monotonic() + _PROFILING_S
        while turns < _FEWEST_TURNS or (turns < _MOST_TURNS and time.monotonic() <= end_s):
            samples += [self._timed(plain) for _ in range(runs)]
            for _ in range(runs):
                profiled()
            turns, runs = turns + 1, max(1, min(_MOST_RUNS, _TURN_NS // max(1, samples[-1].wall_ns)))
        return samples

    def _input(self, spec: Dict[str, Any], index: int) -> "np.ndarray[Any, Any]":
        """Return the values for the probe's input number `index`, in memory shared with other probes."""
        values = {name: spec.get(name) for name in ("dtype", "distribution", "low", "high", "scale")}
        key = f"{index} {sorted(values.items(), key=str)}"
        shape = [int(size) for size in spec["shape"]]
        count = int(np.prod(shape, dtype=np.int64))
        with self._making:
            held = self._views.get(key)
            if held is None or held.size < count:
                held = arrays.make({**spec, "shape": [count], "seed": index})
                self._views[key] = held
        return held[:count].reshape(shape)


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
