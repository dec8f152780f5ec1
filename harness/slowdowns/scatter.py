"""How far nights differ in which nothing changed, beyond what their samples explain.

As a part of the probes' totals, by Bayes' rule on a grid: what devices of a clock usually show is the prior, which
leaves room for devices that scatter far more; each probe's difference from one night to the next is a datum. A datum
may also be one of a probe that did change, so that the few which did have no say. Few nights of few probes leave much
open; that becomes the degrees of freedom of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import t as student

Array = np.ndarray[Any, np.dtype[np.float64]]

USUAL = {"cpu": 0.01, "wall": 0.02, "device": 0.0001}
"""Scatter of a probe's total between nights by clock, as a fraction: assumptions, for when little is known."""
USUAL_DEVICE = {"cpu": 0.015, "wall": 0.03, "device": 0.0005}
"""The same of the device as a whole."""
_USUAL_FREEDOM = 4.0
"""Degrees of freedom that the usual scatter counts as."""
_CHANGED_BY = 10.0
"""How far a change takes a probe, as a multiple of what it usually scatters: the scale of Cauchy's distribution."""
_LOWEST, _HIGHEST, _STEPS = 0.03, 1.0, 200
_HELD = -25.0
"""Logarithm of a posterior, beside its largest, down to which the grid is made finer."""
_OUTER = 0.05
"""Two-sided probability at which Student's distribution agrees with the posterior's, for the sake of intervals."""
_HALVINGS = 50
_AT_ONCE = 4096
_FREEDOMS = np.geomspace(0.5, 1e6, 400)


@dataclass(frozen=True, eq=False)
class Moved:
    """How far off a probe was on some nights, with what error by its samples; scatter is a part of its total."""

    moved_s: Array
    stderr_s: Array
    total_s: float


@dataclass(frozen=True)
class Prior:
    """What is thought of a scatter before any night: the usual one, and how probable surprises are.

    With probability `tail` the device is another kind than usual, and scatters by a multiple of any size up to all of a
    total (half a Cauchy distribution). `changed` is the probability that a probe changed from one night to the next.
    Both are below one.
    """

    usual: float
    tail: float
    changed: float

    def log_density(self, tried: Array) -> Array:
        """Of the logarithm of the scatter."""
        half = _USUAL_FREEDOM / 2
        scale = math.log(2) - math.lgamma(half) + half * math.log(half)
        usual = scale - _USUAL_FREEDOM * (np.log(tried / self.usual) + self.usual**2 / (2 * tried**2))
        if not self.tail:
            return np.asarray(usual)
        other = np.log(2 / math.pi * tried / self.usual) - np.log1p(np.square(tried / self.usual))
        return np.asarray(np.logaddexp(math.log(1 - self.tail) + usual, math.log(self.tail) + other))


@dataclass(frozen=True, eq=False)
class Scatter:
    """Standard deviations that are possible, as fractions, and how probable each is."""

    tried: Array
    weight: Array

    @property
    def value(self) -> float:
        """The middle one."""
        return float(np.interp(0.5, np.cumsum(self.weight), self.tried))

    def errors(self, probes: Sequence[Moved], level: float) -> list[tuple[Array, float]]:
        """Of each probe the standard errors of its nights, and the fewest degrees of freedom of one.

        With these, Student's distribution is exceeded as often as the posterior's at `level`, where it decides.
        """
        if not probes:
            return []
        sampled = np.array([float(np.square(one.stderr_s).min()) for one in probes])
        total_s = np.array([one.total_s for one in probes])
        spread = np.sqrt(sampled[:, None] + np.square(total_s[:, None] * self.tried))
        outer, deep = (self._quantile(spread, probability) for probability in (_OUTER, level))
        ratios = student.isf(level / 2, _FREEDOMS) / student.isf(_OUTER / 2, _FREEDOMS)
        freedom = np.interp(-deep / outer, -ratios, _FREEDOMS)
        variance = np.square(outer / student.isf(_OUTER / 2, freedom))
        between = np.maximum(variance - sampled, 0.0)
        return [
            (np.sqrt(np.square(one.stderr_s) + more), float(known))
            for one, more, known in zip(probes, between, freedom, strict=True)
        ]

    def _quantile(self, spread: Array, probability: float) -> Array:
        """What is exceeded in either direction with this probability, by rows of standard deviations."""
        low, high = np.zeros(len(spread)), 40 * spread.max(axis=1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            beyond = 2 * ndtr(-middle[:, None] / spread) @ self.weight > probability
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        return np.asarray(high)


def scatter_of(probes: Sequence[Moved], prior: Prior) -> Scatter:
    """The scatter of probes over nights."""
    steps = np.concatenate([np.zeros((3, 0)), *map(_steps, probes)], axis=1)
    lowest, highest = _LOWEST * prior.usual, max(_HIGHEST, prior.usual / _LOWEST)
    tried = np.geomspace(lowest, highest, _STEPS)
    held = _posterior(tried, steps, prior)
    among = np.flatnonzero(held > held.max() + _HELD)
    tried = np.geomspace(tried[max(0, among[0] - 1)], tried[min(_STEPS - 1, among[-1] + 1)], _STEPS)
    held = _posterior(tried, steps, prior)
    return Scatter(tried, np.exp(held - logsumexp(held)))


def _posterior(tried: Array, steps: Array, prior: Prior) -> Array:
    """Logarithms of posterior probabilities, but for a constant."""
    held = prior.log_density(tried)
    for part in np.array_split(steps, math.ceil(steps.shape[1] / _AT_ONCE) or 1, axis=1):
        off_s, error_s, total_s = part
        held += np.sum(_log_likelihood(off_s, error_s, total_s, tried[:, None], prior), axis=1)
    return np.asarray(held)


def _log_likelihood(off_s: Array, error_s: Array, total_s: Array, tried: Array, prior: Prior) -> Array:
    """Of differences (columns) under scatters (rows): a probe is as it was, or it changed."""
    same = _normal(off_s, np.hypot(error_s, tried * total_s))
    if not prior.changed:
        return same
    changed = _cauchy(off_s, _CHANGED_BY * np.hypot(error_s, prior.usual * total_s))
    return np.asarray(np.logaddexp(math.log(1 - prior.changed) + same, math.log(prior.changed) + changed))


def _steps(probe: Moved) -> Array:
    """From each night to the next: the difference, its error, and the total, so that a step counts once."""
    errors = np.hypot(probe.stderr_s[1:], probe.stderr_s[:-1]) / 2**0.5
    return np.stack([np.diff(probe.moved_s) / 2**0.5, errors, np.full(len(errors), probe.total_s)])


def _normal(off: Array, spread: Array) -> Array:
    return np.asarray(-0.5 * np.square(off / spread) - np.log(spread * math.sqrt(2 * math.pi)))


def _cauchy(off: Array, scale: Array) -> Array:
    return np.asarray(-np.log1p(np.square(off / scale)) - np.log(math.pi * scale))
