"""The remaining time of a command, from its own progress and from earlier runs of the same command.

A command reports phases. An earlier run predicts how long each phase takes, in proportion to its effort. The whole
command is corrected by its pace: how much longer than the earlier run it took so far. The steps of the present phase
count the more, the more of them are done. The cache keeps the newest runs by the name of a command; as long as they are
few, one that is part of the package counts as well.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from harness import cache
from harness.measure.progress import Progress

Clock = Callable[[], float]
_NEWEST, _ENOUGH = 5, 3
"""Runs that are kept, because devices and hosts change, and how many predict without the run of the package."""
_ERROR, _FARTHEST = 0.35, 6.0
"""The standard error of the logarithm of a predicted time: a factor of 1.4. Beyond so many of them it is the same."""
_ALIKE = 0.3
"""Runs whose efforts differ by up to this logarithm more than those of the nearest one predict beside it."""
_NORMAL = statistics.NormalDist()
_PACE_S = 0.4
"""Seconds at the pace of an earlier run that count beside those of the present one."""
_START, _ALREADY = "start", "already begun"
"""The time until the first report: since the program was loaded, or in a program that did other things before."""
USUAL = Path(__file__).with_name("usual_runs.json")
"""Recorded runs of commands, with their phases; see docs/progress.md."""


@dataclass(frozen=True)
class PhaseTime:
    """How long a phase of a run took, for which effort; see `Progress`. `name` ends with a number if it came again."""

    name: str
    seconds: float
    effort: float | None


Run = tuple[PhaseTime, ...]


@dataclass
class TimeLeft:
    """The time left of a run, from what it reports and from `earlier` runs; it began `before_s` ago.

    The time until the first report counts as a phase: on a slow machine, a program takes as much longer to load.
    """

    earlier: Sequence[Run] = ()
    clock: Clock = time.monotonic
    before_s: float = 0.0
    done: list[PhaseTime] = field(default_factory=list)
    _phase: str = field(init=False)
    _name: str = field(init=False)
    _began_s: float = field(init=False)
    _effort: float | None = None
    _share: float | None = None
    _next: float | None = None
    _share_s: float = 0.0
    _met: Counter[str] = field(default_factory=Counter)
    _ahead: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._phase = self._name = _START if self.before_s else _ALREADY
        self._began_s = self._share_s = self.clock() - self.before_s

    def see(self, progress: Progress) -> None:
        """Take over the newest progress."""
        phase, now_s = progress.phase or progress.stage, self.clock()
        if phase != self._phase:
            self.done.append(PhaseTime(self._name, now_s - self._began_s, self._effort))
            self._met[phase] += 1
            number = self._met[phase]
            self._phase, self._name, self._began_s = phase, f"{phase} {number}" if number > 1 else phase, now_s
            self._effort = self._share = self._next = None
            self._share_s = now_s
        self._ahead.update(progress.ahead)
        if progress.effort is not None:
            self._effort = progress.effort
        if progress.share is not None:
            self._share, self._share_s, self._next = progress.share, now_s, None
        self._next = self._next if progress.next_share is None else progress.next_share

    @property
    def remaining_s(self) -> float | None:
        """The seconds that are left, None while nothing is known of them."""
        now_s = self.clock()
        efforts = {**self._ahead, **{one.name: one.effort for one in self.run}}
        known = [
            (_apart(run, efforts), left_s) for run in self._like() if (left_s := self._after(run, now_s)) is not None
        ]
        if known:
            farthest = min(known)[0] + _ALIKE
            return statistics.median(left_s for apart, left_s in known if apart <= farthest)
        return self._left_of_phase(self._by_own_steps(), now_s) if self._share else None

    @property
    def run(self) -> Run:
        """The times of the phases until now."""
        return (*self.done, PhaseTime(self._name, self.clock() - self._began_s, self._effort))

    def _like(self) -> Sequence[Run]:
        """Return the earlier runs that did something in each phase that this one will, or all if none did."""
        ahead = {name for name, effort in self._ahead.items() if effort}
        return [run for run in self.earlier if ahead <= {one.name for one in run if one.effort}] or self.earlier

    @property
    def _step(self) -> float:
        """The share of the present step, never negative: a next share may be a guess that was passed."""
        return max(0.0, (self._next or 1.0) - (self._share or 0.0))

    def _by_own_steps(self) -> float:
        """Return how long the phase takes as its steps show it."""
        return (self._share_s - self._began_s) / (self._share or 1.0)

    def _after(self, earlier: Run, now_s: float) -> float | None:
        """Return the seconds that are left after an earlier run; None if that lacks the present phase."""
        present = self.run
        expected_s = _for_efforts(earlier, {**self._ahead, **{one.name: one.effort for one in present}})
        if self._name not in expected_s:
            return None
        here_s, behind = expected_s[self._name], list(expected_s).index(self._name) + 1
        known = [one for one in present if one.name in expected_s]
        passed_s = sum(expected_s[one.name] for one in known[:-1])
        passed_s += here_s * (self._share or 0.0) + min(here_s * self._step, max(0.0, now_s - self._share_s))
        pace = (sum(one.seconds for one in known) + _PACE_S) / (passed_s + _PACE_S)
        return self._left_of_phase(pace * here_s, now_s) + pace * sum(list(expected_s.values())[behind:])

    def _left_of_phase(self, expected_s: float, now_s: float) -> float:
        """Return the remaining time of a phase; its own progress gets more weight as it advances.

        A step that has not ended probably takes longer than expected, and so do the steps after it: the more, the
        larger the step is.
        """
        share, step, gone_s = self._share or 0.0, self._step, max(0.0, now_s - self._share_s)
        weight = math.sqrt(min(1.0, share))
        whole_s = weight * self._by_own_steps() + (1 - weight) * expected_s
        if share and not self._next:
            return max(whole_s * step - gone_s, 0.0)
        lasting_s = _lasting_s(whole_s * step, gone_s)
        slower = (lasting_s / (whole_s * step)) ** math.sqrt(step) if whole_s * step else 1.0
        return lasting_s - gone_s + slower * whole_s * (1 - share - step)


def _lasting_s(expected_s: float, gone_s: float) -> float:
    """Return how long a step of this expected time takes if it has not ended by now: the median of a log-normal."""
    if not gone_s:
        return expected_s
    at = min(math.log(gone_s / max(expected_s, 1e-9)) / _ERROR, _FARTHEST)
    return gone_s * math.exp(_ERROR * (_NORMAL.inv_cdf((1 + _NORMAL.cdf(at)) / 2) - at))


def _apart(earlier: Run, efforts: Mapping[str, float | None]) -> float:
    """Return the mean difference of the logarithms of an earlier run's efforts from the known ones, if it has any."""
    pairs = [(one.effort, effort) for one in earlier if one.effort and (effort := efforts.get(one.name))]
    return statistics.fmean(abs(math.log(effort / own)) for own, effort in pairs) if pairs else math.inf


def _for_efforts(earlier: Run, efforts: Mapping[str, float | None]) -> dict[str, float]:
    """Return the seconds of an earlier run's phases for the efforts of the present one.

    A phase whose effort is not known yet grows as the one before it, and shrinks with the root: a part of its time is
    constant.
    """
    ratio, seconds = 1.0, {}
    for one in earlier:
        effort = efforts.get(one.name)
        if effort and one.effort:
            ratio = effort / one.effort
        own = ratio if effort or ratio > 1 else math.sqrt(ratio)
        seconds[one.name] = 0.0 if effort == 0 else one.seconds * (1.0 if one.effort is None else own)
    return seconds


def earlier_runs(command: str) -> tuple[Run, ...]:
    """Return the newest runs of a command that the cache holds, and if they are few, also that of the package.

    That is the run of the command's first words; if there is none at all, those on other devices are returned.
    """
    usual = _usual_runs()
    same = tuple(run for name, run in usual.items() if f"{command} ".startswith(f"{name} "))
    alike = tuple(run for name, run in usual.items() if name.split()[0] == command.partition(" ")[0])
    kept = _kept_runs(command)
    return kept if len(kept) >= _ENOUGH else (*kept, *same) or alike


def _kept_runs(command: str) -> tuple[Run, ...]:
    content = cache.get(_key(command))
    try:
        runs = json.loads(content) if content else []
        return tuple(tuple(_phase(*one) for one in run) for run in runs)
    except (ValueError, TypeError, RecursionError):
        return ()


def _usual_runs() -> dict[str, Run]:
    content = json.loads(USUAL.read_text("utf-8"))
    return {command: tuple(_phase(*one) for one in run) for command, run in content.items()}


def _phase(name: str, seconds: float, effort: float | None) -> PhaseTime:
    found = PhaseTime(str(name), float(seconds), None if effort is None else float(effort))
    if not all(0 <= one < math.inf for one in (found.seconds, found.effort or 0.0)):
        raise ValueError("a phase takes no such time")
    return found


def keep_run(command: str, run: Run) -> None:
    """Add a run of a command to those in the cache, if any of its phases reported an effort."""
    if any(one.effort for one in run):
        kept = [*_kept_runs(command), run][-_NEWEST:]
        cache.put(_key(command), json.dumps([[astuple(one) for one in each] for each in kept]).encode())


def _key(command: str) -> str:
    return cache.key_of("times of phases 6", command)
