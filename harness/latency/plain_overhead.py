"""Fit the overhead as S1.4 has it: ordinary least squares of three coefficients, by scikit-learn."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.array_types import Floats
from harness.errors import IllConditionedDesign
from harness.latency.drift import SLOW_DRIFT
from harness.latency.overhead import COLUMNS, PLAIN_COLUMNS, Coefficient, Overhead
from harness.latency.overhead_fit import MAX_CONDITION, VARY, condition_of
from harness.measure.summary import MAD_TO_SIGMA, STUDENT_95, Z_95, Measurement
from harness.probe.overhead_terms import OverheadTerms

_FREE = ("auxiliary_input_bytes", "auxiliary_output_bytes", "loaded_bytes", "stored_bytes")
_LEAST_DENOMINATOR = 1e-6


def is_plain_null(terms: OverheadTerms) -> bool:
    """Whether a null probe is one auxiliary layer between one input and one output, as S1 has it."""
    others = replace(terms, input_bytes=0, output_bytes=0, **dict.fromkeys(_FREE, 0))
    return others in (OverheadTerms(auxiliaries=1), OverheadTerms(auxiliaries=1, accesses=2))


def fit_plain_overhead(nulls: Sequence[tuple[OverheadTerms, Measurement]], drift: float = SLOW_DRIFT) -> Overhead:
    """Fit a, b and c by scikit-learn's `LinearRegression` to null probes of one auxiliary layer (S1.4).

    Nothing is weighted, bounded or made robust; all other coefficients are zero. The time of that layer, and of a
    device's own memory, is in a, b and c.

    Their errors are those of White, corrected for leverage (HC3): they hold although long totals scatter more, and
    include what a plain model leaves unexplained. Raises IllConditionedDesign where the sizes do not separate a, b, c.
    """
    from sklearn.linear_model import LinearRegression

    chosen = [(terms, measurement) for terms, measurement in nulls if is_plain_null(terms)]
    sizes = np.array([(terms.input_bytes, terms.output_bytes) for terms, _ in chosen], float).reshape(-1, 2)
    total = np.array([measurement.latency_s for _, measurement in chosen])
    design = np.column_stack((np.ones(len(total)), sizes))
    condition = _plain_condition(design)
    units = np.linalg.norm(sizes, axis=0)  # bytes are so many that the solver would treat seconds per byte as rounding
    model = LinearRegression().fit(sizes / units, total)
    values = np.array([float(model.intercept_), *(model.coef_ / units)])
    expected = design @ values
    by_column = np.array([1.0, *units])
    spread = _white_covariance(design / by_column, total - expected) / np.outer(by_column, by_column)
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


def _plain_condition(design: Floats) -> float:
    """Return the condition number of the design; raises IllConditionedDesign."""
    if len(design) <= len(PLAIN_COLUMNS):
        why = f"{len(design)} null probes of one auxiliary layer cannot separate a, b and c"
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=VARY)
    condition, _ = condition_of(design, np.ones(len(design)))
    if condition > MAX_CONDITION:
        why = f"Their sizes vary together (condition number {condition:.3g})"
        raise IllConditionedDesign("The null probes do not separate a, b and c", why=why, next_step=VARY)
    return condition


def _white_covariance(design: Floats, residual: Floats) -> Floats:
    """Return the covariance of coefficients by White's estimate, each residual divided by one minus its leverage."""
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.einsum("pi,ij,pj->p", design, inverse, design)
    honest = residual / np.maximum(1 - leverage, _LEAST_DENOMINATOR)
    found: Floats = inverse @ (design.T * honest**2) @ design @ inverse
    return found
