"""Robust non-negative least squares: Huber weights, reweighting and pivoting, shared by both solvers.

A solver supplies the linear algebra. `dense_fits` solves hundreds of small systems with one design at once, which is
fast only as stacked dense matrices. `sparse_system` solves one system of thousands of columns, which fits into memory
only as a sparse matrix. All functions here take a stack of fits, of shape (fits, columns).
"""

from __future__ import annotations

from collections.abc import Callable
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
