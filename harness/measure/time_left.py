"""The time that a command still takes, from its own progress and from earlier runs of the same command.

A command reports phases. The one that it is in takes as long as its own steps foretell, and until they do, as long as
it took in earlier runs for each unit of its work; the phases behind it take as long as in earlier runs. The cache keeps
the times of the newest runs by the name of a command. Without any, only phases that report shares have a time left, and
further processes take as long as the present one.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field

from harness import cache
from harness.measure.progress import Progress

Clock = Callable[[], float]
_NEWEST = 5
"""Runs that are kept: devices and hosts change."""
_OVERDUE = 0.1
"""What is left of a phase that takes longer than before, as a fraction of the time that it has taken."""
_START = "start"


@dataclass(frozen=True)
class PhaseTime:
    """How long a phase of a run took, for how much work; see `Progress`. `name` ends with a number if it came again."""

    name: str
    seconds: float
    work: float | None


Run = tuple[PhaseTime, ...]


@dataclass
class TimeLeft:
    """The time left of a run, from what it reports and from `earlier` runs."""

    earlier: Sequence[Run] = ()
    clock: Clock = time.monotonic
    done: list[PhaseTime] = field(default_factory=list)
    _phase: str = _START
    _name: str = _START
    _began_s: float = field(init=False)
    _work: float | None = None
    _share: float | None = None
    _share_s: float = 0.0
    _processes: int = 0
    _ratios: list[float] = field(init=False)
    _met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._ratios = [1.0] * len(self.earlier)

    def see(self, progress: Progress) -> None:
        """Take over the newest progress."""
        phase, now_s = progress.phase or progress.stage, self.clock()
        if phase != self._phase:
            self._end(now_s)
            self._met[phase] += 1
            number = self._met[phase]
            self._phase, self._name, self._began_s = phase, f"{phase} {number}" if number > 1 else phase, now_s
            self._work = self._share = None
        self._processes = progress.processes - progress.process - 1
        if progress.work is not None:
            self._work = progress.work
        if progress.share is not None:
            self._share, self._share_s = progress.share, now_s

    @property
    def remaining_s(self) -> float | None:
        """The seconds that are left, None while nothing is known of them."""
        now_s = self.clock()
        known = [left_s for number in range(len(self.earlier)) if (left_s := self._after(number, now_s)) is not None]
        if known:
            return statistics.median(known)
        if not self._share:
            return None
        left_s = self._by_own_steps(now_s)
        return left_s + self._processes * (now_s - self._began_s + left_s)

    @property
    def run(self) -> Run:
        """The times of the phases until now."""
        return (*self.done, PhaseTime(self._name, self.clock() - self._began_s, self._work))

    def _end(self, now_s: float) -> None:
        for number, run in enumerate(self.earlier):
            at = _place(run, self._name)
            if at is not None:
                self._ratios[number] = self._ratio(number, run[at])
        self.done.append(PhaseTime(self._name, now_s - self._began_s, self._work))

    def _by_own_steps(self, now_s: float) -> float:
        share = self._share or 1.0
        return max(0.0, (self._share_s - self._began_s) * (1 - share) / share - (now_s - self._share_s))

    def _after(self, number: int, now_s: float) -> float | None:
        """Return the seconds that are left after one earlier run; None if that lacks the present phase."""
        run = self.earlier[number]
        at = _place(run, self._name)
        if at is None:
            return None
        ratio = self._ratio(number, run[at])
        expected_s = [one.seconds * (ratio if one.work is not None else 1.0) for one in run[at:]]
        return self._left_of_phase(expected_s[0], now_s) + sum(expected_s[1:])

    def _left_of_phase(self, expected_s: float, now_s: float) -> float:
        gone_s = now_s - self._began_s
        if not self._share:
            return max(expected_s - gone_s, _OVERDUE * gone_s)
        weight = math.sqrt(min(1.0, self._share))
        by_earlier_s = max(0.0, expected_s * (1 - self._share) - (now_s - self._share_s))
        return weight * self._by_own_steps(now_s) + (1 - weight) * by_earlier_s

    def _ratio(self, number: int, then: PhaseTime) -> float:
        """Return how much longer phases take than in an earlier run, by this one's work or the last that was known.

        A part of each phase does not depend on its work, so the time grows with the root of it.
        """
        return math.sqrt(self._work / then.work) if self._work and then.work else self._ratios[number]


def _place(run: Run, name: str) -> int | None:
    return next((at for at, one in enumerate(run) if one.name == name), None)


def earlier_runs(command: str) -> tuple[Run, ...]:
    """Return the newest runs of a command that the cache holds."""
    content = cache.get(_key(command))
    try:
        runs = json.loads(content) if content else []
        return tuple(tuple(_phase(*one) for one in run) for run in runs)
    except (ValueError, TypeError, RecursionError):
        return ()


def _phase(name: str, seconds: float, work: float | None) -> PhaseTime:
    found = PhaseTime(str(name), float(seconds), None if work is None else float(work))
    if not all(0 <= one < math.inf for one in (found.seconds, found.work or 0.0)):
        raise ValueError("a phase takes no such time")
    return found


def keep_run(command: str, run: Run) -> None:
    """Add a run of a command to those in the cache, if it did any work that can be counted."""
    if any(one.work for one in run):
        kept = [*earlier_runs(command), run][-_NEWEST:]
        cache.put(_key(command), json.dumps([[astuple(one) for one in each] for each in kept]).encode())


def _key(command: str) -> str:
    return cache.key_of("times of phases 1", command)
