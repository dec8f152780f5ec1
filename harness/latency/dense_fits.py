"""Robust fits with coefficients that cannot be negative, of many totals over one design at once.

Refits by the hundred give intervals that hold at the bound of zero, too; one after the other they take seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.measure.summary import MAD_TO_SIGMA

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

_HUBER = 1.345
_REWEIGHTINGS = 30
_AGREEMENT = 1e-7
_SMALLEST_SPREAD = 1e-12
_NEGATIVE = 1e-11
_FULL_EXCHANGES = 3


def robust_fits(design: Array, totals: Array, weight: Array) -> Array:
    """Huber's estimates for `totals`, of shape (fits, probes), by iteratively reweighted least squares.

    `design` has the shape (probes, columns), `weight` is one over each probe's error. Returns (fits, columns), none
    of them negative. The weighted design must have full rank.
    """
    import numpy as np

    scale = np.linalg.norm(design * weight[:, None], axis=0)
    scaled, wanted = design * weight[:, None] / scale, totals * weight
    found = _nonnegative(scaled, wanted, np.ones_like(wanted))
    due = np.arange(len(totals))
    for _ in range(_REWEIGHTINGS):
        residual = abs(wanted[due] - found[due] @ scaled.T)
        spread = np.maximum(_SMALLEST_SPREAD, MAD_TO_SIGMA * np.median(residual, axis=1, keepdims=True))
        trust = np.minimum(1.0, _HUBER * spread / np.maximum(residual, 1e-300))
        renewed = _nonnegative(scaled, wanted[due], trust)
        change = abs(renewed - found[due]).max(axis=1)
        found[due] = renewed
        due = due[change > _AGREEMENT * abs(renewed).max(axis=1)]
        if not len(due):
            break
    fitted: Array = found / scale
    return fitted


def _nonnegative(design: Array, totals: Array, trust: Array) -> Array:
    """Non-negative least squares by block principal pivoting (Portugal, Judice and Vicente 1994), all fits at once.

    Coefficients are free or bound at zero. All that contradict this change sides together while that leaves fewer
    contradictions, else the last of them alone, which cannot go in circles.
    """
    import numpy as np

    fits, columns = len(totals), design.shape[1]
    gram = np.einsum("pi,fp,pj->fij", design, trust, design, optimize=True)
    moment = (trust * totals) @ design
    slack = _NEGATIVE * (abs(moment).max(axis=1, keepdims=True) + 1e-300)
    free = np.ones((fits, columns), dtype=bool)
    fewest, tries = np.full(fits, columns + 1), np.full(fits, _FULL_EXCHANGES)
    found = np.zeros((fits, columns))
    due = np.arange(fits)
    while len(due):
        found[due] = _solved(gram[due], moment[due], free[due])
        gradient = np.einsum("fij,fj->fi", gram[due], found[due]) - moment[due]
        wrong = np.where(free[due], found[due] < -slack[due], gradient < -slack[due])
        count = wrong.sum(axis=1)
        better = count < fewest[due]
        tries[due] = np.where(better, _FULL_EXCHANGES, tries[due] - 1)
        fewest[due] = np.minimum(count, fewest[due])
        alone = np.zeros_like(wrong)
        alone[np.arange(len(due)), columns - 1 - np.argmax(wrong[:, ::-1], axis=1)] = True
        free[due] ^= wrong & (alone | (tries[due] >= 0)[:, None])
        due = due[count > 0]
    return np.maximum(found, 0.0)


def _solved(gram: Array, moment: Array, free: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
    """Solutions of the normal equations over the free coefficients; the others are zero."""
    import numpy as np

    both = free[:, :, None] & free[:, None, :]
    bound = ~free[:, :, None] & np.eye(free.shape[1], dtype=bool)
    solved: Array = np.linalg.solve(np.where(both, gram, 0.0) + bound, np.where(free, moment, 0.0)[..., None])[..., 0]
    return solved
