"""Many unknown times from many totals: one large sparse, weighted, robust, non-negative least-squares system.

Every equation says `total = sum of amount * unknown`, with a standard error. A campaign has thousands of unknowns, of
which each equation holds a few: the stacked dense matrices of `robust_fits` would not fit into memory.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu

from harness.array_types import Floats, Ints, Mask
from harness.errors import IllConditionedDesign
from harness.latency.grouped_inverse import GroupedInverse, inverse
from harness.latency.robust import huber_weights, pivot, reweight, robust_spread
from harness.latency.unknowns import Unknown

MAX_CONDITION = 1e4
"""Of the weighted design with columns of unit length; beyond it, rounding and noise decide the unknowns."""
_POWER_STEPS = 30
_SHARE = 0.2
_SPAN = 10.0
_RIDGE = 1e-13
_DETERMINED = 1e-6
_FEWEST_RESIDUALS = 4
_AGREEMENT = 1e-9
"""Relative change of every value at which the solution is settled: short layers count as much as long ones."""


@dataclass(frozen=True)
class Equation:
    """A measured total in seconds with its standard error, and the amount of each unknown in it."""

    amounts: Mapping[Unknown, float]
    total_s: float
    stderr_s: float


@dataclass(frozen=True)
class Solution:
    """The values of the unknowns.

    `values` are not negative, except those of unknowns that may be. `covariance` has the order of `unknowns` and
    ignores the bounds. `residuals` are in standard errors, one for each equation; `redundant` marks the equations that
    others could contradict. `scale` is the robust spread of the residuals of these: 1 where totals scatter as much as
    their standard errors say.
    """

    unknowns: tuple[Unknown, ...]
    values: Floats
    covariance: GroupedInverse
    residuals: Floats
    redundant: Mask
    scale: float
    condition: float

    def __contains__(self, unknown: Unknown) -> bool:
        return unknown in self._positions

    def index(self, unknown: Unknown) -> int:
        """Return the position of an unknown; raises KeyError."""
        return self._positions[unknown]

    def sum_of(self, unknowns: Iterable[Unknown]) -> float:
        """Return the sum of those of these unknowns that the system has."""
        return sum(float(self.values[self._positions[one]]) for one in unknowns if one in self._positions)

    @functools.cached_property
    def variances(self) -> Floats:
        """The diagonal of the covariance."""
        return self.covariance.of_each(csr_array(eye_array(len(self.unknowns))))

    @functools.cached_property
    def _positions(self) -> Mapping[Unknown, int]:
        return {unknown: at for at, unknown in enumerate(self.unknowns)}


def solve(equations: Sequence[Equation]) -> Solution:
    """Solve for all unknowns together.

    Standard errors grow by `scale` where it exceeds 1. Raises IllConditionedDesign where the equations do not
    determine each unknown, and names those that they cannot separate.
    """
    found = {unknown for equation in equations for unknown, amount in equation.amounts.items() if amount}
    unknowns = tuple(sorted(found, key=str))
    design = _design(equations, unknowns)
    total = np.array([equation.total_s for equation in equations])
    stderr = np.array([equation.stderr_s for equation in equations])
    condition = _check(_structure(design, total), unknowns)
    lengths = np.sqrt(np.asarray((design.multiply(design)).T @ (1 / stderr**2))).ravel()
    scaled, wanted = _scaled(design, 1 / stderr, 1 / lengths), total / stderr
    bounded = np.array([not one.may_be_negative for one in unknowns])
    equations_of = np.diff(design.indptr)
    # How much of each equation's fitted total its own measured total decides.
    leverage = np.clip(inverse(_normal(scaled), equations_of).of_each(csr_array(scaled)), 0.0, 1.0)
    redundant = leverage < 1 - _DETERMINED

    def weigh(values: Floats) -> tuple[Floats, float, Floats]:
        residuals = wanted - scaled @ values
        # A fit makes its residuals smaller than the errors are, most where one equation decides almost alone.
        honest = residuals / np.sqrt(np.maximum(1 - leverage, _DETERMINED))
        held = honest[redundant]
        scale = float(robust_spread(held)[0]) if len(held) >= _FEWEST_RESIDUALS else 1.0
        return residuals, scale, np.where(redundant, huber_weights(honest, max(1.0, scale)), 1.0)

    def fit(trust: Floats, start: Mask) -> Floats:
        weight = np.sqrt(trust)
        return _bounded(_scaled(scaled, weight), wanted * weight, bounded, start)

    first = fit(np.ones(len(total)), np.ones(len(unknowns), bool))
    values = reweight(
        first[None],
        lambda _, before: fit(weigh(before[0])[2], before[0] != 0)[None],
        lambda found: _AGREEMENT * abs(found),
    )[0]
    residuals, scale, trust = weigh(values)
    weighted = _normal(_scaled(scaled, np.sqrt(trust)))
    covariance = inverse(weighted, equations_of).scaled(lengths, max(1.0, scale) ** 2)
    return Solution(unknowns, values / lengths, covariance, residuals, redundant, scale, condition)


def _design(equations: Sequence[Equation], unknowns: Sequence[Unknown]) -> csc_array:
    place = {unknown: at for at, unknown in enumerate(unknowns)}
    cells = [
        (row, place[unknown], amount)
        for row, equation in enumerate(equations)
        for unknown, amount in equation.amounts.items()
        if amount
    ]
    rows, columns, amounts = zip(*cells, strict=True) if cells else ((), (), ())
    return csc_array((np.array(amounts, float), (rows, columns)), shape=(len(equations), len(unknowns)))


def _structure(design: csc_array, total: Floats) -> csc_array:
    """Return the design weighted by totals, with columns of unit length.

    Which unknowns the probes separate depends on what they contain, not on how often each one was run.
    """
    typical = np.clip(abs(total), *(np.median(abs(total)) * np.array([1 / _SPAN, _SPAN])))
    structure = _scaled(design, 1 / np.maximum(typical, 1e-300))
    return _scaled(structure, np.ones(len(total)), 1 / _column_lengths(structure))


def _column_lengths(design: csc_array) -> Floats:
    lengths: Floats = np.sqrt(np.asarray(design.multiply(design).sum(axis=0)).ravel())
    return lengths


def _scaled(design: csc_array, by_row: Floats, by_column: Floats | float = 1.0) -> csc_array:
    columns = np.repeat(np.broadcast_to(by_column, design.shape[1:]), np.diff(design.indptr))
    scaled = design.data * by_row[design.indices] * columns
    return csc_array((scaled, design.indices, design.indptr), shape=design.shape)


def _normal(design: csc_array) -> csc_array:
    """Return the normal matrix, with a ridge so small that it only keeps the factorisation from failing."""
    return csc_array(design.T @ design + _RIDGE * eye_array(design.shape[1]))


@dataclass(frozen=True)
class _OneFit:
    """Normal equations of one fit as a sparse matrix."""

    normal: csc_array
    goal: Floats

    def solve(self, fits: Ints, free: Mask) -> Floats:  # noqa: ARG002 - there is one fit
        inside, values = np.flatnonzero(free[0]), np.zeros((1, len(self.goal)))
        if len(inside):
            values[0, inside] = splu(self.normal[:, inside][inside, :].tocsc()).solve(self.goal[inside])
        return values

    def slope(self, fits: Ints, values: Floats) -> Floats:  # noqa: ARG002 - there is one fit
        slope: Floats = (self.normal @ values[0] - self.goal)[None]
        return slope


def _bounded(design: csc_array, wanted: Floats, bounded: Mask, start: Mask) -> Floats:
    """Solve least squares with `bounded` values not below zero, from the `start` columns off their bound."""
    fit = _OneFit(_normal(design), design.T @ wanted)
    free = start | ~bounded if start.any() else np.ones(len(start), bool)
    values: Floats = pivot(fit, fit.goal[None], free[None], bounded)[0]
    return values


def _check(design: csc_array, unknowns: Sequence[Unknown]) -> float:
    """Return the condition number of a design with columns of unit length; raises IllConditionedDesign."""
    normal = _normal(design)
    factor = splu(normal)
    random = np.random.default_rng(0)
    vector = random.standard_normal(len(unknowns))
    largest = random.standard_normal(len(unknowns))
    for _ in range(_POWER_STEPS):  # the smallest eigenvalue by inverse iteration, the largest by power iteration
        vector = factor.solve(vector / np.linalg.norm(vector))
        largest = normal @ (largest / np.linalg.norm(largest))
    smallest = max(1 / float(np.linalg.norm(vector)) - _RIDGE, 0.0)
    condition = float(np.sqrt(np.linalg.norm(largest) / max(smallest, 1e-20)))
    if condition > MAX_CONDITION:
        share = abs(vector) / np.max(abs(vector))
        ranked = sorted(zip(unknowns, share, strict=True), key=lambda item: -item[1])
        together = [str(unknown) for unknown, part in ranked if part > _SHARE]
        shown = " and ".join(together[:3]) + (f" and {len(together) - 3} more" if len(together) > 3 else "")
        raise IllConditionedDesign(
            "The probes do not separate all layers",
            why=f"{shown} cannot be separated: every probe contains all or none of them"
            f" (condition number {min(condition, 1e10):.3g})",
            next_step=f"Measure a probe that contains {together[0]} without {together[-1]}",
        )
    return condition
