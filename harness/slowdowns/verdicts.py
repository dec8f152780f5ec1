"""The verdict on one subject: whether it changed tonight, and since when it has its current latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu
from scipy.stats import t as student

from harness.array_types import Floats
from harness.slowdowns.findings import Finding, State, fingerprint_changes
from harness.slowdowns.level_changes import Level, difference_p, levels
from harness.slowdowns.subjects import Detectable, Subject
from harness.slowdowns.watch_series import WatchSeries

_FOUND = 0.95
"""Probability with which a detectable change is found."""


@dataclass(frozen=True, eq=False)
class Track:
    """A subject over the nights that have it; the last one is tonight.

    `deviation_s` are its deviations from the reference on `nights`, which are indices. `error_s` are their standard
    errors, which include scatter between nights, with `freedom` degrees of freedom. Changes are fractions of `unit_s`.
    `samples` are the adjusted samples.
    """

    subject: Subject
    nights: tuple[int, ...]
    deviation_s: tuple[float, ...]
    error_s: tuple[float, ...]
    freedom: float
    unit_s: float
    samples: tuple[Floats, ...]


@dataclass(frozen=True)
class ChangeLimits:
    """What counts as a change: relative sizes from `threshold` on, significant at `level` over all subjects.

    `each` is the level of significance of a single subject.
    """

    threshold: float
    level: float
    each: float


@dataclass(frozen=True)
class TrackVerdict:
    """A track's levels before tonight, the level that tonight is compared with, and the result.

    `alone` is the last night before tonight if it differs from `base`: the start of a step, or one slow night.
    """

    track: Track
    levels: tuple[Level, ...]
    base: Level
    alone: Level | None
    change: float
    halfwidth: float
    p_value: float


@dataclass(frozen=True)
class _Size:
    """The relative size of a change, half of its 95 % interval, and its p-value."""

    change: float
    halfwidth: float
    p_value: float


@dataclass(frozen=True)
class _Span:
    """The first night of a change, the number of its nights, and the night that ended it; nights are indices."""

    first: int
    count: int
    ended: int | None = None


def decide(track: Track, each: float) -> TrackVerdict:
    """Compare tonight with the nights of the level before it; levels differ at the significance `each`.

    A last night that is alone at its level is either one slow night or the first of a step. Tonight is compared with
    the level before it, and decides which.
    """
    found = levels(track.deviation_s[:-1], track.error_s[:-1], each, track.freedom)
    base, alone = found[-1], None
    if len(found) > 1 and len(base.nights) == 1:
        longer = [one for one in found[:-1] if len(one.nights) > 1] or list(found[:-1])
        base, alone = longer[-1], found[-1]
    last = Level((len(track.nights) - 1,), track.deviation_s[-1], track.error_s[-1])
    pooled = np.concatenate([track.samples[at] for at in base.nights])
    ranked = float(mannwhitneyu(track.samples[-1], pooled, method="asymptotic").pvalue)
    apart_s = float(np.hypot(base.stderr, last.stderr))
    return TrackVerdict(
        track=track,
        levels=found,
        base=base,
        alone=alone,
        change=(last.value - base.value) / track.unit_s,
        halfwidth=float(student.ppf(0.975, track.freedom)) * apart_s / track.unit_s,
        p_value=max(ranked, difference_p(base, last, track.freedom)),
    )


def findings_of(
    verdict: TrackVerdict, p_value: float, nights: Sequence[WatchSeries], limits: ChangeLimits
) -> list[Finding]:
    """Return a subject's findings of tonight and of the nights before; `p_value` is corrected for all subjects."""
    track, base, alone = verdict.track, verdict.base, verdict.alone
    found: list[Finding] = []
    is_changed = p_value <= limits.level and abs(verdict.change) >= limits.threshold
    tonight = len(track.nights) - 1
    if is_changed:
        same_way = alone is not None and (alone.value > base.value) == (verdict.change > 0)
        first = alone.nights[0] if alone is not None and same_way else tonight
        state: State = "step" if first < tonight else "new"
        size = _Size(verdict.change, verdict.halfwidth, p_value)
        found.append(_finding(track, nights, state, size, _Span(first, tonight - first + 1)))
    elif alone is None and (step := _step(verdict, limits)):
        before, after = step
        size = _between(track, before, after, limits.level / limits.each)
        found.append(_finding(track, nights, "step", size, _Span(min(after.nights), len(after.nights) + 1)))
    for one in verdict.levels:
        if one is base or (one is alone and is_changed and found[0].state == "step"):
            continue
        back = next((at for at in base.nights if at > max(one.nights)), tonight)
        is_between = min(base.nights) < min(one.nights)
        if not is_between or (back == tonight and is_changed):
            continue
        size = _between(track, base, one, limits.level / limits.each)
        if abs(size.change) >= limits.threshold:
            span = _Span(min(one.nights), len(one.nights), back)
            found.append(_finding(track, nights, "passed", size, span))
    return found


def _step(verdict: TrackVerdict, limits: ChangeLimits) -> tuple[Level, Level] | None:
    """Return the previous level and the current one, if all nights of the previous one are earlier and it matters."""
    base = verdict.base
    older = [one for one in verdict.levels if max(one.nights) < min(base.nights)]
    candidates = [one for one in older if len(one.nights) > 1] or older
    if not candidates:
        return None
    before = candidates[-1]
    size = _between(verdict.track, before, base, 1.0)
    return (before, base) if size.p_value < limits.each and abs(size.change) >= limits.threshold else None


def _between(track: Track, before: Level, after: Level, subjects: float) -> _Size:
    """Return the change from one level to another, with its p-value corrected for the number of subjects."""
    apart_s = float(np.hypot(before.stderr, after.stderr))
    halfwidth = float(student.ppf(0.975, track.freedom)) * apart_s / track.unit_s
    p_value = min(1.0, difference_p(before, after, track.freedom) * subjects)
    return _Size((after.value - before.value) / track.unit_s, halfwidth, p_value)


def _finding(track: Track, nights: Sequence[WatchSeries], state: State, size: _Size, span: _Span) -> Finding:
    began = track.nights[span.first]
    return Finding(
        subject=track.subject,
        state=state,
        change=size.change,
        interval=(size.change - size.halfwidth, size.change + size.halfwidth),
        p_value=size.p_value,
        latency_s=track.unit_s if track.subject.kind != "device" else 0.0,
        since=nights[began].date,
        nights=span.count,
        until=None if span.ended is None else nights[track.nights[span.ended]].date,
        is_fresh=state == "new",
        causes=fingerprint_changes(nights[began - 1].fingerprint, nights[began].fingerprint) if began else (),
    )


def smallest_detectable(verdict: TrackVerdict, limits: ChangeLimits) -> Detectable:
    """Return the smallest change of a subject that tonight detects."""
    track = verdict.track
    apart = float(np.hypot(verdict.base.stderr, track.error_s[-1])) / track.unit_s
    found = float(student.ppf(_FOUND, track.freedom)) * apart
    change = max(float(student.isf(limits.each / 2, track.freedom)) * apart, limits.threshold) + found
    return Detectable(track.subject, change if math.isfinite(change) else math.inf)
