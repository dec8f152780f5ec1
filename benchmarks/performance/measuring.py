"""Wall and CPU time of tasks that run in turns, and how it grows with their size."""

import gc
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.generated_page import table
from benchmarks.parts import cpu_s
from harness.workspace import Workspace

LINEAR_EXPONENT = 1.1
"""The largest exponent over the last decade that counts as linear."""
Task = Callable[[], object]


@dataclass(frozen=True)
class Run:
    """One run of the benchmark: its folder, and whether sizes are those of a check."""

    root: Path
    quick: bool

    @property
    def repeats(self) -> int:
        """How often each task runs."""
        return 1 if self.quick else 3

    def workspace(self, name: str) -> Workspace:
        """Return a workspace of its own for one job."""
        return Workspace(self.folder(name))

    def folder(self, name: str) -> Path:
        """Return a folder of its own for one job."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class Took:
    """Wall and CPU time of a task in seconds, that of its child processes included."""

    wall_s: float
    cpu_s: float


def timed(task: Task) -> Took:
    """Run a task. Child processes count if the task waits for their end."""
    wall_s, before_s = time.perf_counter(), cpu_s()
    task()
    return Took(time.perf_counter() - wall_s, cpu_s() - before_s)


def process(command: Sequence[str], **environment: str) -> Task:
    """Return a task that runs a command without output, with compiled modules as an installed program has them.

    It raises CalledProcessError if the command fails.
    """

    def run() -> None:
        kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environment}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=kept)

    return run


def in_turns(tasks: Mapping[str, Task], repeats: int) -> dict[str, list[Took]]:
    """Run the tasks in turns, so that other load falls on all of them, and return the times of each."""
    found: dict[str, list[Took]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            gc.collect()
            found[name].append(timed(task))
    return found


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Return median and range, such as `2.1 [1.9, 2.4]`."""
    median, low, high = (f"{scale * value:.3g}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} [{low}, {high}]"


def cpu(times: Sequence[Took]) -> list[float]:
    """Return the CPU times in seconds."""
    return [one.cpu_s for one in times]


def ratio(times: Sequence[Took], base: Sequence[Took]) -> float:
    """Return the median ratio of CPU times of tasks that ran in turns."""
    return statistics.median(one.cpu_s / other.cpu_s for one, other in zip(times, base, strict=True))


@dataclass(frozen=True)
class Growth:
    """Median times in seconds by size, and the exponent of a power law with its 95 % interval.

    `last` is the exponent over the last decade of sizes, where fixed costs weigh least.
    """

    times_s: Mapping[int, float] = field(repr=False)
    exponent: float
    low: float
    high: float
    last: float

    @property
    def figure(self) -> str:
        """The exponents in words."""
        return f"{self.last:.2f} over the last decade, {self.exponent:.2f} [{self.low:.2f}, {self.high:.2f}] over all"

    @property
    def is_linear(self) -> bool:
        """Whether the time grows at most linearly over the last decade."""
        return self.last <= LINEAR_EXPONENT


def fitted(times_s: Mapping[int, float]) -> Growth:
    """Fit a power law to the times by least squares of their logarithms; three sizes or more."""
    sizes, times = np.log([float(size) for size in times_s]), np.log(list(times_s.values()))
    exponent, level = (float(one) for one in np.polyfit(sizes, times, 1))
    freedom = len(sizes) - 2
    scatter = math.sqrt(float(np.sum((times - level - exponent * sizes) ** 2)) / freedom)
    half = float(stats.t.ppf(0.975, freedom)) * scatter / math.sqrt(float(np.sum((sizes - sizes.mean()) ** 2)))
    upper = sizes >= sizes.max() - math.log(11)  # a little more than a decade, for sizes that are rounded
    last = float(np.polyfit(sizes[upper], times[upper], 1)[0])
    return Growth(times_s, exponent, exponent - half, exponent + half, last)


def grow(sizes: Sequence[int], task_of: Callable[[int], Task], repeats: int) -> Growth:
    """Return how the CPU time of a task grows; all sizes are prepared first, then run in turns."""
    names = {str(size): size for size in sizes}
    found = in_turns({name: task_of(size) for name, size in names.items()}, repeats)
    return fitted({size: statistics.median(cpu(found[name])) for name, size in names.items()})


def growth_table(column: str, growths: Mapping[str, Growth]) -> str:
    """Return the times of several tasks by size, and their exponents."""
    sizes = sorted({size for growth in growths.values() for size in growth.times_s})
    rows: list[tuple[object, ...]] = [
        (f"{size:,}", *(_milliseconds(growth.times_s.get(size)) for growth in growths.values())) for size in sizes
    ]
    whole = (f"{one.exponent:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in growths.values())
    rows.append(("exponent [95 % interval]", *whole))
    rows.append(("exponent over the last decade", *(f"**{one.last:.2f}**" for one in growths.values())))
    return table((column, *(f"{name}, ms" for name in growths)), rows)


def _milliseconds(value_s: float | None) -> str:
    return "" if value_s is None else f"{1e3 * value_s:,.3g}" if value_s < 1 else f"{1e3 * value_s:,.0f}"


def half_decades(first: int, last: int) -> tuple[int, ...]:
    """Return sizes from `first` to `last` with about two in each decade."""
    count = round(2 * math.log10(last / first)) + 1
    return tuple(round(float(size)) for size in np.geomspace(first, last, count))
