"""The verdict on one subject: whether it changed tonight, and since when it has its current latency."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import mannwhitneyu, t as student

from harness.array_types import Floats
from harness.slowdowns.findings import Detectable, Finding, State, Subject, fingerprint_changes
from harness.slowdowns.watch_series import WatchSeries

_FOUND = 0.95
"""Probability with which a detectable change is found."""


@dataclass(frozen=True, eq=False)
class Track:
    """A subject over the nights that have it; the last one is tonight.

    `deviation_s` are its deviations from the reference on `nights`, which are indices. `error_s` are their standard
    errors, which include scatter between nights, with `freedom` degrees of freedom. `unit_s` is the latency of the
    reference. `samples` are the adjusted samples.
    """

    subject: Subject
    nights: tuple[int, ...]
    deviation_s: tuple[float, ...]
    error_s: tuple[float, ...]
    freedom: float
    unit_s: float
    samples: tuple[Floats, ...]

    def latency_s(self, level: Level) -> float:
        """Return the latency of a level; changes from it are fractions of this."""
        return self.unit_s + level.value if self.unit_s + level.value > 0 else self.unit_s


@dataclass(frozen=True)
class ChangeLimits:
    """What counts as a change: relative sizes from `threshold` on, significant at `level` over all subjects.

    `each` is the level of significance of a single subject.
    """

    threshold: float
    level: float
    each: float


@dataclass(frozen=True)
class ChangeSize:
    """The relative size of a change from a latency, half of its 95 % interval, and its p-value."""

    before_s: float
    change: float
    halfwidth: float
    p_value: float


@dataclass(frozen=True)
class TrackVerdict:
    """A track's levels before tonight, the level that tonight is compared with, and the change from that.

    `alone` is the last night before tonight if it differs from `base`: the start of a step, or one slow night.
    """

    track: Track
    levels: tuple[Level, ...]
    base: Level
    alone: Level | None
    size: ChangeSize


def decide(track: Track, each: float) -> TrackVerdict:
    """Compare tonight with the nights of the level before it; levels differ at the significance `each`.

    A last night that is the only one at its level is either one slow night or the first of a step. Tonight is compared
    with the level before it, and decides which.
    """
    found = levels(track.deviation_s[:-1], track.error_s[:-1], each, track.freedom)
    base, alone = found[-1], None
    if len(found) > 1 and len(base.nights) == 1:
        longer = [one for one in found[:-1] if len(one.nights) > 1] or list(found[:-1])
        base, alone = longer[-1], found[-1]
    last = Level((len(track.nights) - 1,), track.deviation_s[-1], track.error_s[-1])
    pooled = np.concatenate([track.samples[at] for at in base.nights])
    ranked = float(mannwhitneyu(track.samples[-1], pooled, method="asymptotic").pvalue)
    size = _between(track, base, last)
    return TrackVerdict(track, found, base, alone, replace(size, p_value=max(ranked, size.p_value)))


def findings_of(
    verdict: TrackVerdict, p_value: float, nights: Sequence[WatchSeries], limits: ChangeLimits
) -> list[Finding]:
    """Return a subject's findings of tonight and of the nights before; `p_value` is corrected for all subjects."""
    track, base, alone = verdict.track, verdict.base, verdict.alone
    found: list[Finding] = []
    change, subjects = verdict.size.change, limits.level / limits.each
    is_changed = p_value <= limits.level and abs(change) >= limits.threshold
    tonight = len(track.nights) - 1
    if is_changed:
        same_way = alone is not None and (alone.value > base.value) == (change > 0)
        first = alone.nights[0] if alone is not None and same_way else tonight
        state: State = "step" if first < tonight else "new"
        size = replace(verdict.size, p_value=p_value)
        found.append(_finding(track, nights, state, size, first, tonight - first + 1))
    elif alone is None and (before := _level_before(verdict, limits)):
        size = _between(track, before, base, subjects)
        found.append(_finding(track, nights, "step", size, min(base.nights), len(base.nights) + 1))
    for one in verdict.levels:
        if one is base or (one is alone and is_changed and found[0].state == "step"):
            continue
        back = next((at for at in base.nights if at > max(one.nights)), tonight)
        is_between = min(base.nights) < min(one.nights)
        if not is_between or (back == tonight and is_changed):
            continue
        size = _between(track, base, one, subjects)
        if abs(size.change) >= limits.threshold:
            found.append(_finding(track, nights, "passed", size, min(one.nights), len(one.nights), back))
    return found


def _level_before(verdict: TrackVerdict, limits: ChangeLimits) -> Level | None:
    """Return the level before the current one, if all of its nights are earlier and the step between them matters."""
    base = verdict.base
    older = [one for one in verdict.levels if max(one.nights) < min(base.nights)]
    candidates = [one for one in older if len(one.nights) > 1] or older
    if not candidates:
        return None
    before = candidates[-1]
    size = _between(verdict.track, before, base)
    return before if size.p_value < limits.each and abs(size.change) >= limits.threshold else None


def _between(track: Track, before: Level, after: Level, subjects: float = 1.0) -> ChangeSize:
    """Return the change from one level to another, with its p-value corrected for the number of subjects."""
    before_s, apart_s = track.latency_s(before), float(np.hypot(before.stderr, after.stderr))
    halfwidth = float(student.ppf(0.975, track.freedom)) * apart_s / before_s
    p_value = min(1.0, difference_p(before, after, track.freedom) * subjects)
    return ChangeSize(before_s, (after.value - before.value) / before_s, halfwidth, p_value)


def _finding(
    track: Track,
    nights: Sequence[WatchSeries],
    state: State,
    size: ChangeSize,
    first: int,
    count: int,
    ended: int | None = None,
) -> Finding:
    """Return a change of `count` nights from the night `first` of the track on; `ended` is the night after the last."""
    began = track.nights[first]
    return Finding(
        subject=track.subject,
        state=state,
        change=size.change,
        interval=(size.change - size.halfwidth, size.change + size.halfwidth),
        p_value=size.p_value,
        latency_s=size.before_s if track.subject.kind != "device" else 0.0,
        since=nights[began].date,
        nights=count,
        until=None if ended is None else nights[track.nights[ended]].date,
        causes=fingerprint_changes(nights[began - 1].fingerprint, nights[began].fingerprint) if began else (),
    )


def smallest_detectable(verdict: TrackVerdict, limits: ChangeLimits) -> Detectable:
    """Return the smallest change of a subject that tonight detects."""
    track = verdict.track
    apart = float(np.hypot(verdict.base.stderr, track.error_s[-1])) / track.latency_s(verdict.base)
    found = float(student.ppf(_FOUND, track.freedom)) * apart
    change = max(float(student.isf(limits.each / 2, track.freedom)) * apart, limits.threshold) + found
    return Detectable(track.subject, change if math.isfinite(change) else math.inf)


@dataclass(frozen=True)
class Level:
    """Nights of one level, by their indices, with its value and standard error."""

    nights: tuple[int, ...]
    value: float
    stderr: float


def levels(values: Sequence[float], errors: Sequence[float], level: float, freedom: float) -> tuple[Level, ...]:
    """Return the levels in the order of their last nights, the current one last; nights may return to a level.

    `errors` are the standard errors of the values, with `freedom` degrees of freedom. `level` is the probability that
    nights without any change are divided.
    """
    found: list[Level] = []
    for start, stop in _segments(values, errors, 0, len(values), level, freedom):
        fresh = _level(range(start, stop), values, errors)
        same = [one for one in found if difference_p(one, fresh, freedom) >= level]
        if same:
            nearest = min(same, key=lambda one: abs(one.value - fresh.value))
            found.remove(nearest)
            fresh = _level((*nearest.nights, *fresh.nights), values, errors)
        found.append(fresh)
    return tuple(found)


def difference_p(one: Level, other: Level, freedom: float) -> float:
    """Return the two-sided p-value of the difference of two levels."""
    apart = abs(one.value - other.value) / float(np.hypot(one.stderr, other.stderr))
    return float(2 * student.sf(apart, freedom))


def _level(nights: Sequence[int], values: Sequence[float], errors: Sequence[float]) -> Level:
    weights = [1 / errors[night] ** 2 for night in nights]
    value = sum(weight * values[night] for weight, night in zip(weights, nights, strict=True)) / sum(weights)
    return Level(tuple(nights), value, sum(weights) ** -0.5)


def _segments(
    values: Sequence[float], errors: Sequence[float], start: int, stop: int, level: float, freedom: float
) -> list[tuple[int, int]]:
    count = stop - start
    if count < 2:
        return [(start, stop)]
    weight = 1 / np.square(np.asarray(errors[start:stop]))
    reached = np.concatenate([[0.0], np.cumsum(weight)])
    summed = np.concatenate([[0.0], np.cumsum(weight * np.asarray(values[start:stop]))])
    first, last = np.triu_indices(count + 1, 1)
    whole = (first == 0) & (last == count)
    first, last = first[~whole], last[~whole]
    inside = reached[last] - reached[first]
    outside = reached[-1] - inside
    part = summed[last] - summed[first]
    apart = abs(part / inside - (summed[-1] - part) / outside) / np.sqrt(1 / inside + 1 / outside)
    best = int(np.argmax(apart))
    if 2 * student.sf(float(apart[best]), freedom) * len(apart) >= level:
        return [(start, stop)]
    cuts = sorted({0, int(first[best]), int(last[best]), count})
    return [
        piece
        for left, right in itertools.pairwise(cuts)
        for piece in _segments(values, errors, start + left, start + right, level, freedom)
    ]
