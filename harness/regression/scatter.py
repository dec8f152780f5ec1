"""How far nights differ in which nothing changed, beyond what their samples explain.

As a part of the probes' totals, by Bayes' rule: what devices of a clock usually show is the prior, each probe's
difference from one night to the next a datum. A datum may also be one of a probe that did change, so that the few which
did have no say. Few nights of few probes leave much open; how much becomes the degrees of freedom of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, polygamma

Array = np.ndarray[Any, np.dtype[np.float64]]

USUAL = {"cpu": 0.01, "wall": 0.02, "device": 0.0001}
"""Scatter of a probe's total between nights by clock, as a fraction: assumptions, for when little is known."""
USUAL_DEVICE = {"cpu": 0.015, "wall": 0.03, "device": 0.0005}
"""The same of the device as a whole."""
USUAL_FREEDOM = 4.0
"""Degrees of freedom that the usual scatter counts as."""
_CHANGED = 0.1
"""Probability that a probe changed from one night to the next."""
_CHANGED_BY = 10.0
"""How far that takes it, as a multiple of what it usually scatters: the scale of Cauchy's distribution."""
_LOWEST, _HIGHEST, _STEPS = 0.03, 1.0, 160
_MANY = 1e6


@dataclass(frozen=True, eq=False)
class Moved:
    """How far off a probe was on some nights, with what error by its samples; scatter is a part of its total."""

    moved_s: Array
    stderr_s: Array
    total_s: float


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


def scatter_of(probes: Sequence[Moved], usual: float) -> Scatter:
    """The scatter of probes over nights, where the usual one is known.

    The posterior of its square is taken for a scaled inverse chi-squared one, as the prior is: the same harmonic mean,
    the same variance of its logarithm.
    """
    off_s, error_s, total_s = np.concatenate([np.zeros((3, 0)), *map(_steps, probes)], axis=1)
    tried = usual * np.geomspace(_LOWEST, max(_HIGHEST / usual, 1 / _LOWEST), _STEPS)
    held = -USUAL_FREEDOM * (np.log(tried) + usual**2 / (2 * tried**2))
    changed = math.log(_CHANGED) + _cauchy(off_s, _CHANGED_BY * np.hypot(error_s, usual * total_s))
    for at, scatter in enumerate(tried):
        same = math.log(1 - _CHANGED) + _normal(off_s, np.hypot(error_s, scatter * total_s))
        held[at] += float(np.sum(np.logaddexp(same, changed)))
    weight = np.exp(held - logsumexp(held))
    logarithm = 2 * np.log(tried)
    spread = float(weight @ np.square(logarithm - weight @ logarithm))
    return Scatter(float(weight @ tried**-2.0) ** -0.5, _freedom(spread))


def _steps(probe: Moved) -> Array:
    """From each night to the next: the difference, its error, and the total, so that a step counts once."""
    errors = np.hypot(probe.stderr_s[1:], probe.stderr_s[:-1]) / 2**0.5
    return np.stack([np.diff(probe.moved_s) / 2**0.5, errors, np.full(len(errors), probe.total_s)])


def _normal(off: Array, spread: Array) -> Array:
    return np.asarray(-0.5 * np.square(off / spread) - np.log(spread * math.sqrt(2 * math.pi)))


def _cauchy(off: Array, scale: Array) -> Array:
    return np.asarray(-np.log1p(np.square(off / scale)) - np.log(math.pi * scale))


def _freedom(variance: float) -> float:
    """Degrees of freedom of an inverse chi-squared distribution whose logarithm has this variance."""
    if variance <= float(polygamma(1, _MANY / 2)):
        return _MANY
    return float(brentq(lambda freedom: polygamma(1, freedom / 2) - variance, 1e-3, _MANY))
