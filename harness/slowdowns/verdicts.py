"""Whether one subject is tonight what it was, and since when it is what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu
from scipy.stats import t as student

from harness.slowdowns.findings import Finding, State, fingerprint_changes
from harness.slowdowns.history import Level, difference_p, levels
from harness.slowdowns.series import WatchSeries
from harness.slowdowns.subjects import Detectable, Subject

Array = np.ndarray[Any, np.dtype[np.float64]]

_FOUND = 0.95
"""Probability with which a detectable change would be told."""


@dataclass(frozen=True, eq=False)
class Track:
    """A subject over the nights that have it, the last one tonight's.

    `moved_s` are how far off the reference it was on `nights`, by their indices, `error_s` with all that makes nights
    differ, `freedom` the degrees of freedom of these errors. `unit_s` is what a change is a fraction of. `samples` are
    the freed raw ones.
    """

    subject: Subject
    nights: tuple[int, ...]
    moved_s: tuple[float, ...]
    error_s: tuple[float, ...]
    freedom: float
    unit_s: float
    samples: tuple[Array, ...]


@dataclass(frozen=True)
class Judged:
    """A track with its levels before tonight, the nights tonight is compared with, and how it compares."""

    track: Track
    levels: tuple[Level, ...]
    base: Level
    alone: Level | None
    change: float
    halfwidth: float
    p_value: float


def judge(track: Track, each: float) -> Judged:
    """Compares tonight with the nights of the level before it; levels are told apart at the significance `each`.

    A last night that is alone at its level may have been one slow night, or the first of a step: then tonight is
    compared with those before it, and decides.
    """
    found = levels(track.moved_s[:-1], track.error_s[:-1], each, track.freedom)
    base, alone = found[-1], None
    if len(found) > 1 and len(base.nights) == 1:
        known = [one for one in found[:-1] if len(one.nights) > 1] or list(found[:-1])
        base, alone = known[-1], found[-1]
    last = Level((len(track.nights) - 1,), track.moved_s[-1], track.error_s[-1])
    pooled = np.concatenate([track.samples[at] for at in base.nights])
    ranked = float(mannwhitneyu(track.samples[-1], pooled, method="asymptotic").pvalue)
    apart_s = float(np.hypot(base.stderr, last.stderr))
    return Judged(
        track,
        found,
        base,
        alone,
        (last.value - base.value) / track.unit_s,
        float(student.ppf(0.975, track.freedom)) * apart_s / track.unit_s,
        max(ranked, difference_p(base, last, track.freedom)),
    )


def findings_of(
    judged: Judged, p_value: float, nights: Sequence[WatchSeries], threshold: float, level: float, each: float
) -> list[Finding]:
    """What is told of a subject, once its p-value is corrected for all of them: by tonight, and by the nights before.

    At `level` all subjects together are judged, at `each` a single one.
    """
    track, base, alone = judged.track, judged.base, judged.alone
    found: list[Finding] = []
    is_changed = p_value <= level and abs(judged.change) >= threshold
    tonight = len(track.nights) - 1
    if is_changed:
        same_way = alone is not None and (alone.value > base.value) == (judged.change > 0)
        first = alone.nights[0] if alone is not None and same_way else tonight
        state: State = "step" if first < tonight else "new"
        size = (judged.change, judged.halfwidth, p_value)
        found.append(_finding(judged, nights, state, size, (first, tonight - first + 1, None)))
    elif alone is None and (step := _step(judged, threshold, each)):
        before, after = step
        span = (min(after.nights), len(after.nights) + 1, None)
        found.append(_finding(judged, nights, "step", _between(track, before, after, level / each), span))
    for one in judged.levels:
        if one is base or (one is alone and is_changed and found[0].state == "step"):
            continue
        back = next((at for at in base.nights if at > max(one.nights)), tonight)
        is_between = min(base.nights) < min(one.nights)
        if not is_between or (back == tonight and is_changed):
            continue
        size = _between(track, base, one, level / each)
        if abs(size[0]) >= threshold:
            found.append(_finding(judged, nights, "passed", size, (min(one.nights), len(one.nights), back)))
    return found


def _step(judged: Judged, threshold: float, each: float) -> tuple[Level, Level] | None:
    """The level before the current one and the current one, where all nights of it were before, and it matters."""
    base = judged.base
    older = [one for one in judged.levels if max(one.nights) < min(base.nights)]
    known = [one for one in older if len(one.nights) > 1] or older
    if not known:
        return None
    before = known[-1]
    change, _, p_value = _between(judged.track, before, base, 1.0)
    return (before, base) if p_value < each and abs(change) >= threshold else None


def _between(track: Track, before: Level, after: Level, subjects: float) -> tuple[float, float, float]:
    """The relative change from one level to another, half of its 95 % interval, and its p-value over the subjects."""
    apart_s = float(np.hypot(before.stderr, after.stderr))
    halfwidth = float(student.ppf(0.975, track.freedom)) * apart_s / track.unit_s
    p_value = min(1.0, difference_p(before, after, track.freedom) * subjects)
    return (after.value - before.value) / track.unit_s, halfwidth, p_value


def _finding(
    judged: Judged, nights: Sequence[WatchSeries], state: State, size: tuple[float, float, float],
    span: tuple[int, int, int | None],
) -> Finding:  # fmt: skip
    """The finding of a change with half of its interval and its p-value, over a span: first night, how many, back."""
    (change, halfwidth, p_value), (first, count, back) = size, span
    began = judged.track.nights[first]
    return Finding(
        subject=judged.track.subject,
        state=state,
        change=change,
        interval=(change - halfwidth, change + halfwidth),
        p_value=p_value,
        latency_s=judged.track.unit_s if judged.track.subject.kind != "device" else 0.0,
        since=nights[began].date,
        nights=count,
        until=None if back is None else nights[judged.track.nights[back]].date,
        is_fresh=state == "new",
        causes=fingerprint_changes(nights[began - 1].fingerprint, nights[began].fingerprint) if began else (),
    )


def detectable(judged: Judged, threshold: float, each: float) -> Detectable:
    """The smallest change of a subject that tonight would have told."""
    track = judged.track
    apart = float(np.hypot(judged.base.stderr, track.error_s[-1])) / track.unit_s
    found = float(student.ppf(_FOUND, track.freedom)) * apart
    change = max(float(student.isf(each / 2, track.freedom)) * apart, threshold) + found
    return Detectable(track.subject, change if math.isfinite(change) else math.inf)
