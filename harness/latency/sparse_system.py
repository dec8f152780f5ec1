"""Many unknown times from many totals: one sparse, weighted, robust, non-negative least-squares system.

Every equation says `total = sum of amount * unknown`, with a standard error. Solved by Huber's weights around an
active set for the bounds, on the normal matrix with columns of unit length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import IllConditionedDesign
from harness.measure.summary import MAD_TO_SIGMA

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csc_array

    Array = np.ndarray[Any, np.dtype[np.float64]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]

MAX_CONDITION = 1e4
"""Of the weighted design with columns of unit length; beyond it the unknowns are a matter of rounding and noise."""
HUBER = 1.345
_REWEIGHTINGS = 30
_PIVOTINGS = 60
_POWER_STEPS = 30
_SHARE = 0.2
_SPAN = 10.0
_RIDGE = 1e-13
_DETERMINED = 1e-6


@dataclass(frozen=True)
class Equation:
    """A measured total in seconds with its standard error, and how much of each unknown it holds."""

    amounts: Mapping[str, float]
    total_s: float
    stderr_s: float


@dataclass(frozen=True)
class Solution:
    """The unknowns by name.

    `values` are never negative but for those that may be. `covariance` has the order of `names`, and is that of the
    unknowns without their bounds. `residuals` are in standard errors, one for each equation; `redundant` tells which
    equations others could contradict, and `scale` the robust spread of these residuals, 1 where totals scatter as much
    as their standard errors say.
    """

    names: tuple[str, ...]
    values: Array
    covariance: Array
    residuals: Array
    redundant: Mask
    scale: float
    condition: float

    def index(self, name: str) -> int:
        """Where an unknown stands; raises KeyError."""
        return self._places[name]

    @property
    def _places(self) -> Mapping[str, int]:
        found = self.__dict__.get("_index")
        if found is None:
            found = {name: at for at, name in enumerate(self.names)}
            object.__setattr__(self, "_index", found)
        return found


def solve(equations: Sequence[Equation], signed: Set[str] = frozenset()) -> Solution:
    """Solves for all unknowns at once; those in `signed` may come out negative.

    Standard errors are enlarged by `scale` where it exceeds 1. Raises IllConditionedDesign where the equations do
    not tell unknowns apart, and names these.
    """
    import numpy as np

    names = tuple(sorted({name for equation in equations for name, amount in equation.amounts.items() if amount}))
    design = _design(equations, names)
    total = np.array([equation.total_s for equation in equations])
    stderr = np.array([equation.stderr_s for equation in equations])
    lengths = _lengths(design, stderr)
    scaled = _weighted(design, 1 / stderr, 1 / lengths)
    # What the probes can tell is a matter of what they hold, not of how often each was run.
    typical = np.clip(abs(total), *(np.median(abs(total)) * np.array([1 / _SPAN, _SPAN])))
    structure = _weighted(design, 1 / np.maximum(typical, 1e-300), np.ones(len(names)))
    condition = _check(_unit_columns(structure), names)
    wanted = total / stderr
    trust = np.ones(len(total))
    bounded = np.array([name not in signed for name in names])
    values = np.zeros(len(names))
    leverage = _leverage(scaled, trust)
    redundant = leverage < 1 - _DETERMINED
    scale = 1.0
    for _ in range(_REWEIGHTINGS):
        weight = np.sqrt(trust)
        before, values = values, _bounded(_rows(scaled, weight), wanted * weight, bounded, values != 0)
        residuals = wanted - scaled @ values
        # A fit makes its residuals smaller than the errors are, most where an equation decides almost alone.
        honest = residuals / np.sqrt(np.maximum(1 - leverage, _DETERMINED))
        scale = _spread(honest[redundant])
        trust = np.where(redundant, np.minimum(1, HUBER * max(1.0, scale) / np.maximum(abs(honest), 1e-300)), 1.0)
        if np.allclose(values, before, rtol=1e-9, atol=0):
            break
    normal = _normal(_rows(scaled, np.sqrt(trust)))
    covariance = _inverse(normal) * max(1.0, scale) ** 2
    return Solution(
        names, values / lengths, covariance / np.outer(lengths, lengths),
        residuals, redundant, scale, condition,
    )  # fmt: skip


def _design(equations: Sequence[Equation], names: Sequence[str]) -> csc_array:
    import numpy as np
    from scipy.sparse import csc_array

    place = {name: at for at, name in enumerate(names)}
    cells = [
        (row, place[name], amount)
        for row, equation in enumerate(equations)
        for name, amount in equation.amounts.items()
        if amount
    ]
    rows, columns, amounts = zip(*cells, strict=True) if cells else ((), (), ())
    return csc_array((np.array(amounts, float), (rows, columns)), shape=(len(equations), len(names)))


def _lengths(design: csc_array, stderr: Array) -> Array:
    import numpy as np

    lengths: Array = np.sqrt(np.asarray((design.multiply(design)).T @ (1 / stderr**2))).ravel()
    return lengths


def _unit_columns(design: csc_array) -> csc_array:
    import numpy as np

    lengths = np.sqrt(np.asarray(design.multiply(design).sum(axis=0)).ravel())
    return _weighted(design, np.ones(design.shape[0]), 1 / lengths)


def _weighted(design: csc_array, by_row: Array, by_column: Array) -> csc_array:
    from scipy.sparse import csc_array, diags_array

    return csc_array(diags_array(by_row) @ design @ diags_array(by_column))


def _rows(design: csc_array, by_row: Array) -> csc_array:
    from scipy.sparse import csc_array, diags_array

    return csc_array(diags_array(by_row) @ design)


def _normal(design: csc_array) -> csc_array:
    """The normal matrix, with a trace on its diagonal by which one of any weights can be factorised."""
    from scipy.sparse import csc_array, eye_array

    return csc_array(design.T @ design + _RIDGE * eye_array(design.shape[1]))


def _inverse(normal: csc_array) -> Array:
    """Dense, by one sparse factorisation; a few thousand unknowns take seconds."""
    import numpy as np
    from scipy.sparse.linalg import splu

    inverse: Array = splu(normal).solve(np.eye(normal.shape[0]))
    return (inverse + inverse.T) / 2


def _leverage(design: csc_array, trust: Array) -> Array:
    """How much of each equation's fitted total its own measured total decides, from 0 to 1."""
    import numpy as np

    weighted = _rows(design, np.sqrt(trust))
    inverse = _inverse(_normal(weighted))
    leverage: Array = np.asarray((weighted @ inverse * weighted.toarray()).sum(axis=1)).ravel()
    return np.clip(leverage, 0.0, 1.0)


def _spread(residuals: Array) -> float:
    """Robust standard deviation of residuals about zero; 1 where there are too few to tell."""
    import numpy as np

    return MAD_TO_SIGMA * float(np.median(abs(residuals))) if len(residuals) > 3 else 1.0


def _bounded(design: csc_array, wanted: Array, bounded: Mask, start: Mask) -> Array:
    """Least squares with some values not below zero, by block pivoting: unknowns change sides until none is wrong.

    `start` tells which unknowns are believed to be off their bound. Where whole blocks circle, the last unknown alone
    changes sides, which ends (Portugal, Judice and Vicente 1994).
    """
    import numpy as np
    from scipy.sparse.linalg import splu

    normal, goal = _normal(design), design.T @ wanted
    free = start | ~bounded if start.any() else np.ones(len(start), bool)
    patience, fewest = 3, len(free) + 1
    values = np.zeros(len(free))
    tolerance = 1e-10 * max(1e-300, float(np.max(abs(goal), initial=0.0)))
    for _ in range(_PIVOTINGS + len(free)):
        values[:] = 0.0
        if free.any():
            inside = np.flatnonzero(free)
            values[inside] = splu(normal[:, inside][inside, :].tocsc()).solve(goal[inside])
        slope = normal @ values - goal
        wrong = np.flatnonzero(bounded & ((free & (values < 0)) | (~free & (slope < -tolerance))))
        if not len(wrong):
            break
        if len(wrong) < fewest:
            patience, fewest = 3, len(wrong)
        elif patience:
            patience -= 1
        else:
            wrong = wrong[-1:]
        free[wrong] = ~free[wrong]
    return np.where(bounded, np.maximum(values, 0.0), values)


def _check(design: csc_array, names: Sequence[str]) -> float:
    """The condition number of the scaled design; raises IllConditionedDesign beyond MAX_CONDITION."""
    import numpy as np
    from scipy.sparse.linalg import splu

    columns = len(names)
    normal = _normal(design)
    factor = splu(normal)  # the least eigenvalue by inverse iteration
    random = np.random.default_rng(0)
    vector = random.standard_normal(columns)
    largest = random.standard_normal(columns)
    for _ in range(_POWER_STEPS):
        vector = factor.solve(vector / np.linalg.norm(vector))
        largest = normal @ (largest / np.linalg.norm(largest))
    smallest = max(1 / float(np.linalg.norm(vector)) - _RIDGE, 0.0)
    condition = float(np.sqrt(np.linalg.norm(largest) / max(smallest, 1e-20)))
    if condition > MAX_CONDITION:
        share = abs(vector) / np.max(abs(vector))
        together = [
            name for name, part in sorted(zip(names, share, strict=True), key=lambda item: -item[1]) if part > _SHARE
        ]
        shown = " and ".join(together[:3]) + (f" and {len(together) - 3} more" if len(together) > 3 else "")
        raise IllConditionedDesign(
            "The probes do not tell all layers apart",
            why=f"{shown} only occur together (condition number {min(condition, 1e10):.3g})",
            next_step=f"Measure a probe that holds {together[0]} without {together[-1]}",
        )
    return condition
