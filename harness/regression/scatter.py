"""How far nights differ in which nothing changed, beyond what their samples explain.

Pooled over all layers and nights, as parts of the probes' totals, and robust, so that the few that did change have no
say. Few nights of few layers tell a scatter badly: what devices of the clock usually show counts like some nights more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.measure.summary import MAD_TO_SIGMA

Array = np.ndarray[Any, np.dtype[np.float64]]

USUAL = {"cpu": 0.01, "wall": 0.02, "device": 0.0001}
"""Scatter of a probe's total between nights by clock, as a fraction: assumptions, for when little is known."""
USUAL_DEVICE = {"cpu": 0.015, "wall": 0.03, "device": 0.0005}
"""The same of the device as a whole."""
USUAL_WEIGHT = 4.0
"""Degrees of freedom that the usual scatter counts as."""
_MAD_EFFICIENCY = 0.37
_HALVINGS = 40
_MOST = 1.0
_MANY = 1e6


@dataclass(frozen=True)
class Scatter:
    """A standard deviation, as a fraction, with the degrees of freedom that it is known with."""

    value: float
    freedom: float

    def errors(self, sampling_s: Array, total_s: float) -> tuple[tuple[float, ...], float]:
        """Standard errors of nights' values, with the fewest degrees of freedom of one (Welch and Satterthwaite)."""
        between = (self.value * total_s) ** 2
        variance = np.square(sampling_s) + between
        freedom = self.freedom * (float(variance.min()) / between) ** 2 if between > 0 else _MANY
        return tuple(map(float, np.sqrt(variance))), min(freedom, _MANY)


def pooled_scatter(
    moved_s: Sequence[Array], stderr_s: Sequence[Array], total_s: Sequence[float], usual: float
) -> Scatter:
    """The scatter over nights (arrays) of subjects (sequences), together with the usual one.

    More than usual is what was seen, and known no better than that.
    """
    parts = [
        _steps(moved, stderr, total)
        for moved, stderr, total in zip(moved_s, stderr_s, total_s, strict=True)
        if len(moved) > 1
    ]
    if not parts:
        return Scatter(usual, USUAL_WEIGHT)
    own, freedom = _fitting(*np.concatenate(parts, axis=1)), _MAD_EFFICIENCY * sum(map(_nights, parts))
    return Scatter(own, freedom) if own > usual else _with_usual(own, freedom, usual)


def scatter_of_one(moved: Array, stderr: Array, usual: float) -> Scatter:
    """The scatter of a single subject over some nights, together with the usual one: they are few, and that remains."""
    if len(moved) < 2:
        return Scatter(usual, USUAL_WEIGHT)
    part = _steps(moved, stderr, 1.0)
    own, freedom = _fitting(*part), _MAD_EFFICIENCY * _nights(part)
    pooled = _with_usual(own, freedom, usual)
    return Scatter(max(own, pooled.value), pooled.freedom)


def _steps(moved: Array, stderr: Array, total: float) -> Array:
    """From each night to the next: the difference, its error, and the total, so that a step counts once."""
    errors = np.hypot(stderr[1:], stderr[:-1]) / 2**0.5
    return np.stack([np.diff(moved) / 2**0.5, errors, np.full(len(errors), total)])


def _nights(part: Array) -> int:
    return int(part.shape[1])


def _with_usual(own: float, freedom: float, usual: float) -> Scatter:
    pooled = ((USUAL_WEIGHT * usual**2 + freedom * own**2) / (USUAL_WEIGHT + freedom)) ** 0.5
    return Scatter(pooled, USUAL_WEIGHT + freedom)


def _fitting(off_s: Array, stderr_s: Array, total_s: Array) -> float:
    """The scatter that makes the middle deviation what it should be; none where the samples explain it."""

    def middle(value: float) -> float:
        return MAD_TO_SIGMA * float(np.median(abs(off_s) / np.hypot(stderr_s, value * total_s)))

    if middle(0.0) <= 1:
        return 0.0
    low, high = 0.0, _MOST
    for _ in range(_HALVINGS):
        between = (low + high) / 2
        low, high = (between, high) if middle(between) > 1 else (low, between)
    return high
