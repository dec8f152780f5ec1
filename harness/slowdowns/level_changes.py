"""Nights in order, divided where their level changed: separates a step from one slow night and from scatter.

Circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler 2004): of all runs of consecutive nights, the one
that differs most from the other nights is split off; the parts are then divided in the same way, until no run differs
significantly (Bonferroni). Unlike in the paper the errors of the nights are known, so a single night can be split off.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student


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
