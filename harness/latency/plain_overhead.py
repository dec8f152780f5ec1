"""The overhead as S1.4 has it: `a * input_bytes + b * output_bytes + c`, by ordinary least squares.

Nothing is weighted, bounded or made robust: the three numbers are those of scikit-learn's `LinearRegression` on the
null probes that hold one auxiliary layer and nothing else. The time of that layer, and of a device's own memory, is in
a, b and c. `harness.latency.overhead` has terms for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.array_types import Floats
from harness.errors import IllConditionedDesign
from harness.latency.drift import SLOW_DRIFT
from harness.latency.overhead import COLUMNS, MAX_CONDITION, PLAIN_COLUMNS, Coefficient, Overhead
from harness.measure.summary import MAD_TO_SIGMA, STUDENT_95, Z_95, Measurement
from harness.probe.overhead_terms import OverheadTerms

_FREE = ("auxiliary_input_bytes", "auxiliary_output_bytes", "loaded_bytes", "stored_bytes")
_LEAST_DENOMINATOR = 1e-6


def is_plain_null(terms: OverheadTerms) -> bool:
    """Whether a null probe is one auxiliary layer between one input and one output, as S1 has it."""
    others = replace(terms, input_bytes=0, output_bytes=0, **dict.fromkeys(_FREE, 0))
    return others in (OverheadTerms(auxiliaries=1), OverheadTerms(auxiliaries=1, accesses=2))


def fit_plain_overhead(nulls: Sequence[tuple[OverheadTerms, Measurement]], drift: float = SLOW_DRIFT) -> Overhead:
    """Fit a, b and c by least squares; all other coefficients are zero.

    Their errors are those of White, corrected for leverage (HC3): they hold although long totals scatter more, and
    include what a plain model leaves unexplained. Raises IllConditionedDesign where the sizes do not separate a, b, c.
    """
    from sklearn.linear_model import LinearRegression

    chosen = [(terms, measurement) for terms, measurement in nulls if is_plain_null(terms)]
    sizes = np.array([(terms.input_bytes, terms.output_bytes) for terms, _ in chosen], float).reshape(-1, 2)
    total = np.array([measurement.latency_s for _, measurement in chosen])
    condition = _check(sizes)
    units = np.linalg.norm(sizes, axis=0)  # bytes are so many that the solver would treat seconds per byte as rounding
    model = LinearRegression().fit(sizes / units, total)
    values = np.array([float(model.intercept_), *(model.coef_ / units)])
    design = np.column_stack((np.ones(len(total)), sizes))
    expected = design @ values
    spread = _errors(design / np.array([1.0, *units]), total - expected) / np.outer([1.0, *units], [1.0, *units])
    covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
    at = [COLUMNS.index(name) for name in PLAIN_COLUMNS]
    covariance[np.ix_(at, at)] = spread
    quantile = STUDENT_95[min(len(total) - len(at) - 1, len(STUDENT_95) - 1)]
    coefficients = {name: Coefficient(0.0, 0.0, 0.0, 0.0) for name in COLUMNS}
    for number, name in enumerate(PLAIN_COLUMNS):
        value = float(values[number])
        stderr = math.sqrt(float(spread[number, number]))
        half = math.hypot(quantile * stderr, Z_95 * drift * value)
        coefficients[name] = Coefficient(value, math.hypot(stderr, drift * value), value - half, value + half)
    r2 = float(model.score(sizes / units, total))
    return Overhead(
        coefficients=coefficients,
        covariance=tuple(tuple(map(float, row)) for row in covariance),
        least_squares={name: coefficients[name].value for name in PLAIN_COLUMNS},
        r2=r2,
        least_squares_r2=r2,
        condition=condition,
        scatter=float(MAD_TO_SIGMA * np.median(abs(total - expected) / total)),
        probes=len(total),
        drift=drift,
        model="plain",
    )


def _check(sizes: Floats) -> float:
    """Return the condition number of the design with columns of unit length; raises IllConditionedDesign."""
    step = "Measure null probes whose input and output sizes vary independently, as `harness profile` plans them"
    if len(sizes) <= len(PLAIN_COLUMNS):
        why = f"{len(sizes)} null probes of one auxiliary layer cannot separate a, b and c"
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=step)
    design = np.column_stack((np.ones(len(sizes)), sizes))
    singular = np.linalg.svd(design / np.maximum(np.linalg.norm(design, axis=0), 1e-300), compute_uv=False)
    condition = float(singular[0] / max(singular[-1], 1e-300))
    if condition > MAX_CONDITION:
        why = f"Their sizes vary together (condition number {condition:.3g})"
        raise IllConditionedDesign("The null probes do not separate a, b and c", why=why, next_step=step)
    return condition


def _errors(design: Floats, residual: Floats) -> Floats:
    """Return the covariance of coefficients by White's estimate, each residual divided by one minus its leverage."""
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.einsum("pi,ij,pj->p", design, inverse, design)
    honest = residual / np.maximum(1 - leverage, _LEAST_DENOMINATOR)
    found: Floats = inverse @ (design.T * honest**2) @ design @ inverse
    return found
