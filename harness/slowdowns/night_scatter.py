"""How much the totals of probes scatter between nights beyond the errors of their samples, by Bayes' rule.

In a pair of nights, the total of a probe differs by d, of which its samples explain a standard error e. For a scatter s
(a fraction of the total T), the likelihood of d is a mixture:

    with probability 0.9   d is normal with standard deviation (e^2 + (s T)^2)^(1/2): nothing changed
    with probability 0.1   d has a Cauchy distribution ten times as wide as usual: the probe became slower or faster

All pairs of successive nights of all probes, and a prior about the usual value, give the posterior of s on a
logarithmic grid. A second grid covers the part of the first that has noticeable probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import t as student

from harness.array_types import Floats

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
    log_posterior = _log_posterior(tried, steps, prior)
    noticeable = np.flatnonzero(log_posterior > log_posterior.max() + _HELD)
    first, last = max(0, noticeable[0] - 1), min(_STEPS - 1, noticeable[-1] + 1)
    tried = np.geomspace(tried[first], tried[last], _STEPS)
    log_posterior = _log_posterior(tried, steps, prior)
    return Scatter(tried, np.exp(log_posterior - logsumexp(log_posterior)))


def _log_posterior(tried: Floats, steps: Floats, prior: Prior) -> Floats:
    """Return the logarithms of posterior probabilities, up to a constant."""
    log_posterior = prior.log_density(tried)
    for part in np.array_split(steps, math.ceil(steps.shape[1] / _AT_ONCE) or 1, axis=1):
        log_posterior += np.sum(_log_likelihood(part, tried[:, None], prior), axis=1)
    return np.asarray(log_posterior)


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
