"""Robust non-negative least squares: Huber weights, reweighting and pivoting, shared by both solvers.

A solver supplies the linear algebra. `robust_fits` here solves hundreds of small systems with one design at once,
which is fast only as stacked dense matrices. `sparse_system` solves one system of thousands of columns, which fits
into memory only as a sparse matrix. All functions here take a stack of fits, of shape (fits, columns).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.measure.summary import MAD_TO_SIGMA

HUBER = 1.345
"""Residuals beyond this many standard deviations lose weight: 95 % efficiency where errors are normal."""
_REWEIGHTINGS = 30
_FULL_EXCHANGES = 3
_MOST_EXCHANGES = 60
_SLACK = 1e-11
_SMALLEST_SPREAD = 1e-12
_AGREEMENT = 1e-7
"""Change relative to a fit's largest value at which the fit is settled: refits only serve percentiles."""


class NormalEquations(Protocol):
    """The normal equations of a stack of least-squares fits with columns of about unit length."""

    def solve(self, fits: Ints, free: Mask) -> Floats:
        """Return the solutions over the free columns, zero elsewhere."""
        ...

    def slope(self, fits: Ints, values: Floats) -> Floats:
        """Return the gradient of half the squared error."""
        ...


def robust_spread(residuals: Floats) -> Floats:
    """Return the robust standard deviation about zero along the last axis, which stays with length 1."""
    spread: Floats = MAD_TO_SIGMA * np.median(abs(residuals), axis=-1, keepdims=True)
    return spread


def huber_weights(residuals: Floats, spread: Floats | float) -> Floats:
    """Return the weights of squared residuals: 1 up to HUBER times the spread, less beyond."""
    return np.minimum(1.0, HUBER * spread / np.maximum(abs(residuals), 1e-300))


def reweight(values: Floats, refit: Callable[[Ints, Floats], Floats], tolerance: Callable[[Floats], Floats]) -> Floats:
    """Refit each fit until none of its values changes by more than its tolerance, at most _REWEIGHTINGS times.

    `refit` takes the indices of the fits still due and their values, and returns new values by weights from the old.
    `tolerance` returns the change allowed to each value.
    """
    due = np.arange(len(values))
    for _ in range(_REWEIGHTINGS):
        renewed = refit(due, values[due])
        changed = abs(renewed - values[due]) > tolerance(renewed)
        values[due] = renewed
        due = due[changed.any(axis=1)]
        if not len(due):
            break
    return values


def pivot(equations: NormalEquations, goal: Floats, free: Mask, bounded: Mask | bool = True) -> Floats:
    """Solve with `bounded` columns not below zero by block principal pivoting (Portugal, Judice and Vicente 1994).

    `goal` is the right-hand side and `free` the columns to start off their bound, both of shape (fits, columns). All
    columns that violate a condition change sides while that leaves fewer violations; after that the last one alone.
    """
    fits, columns = goal.shape
    slack = _SLACK * (abs(goal).max(axis=1, keepdims=True, initial=0.0) + 1e-300)
    fewest, tries = np.full(fits, columns + 1), np.full(fits, _FULL_EXCHANGES)
    values = np.zeros((fits, columns))
    due = np.arange(fits)
    for _ in range(_MOST_EXCHANGES + columns):
        values[due] = equations.solve(due, free[due])
        slope = equations.slope(due, values[due])
        wrong = np.where(free[due], values[due] < -slack[due], slope < -slack[due]) & bounded
        count = wrong.sum(axis=1)
        better = count < fewest[due]
        tries[due] = np.where(better, _FULL_EXCHANGES, tries[due] - 1)
        fewest[due] = np.minimum(count, fewest[due])
        last = np.zeros_like(wrong)
        last[np.arange(len(due)), columns - 1 - np.argmax(wrong[:, ::-1], axis=1)] = True
        free[due] ^= wrong & (last | (tries[due] >= 0)[:, None])
        due = due[count > 0]
        if not len(due):
            break
    return np.where(bounded, np.maximum(values, 0.0), values)


def robust_fits(design: Floats, totals: Floats, weight: Floats) -> Floats:
    """Return Huber estimates for `totals`, of shape (fits, probes), by iteratively reweighted least squares.

    `design` has the shape (probes, columns), `weight` is one over each probe's error. Returns (fits, columns), none
    of them negative. The weighted design must have full rank. The refits of an interval differ only in their totals: as
    one stack they take milliseconds, one by one through `sparse_system` they take seconds.
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
