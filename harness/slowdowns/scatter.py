"""The scatter between nights without any change, beyond what their samples explain, as a fraction of probes' totals.

Bayes' rule on a grid: the prior is the usual scatter of devices with a clock, with a long tail for devices that scatter
far more; the data are each probe's differences from one night to the next. The likelihood allows that a probe really
changed, so that the few that did have no influence. Few nights of few probes determine the scatter badly, which lowers
the degrees of freedom of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import t as student

from harness.array_types import Floats

USUAL = {"cpu": 0.01, "wall": 0.02, "device": 0.0001}
"""Usual scatter of a probe's total between nights by clock, as a fraction; assumed until there are data."""
USUAL_DEVICE = {"cpu": 0.015, "wall": 0.03, "device": 0.0005}
"""Usual scatter of the device as a whole."""
_USUAL_FREEDOM = 4.0
"""Degrees of freedom of the usual scatter."""
_CHANGED = 0.1
"""Probability that a probe really changed from one night to the next."""
_CHANGED_BY = 10.0
"""Scale of the Cauchy distribution of real changes, as a multiple of the usual scatter."""
_LOWEST, _HIGHEST, _STEPS = 0.03, 1.0, 200
_HELD = -25.0
"""Logarithm of a posterior relative to its maximum, down to which the second grid reaches."""
_OUTER = 0.05
"""Two-sided probability at which Student's distribution matches the posterior, for 95 % intervals."""
_HALVINGS = 50
_AT_ONCE = 4096
_FREEDOMS = np.geomspace(0.5, 1e6, 400)


@dataclass(frozen=True, eq=False)
class Deviations:
    """A probe's deviations on some nights, with standard errors from its samples, and its total."""

    deviation_s: Floats
    stderr_s: Floats
    total_s: float


@dataclass(frozen=True)
class Prior:
    """The distribution of the scatter before any data.

    `usual` is the usual scatter. With probability `tail`, below one, the device is unusual, and its scatter has a
    half-Cauchy distribution that reaches up to the whole total.
    """

    usual: float
    tail: float

    def log_density(self, tried: Floats) -> Floats:
        """Return the log density of the logarithm of the scatter."""
        half = _USUAL_FREEDOM / 2
        scale = math.log(2) - math.lgamma(half) + half * math.log(half)
        usual = scale - _USUAL_FREEDOM * (np.log(tried / self.usual) + self.usual**2 / (2 * tried**2))
        if not self.tail:
            return np.asarray(usual)
        other = np.log(2 / math.pi * tried / self.usual) - np.log1p(np.square(tried / self.usual))
        return np.asarray(np.logaddexp(math.log(1 - self.tail) + usual, math.log(self.tail) + other))


@dataclass(frozen=True, eq=False)
class Scatter:
    """Possible standard deviations, as fractions, with the probability of each."""

    tried: Floats
    weight: Floats

    @property
    def value(self) -> float:
        """The median."""
        return float(np.interp(0.5, np.cumsum(self.weight), self.tried))

    def errors(self, probes: Sequence[Deviations], level: float) -> list[tuple[Floats, float]]:
        """Return, for each probe, the standard errors of its nights and their degrees of freedom.

        With these, the quantiles of Student's distribution match the posterior's at `level`, where tests decide.
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

    def _quantile(self, spread: Floats, probability: float) -> Floats:
        """Return the size that is exceeded in either direction with this probability, for each row of `spread`."""
        low, high = np.zeros(len(spread)), 40 * spread.max(axis=1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            beyond = 2 * ndtr(-middle[:, None] / spread) @ self.weight > probability
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        return np.asarray(high)


def scatter_of(probes: Sequence[Deviations], prior: Prior) -> Scatter:
    """Return the scatter of probes over nights."""
    steps = np.concatenate([np.zeros((3, 0)), *map(_steps, probes)], axis=1)
    lowest, highest = _LOWEST * prior.usual, max(_HIGHEST, prior.usual / _LOWEST)
    tried = np.geomspace(lowest, highest, _STEPS)
    held = _posterior(tried, steps, prior)
    among = np.flatnonzero(held > held.max() + _HELD)
    tried = np.geomspace(tried[max(0, among[0] - 1)], tried[min(_STEPS - 1, among[-1] + 1)], _STEPS)
    held = _posterior(tried, steps, prior)
    return Scatter(tried, np.exp(held - logsumexp(held)))


def _posterior(tried: Floats, steps: Floats, prior: Prior) -> Floats:
    """Return the logarithms of posterior probabilities, up to a constant."""
    held = prior.log_density(tried)
    for part in np.array_split(steps, math.ceil(steps.shape[1] / _AT_ONCE) or 1, axis=1):
        held += np.sum(_log_likelihood(part, tried[:, None], prior), axis=1)
    return np.asarray(held)


def _log_likelihood(steps: Floats, tried: Floats, prior: Prior) -> Floats:
    """Return log likelihoods of differences (columns) under scatters (rows); a probe changed or did not."""
    off_s, error_s, total_s = steps
    spread_s = np.hypot(error_s, tried * total_s)
    same = -0.5 * np.square(off_s / spread_s) - np.log(spread_s * math.sqrt(2 * math.pi))
    scale_s = _CHANGED_BY * np.hypot(error_s, prior.usual * total_s)
    changed = -np.log1p(np.square(off_s / scale_s)) - np.log(math.pi * scale_s)
    return np.asarray(np.logaddexp(math.log(1 - _CHANGED) + same, math.log(_CHANGED) + changed))


def _steps(probe: Deviations) -> Floats:
    """Return each difference from one night to the next, its error, and the total; a step counts only once."""
    errors = np.hypot(probe.stderr_s[1:], probe.stderr_s[:-1]) / 2**0.5
    return np.stack([np.diff(probe.deviation_s) / 2**0.5, errors, np.full(len(errors), probe.total_s)])
