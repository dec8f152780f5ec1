"""Hundreds of small robust fits over one design, with coefficients that cannot be negative.

The refits of an interval differ only in their totals: as one stack of dense matrices they take milliseconds, one by
one through `sparse_system` they take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.latency.robust import huber_weights, pivot, reweight, robust_spread

_SMALLEST_SPREAD = 1e-12
_AGREEMENT = 1e-7
"""Change relative to a fit's largest value at which the fit is settled: refits only serve percentiles."""


def robust_fits(design: Floats, totals: Floats, weight: Floats) -> Floats:
    """Return Huber estimates for `totals`, of shape (fits, probes), by iteratively reweighted least squares.

    `design` has the shape (probes, columns), `weight` is one over each probe's error. Returns (fits, columns), none
    of them negative. The weighted design must have full rank.
    """
    scale = np.linalg.norm(design * weight[:, None], axis=0)
    scaled, wanted = design * weight[:, None] / scale, totals * weight

    def refit(due: Ints, values: Floats) -> Floats:
        residuals = wanted[due] - values @ scaled.T
        spread = np.maximum(_SMALLEST_SPREAD, robust_spread(residuals))
        return _nonnegative(scaled, wanted[due], huber_weights(residuals, spread))

    first = _nonnegative(scaled, wanted, np.ones_like(wanted))
    values = reweight(first, refit, lambda found: _AGREEMENT * abs(found).max(axis=1, keepdims=True))
    fitted: Floats = values / scale
    return fitted


@dataclass(frozen=True)
class _Stack:
    """Normal equations as stacked dense matrices."""

    gram: Floats
    goal: Floats

    def solve(self, fits: Ints, free: Mask) -> Floats:
        both = free[:, :, None] & free[:, None, :]
        bound = ~free[:, :, None] & np.eye(free.shape[1], dtype=bool)
        goal = np.where(free, self.goal[fits], 0.0)[..., None]
        solved: Floats = np.linalg.solve(np.where(both, self.gram[fits], 0.0) + bound, goal)[..., 0]
        return solved

    def slope(self, fits: Ints, values: Floats) -> Floats:
        slope: Floats = np.einsum("fij,fj->fi", self.gram[fits], values) - self.goal[fits]
        return slope


def _nonnegative(design: Floats, totals: Floats, trust: Floats) -> Floats:
    stack = _Stack(np.einsum("pi,fp,pj->fij", design, trust, design, optimize=True), (trust * totals) @ design)
    return pivot(stack, stack.goal, np.ones(stack.goal.shape, dtype=bool))
