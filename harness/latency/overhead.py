"""The overhead of host and transfers by regression on null probes (S1.3, S1.4).

`total = a * input_bytes + b * output_bytes + c` plus the null probes' own operators (auxiliary layers and slices, see
`OverheadTerms`) is fitted twice: by plain least squares, and robustly with coefficients that cannot be negative. The
robust fit is used; the plain one is shown for comparison.

Intervals cover three errors: sampling and the model, both measured by the scatter of the null probes about the fit,
and drift, which all null probes of a campaign share and no scatter shows (see `drift`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from harness.array_types import Array, Floats
from harness.errors import IllConditionedDesign
from harness.latency.drift import SLOW_DRIFT, level_error, level_factors, levelled
from harness.latency.robust import robust_fits
from harness.measure.summary import MAD_TO_SIGMA, STUDENT_95, Z_95, Measurement, summarise
from harness.probe.overhead_terms import ADDED_TERMS, LATER_TERMS, TERM_NAMES, OverheadTerms
from harness.samples import Sample

COLUMNS = ("runs", *TERM_NAMES)
"""The order of coefficients: `runs` is c, `input_bytes` is a, `output_bytes` is b."""
PLAIN_COLUMNS = ("runs", "input_bytes", "output_bytes")
"""The coefficients of S1.4; the others are further terms."""
OverheadModel = Literal["plain", "extended"]
"""Only the three coefficients of S1.4, or with further terms."""
_MERGED = ("stored_bytes", "loaded_bytes", "last_bytes", "accesses", *LATER_TERMS, "auxiliary_input_bytes")
"""Columns whose time becomes part of a, b and c where the null probes do not separate them. Only probes that slice
their input separate what an auxiliary layer reads, the last column, from a, and a device may refuse all of these."""
MAX_CONDITION = 100.0
MODEL_NOISE = 0.01
"""Relative error added to every total's standard error, so that none dominates."""
_REFITS = 400
_CONFIDENCE = 95.0
_ROUNDING = 1e-18
_WITHIN_ONE_SIGMA = 0.6827
_SIGNIFICANT = 0.01
_amounts_of = attrgetter(*TERM_NAMES)
_FREE = ("auxiliary_input_bytes", "auxiliary_output_bytes", "loaded_bytes", "stored_bytes")
_LEAST_DENOMINATOR = 1e-6
_VARY = "Measure null probes whose input and output sizes vary independently, as `harness profile` plans them"


@dataclass(frozen=True)
class Coefficient:
    """A fitted coefficient with its standard error and 95 % interval; the unit is that of its term."""

    value: float
    stderr: float
    low: float
    high: float


@dataclass(frozen=True)
class Overhead:
    """The fitted overhead.

    `covariance` is over `COLUMNS` and holds within the campaign: `drift`, the relative error that all its totals
    share, cancels in differences and is only in the coefficients' errors. `least_squares` is the plain fit beside the
    robust one; `scatter` is the robust relative spread of the null probes about the fit. `misfit` is the part of it
    that measured errors do not explain: how far the additive model is off on this device. `misfit_p` is the
    probability that an additive device scatters this much. In a `plain` fit all but a, b and c are zero.
    """

    coefficients: Mapping[str, Coefficient]
    covariance: tuple[tuple[float, ...], ...]
    least_squares: Mapping[str, float]
    r2: float
    least_squares_r2: float
    condition: float
    scatter: float
    probes: int
    misfit: float = 0.0
    misfit_p: float = 1.0
    drift: float = 0.0
    model: OverheadModel = "extended"

    @property
    def confounded(self) -> tuple[str, ...]:
        """Columns that a, b and c contain because the null probes do not separate them."""
        return tuple(name for name in _MERGED if name not in self.least_squares)

    @property
    def a(self) -> Coefficient:
        """Seconds per input byte."""
        return self.coefficients["input_bytes"]

    @property
    def b(self) -> Coefficient:
        """Seconds per output byte."""
        return self.coefficients["output_bytes"]

    @property
    def c(self) -> Coefficient:
        """Seconds per run."""
        return self.coefficients["runs"]

    @property
    def contradicts_model(self) -> bool:
        """Whether the null probes contradict the additive model, beyond chance and beyond the model noise."""
        return self.misfit_p < _SIGNIFICANT and self.misfit > MODEL_NOISE

    def of(self, row: Sequence[float]) -> tuple[float, float]:
        """Return the seconds, and their variance, of a row of amounts in the order of `COLUMNS`."""
        value = sum(self.coefficients[name].value * amount for name, amount in zip(COLUMNS, row, strict=True))
        used = [(at, amount) for at, amount in enumerate(row) if amount]
        variance = sum(left * right * self.covariance[i][j] for i, left in used for j, right in used)
        return value, max(0.0, variance)

    def exchange(self, input_bytes: int, output_bytes: int) -> tuple[float, float]:
        """Return in how many seconds a device moves these bytes between its own memory and its core, with the variance.

        Both are 0 without a memory of its own. The layers of a network hide it if they take longer.
        """
        return self.of(row_of(OverheadTerms(loaded_bytes=input_bytes, stored_bytes=output_bytes), runs=0))


def complete(overhead: Overhead) -> Overhead:
    """Return a fit of an earlier version, which lacks terms of which it had no probes, with zeros for these."""
    known = len(overhead.covariance)
    if [*COLUMNS[known:]] != [name for name in ADDED_TERMS if name not in overhead.coefficients]:
        return overhead
    zeros = (0.0,) * (len(COLUMNS) - known)
    return replace(
        overhead,
        coefficients={**dict.fromkeys(COLUMNS[known:], Coefficient(*[0.0] * 4)), **overhead.coefficients},
        covariance=(*((*row, *zeros) for row in overhead.covariance), *((0.0,) * len(COLUMNS) for _ in zeros)),
    )


def row_of(terms: OverheadTerms, runs: int = 1) -> tuple[float, ...]:
    """Return a probe's amounts in the order of `COLUMNS`."""
    return (float(runs), *map(float, _amounts_of(terms)))


def levelled_nulls(
    samples: Mapping[str, Sequence[Sample]],
    terms: Mapping[str, OverheadTerms],
    clock: str,
    slow_drift: float = SLOW_DRIFT,
) -> tuple[list[tuple[OverheadTerms, Measurement]], float]:
    """Return null probes as if all rounds had been equally slow, and the relative error that all of them share.

    That error allows for `slow_drift`, which is 0 if the rounds are at random times over a span longer than any drift.
    """
    factors = level_factors(samples, clock)
    nulls = [(terms[probe], summarise(levelled(taken, factors), clock)) for probe, taken in samples.items() if taken]
    return nulls, math.hypot(level_error(factors), slow_drift)


def fit_overhead(
    nulls: Sequence[tuple[OverheadTerms, Measurement]], seed: int = 0, drift: float = SLOW_DRIFT
) -> Overhead:
    """Fit a, b, c and the null probes' own operators.

    Intervals are percentiles over refits to redrawn totals, which stay valid where a coefficient is at its bound of
    zero and where long totals scatter more. `drift` is the relative standard error that all totals share. A column of
    `_MERGED` is left out if the null probes cannot separate it from a, b and c, and its time becomes part of them.
    Raises IllConditionedDesign where the sizes do not separate the others. Noise only makes intervals wider.
    """
    design = np.array([row_of(terms) for terms, _ in nulls]).reshape(-1, len(COLUMNS))
    total = np.array([measurement.latency_s for _, measurement in nulls])
    used = np.flatnonzero(design.any(axis=0))
    stderr = np.array([min(measurement.stderr_s, measurement.latency_s) for _, measurement in nulls])
    weight = 1 / np.hypot(stderr, MODEL_NOISE * total)
    used, condition = _separable(design, total, used)
    fitted = robust_fits(design[:, used], total[None], weight)[0]
    draws = _refits(design[:, used], total, weight, fitted, np.random.default_rng(seed))
    residual = total - design[:, used] @ fitted
    misfit, misfit_p = _misfit(residual, total, stderr, len(used))
    covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
    covariance[np.ix_(used, used)] = np.cov(draws, rowvar=False).reshape(len(used), len(used))
    coefficients = {name: Coefficient(0.0, 0.0, 0.0, 0.0) for name in COLUMNS} | {
        COLUMNS[column]: _coefficient(float(fitted[at]), draws[:, at], drift) for at, column in enumerate(used)
    }
    plain, plain_r2 = _least_squares(design[:, used], total, weight)
    return Overhead(
        coefficients=coefficients,
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        least_squares={COLUMNS[column]: float(plain[at]) for at, column in enumerate(used)},
        r2=_r2(total, design[:, used] @ fitted, weight),
        least_squares_r2=plain_r2,
        condition=condition,
        scatter=float(MAD_TO_SIGMA * np.median(abs(residual) / total)),
        probes=len(nulls),
        misfit=misfit,
        misfit_p=misfit_p,
        drift=drift,
    )


def _coefficient(value: float, draws: Floats, drift: float) -> Coefficient:
    """Return a coefficient with percentiles of its refits as its interval, which an independent drift makes longer."""
    low, high = np.percentile(draws, [50 - _CONFIDENCE / 2, 50 + _CONFIDENCE / 2])
    below, above = (math.hypot(max(0.0, float(side)), Z_95 * drift * value) for side in (value - low, high - value))
    stderr = math.hypot(float(np.std(draws, ddof=1)), drift * value)
    return Coefficient(value, stderr, max(0.0, value - below), value + above)


def _separable(design: Floats, total: Floats, used: Array) -> tuple[Array, float]:
    """Return the columns that the design separates, and its condition number with columns of unit length.

    Which columns the probes separate depends on what they contain, not on how well each one was measured.
    """
    names = [COLUMNS[column] for column in used]
    if len(design) <= len(used) or not {"runs", "input_bytes", "output_bytes"} <= set(names):
        why = f"{len(design)} null probes cannot separate {', '.join(names) or 'any terms'}"
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=_VARY)
    condition, shares = _condition(design[:, used], 1 / total)
    if condition > MAX_CONDITION:
        together = [name for name, share in zip(names, shares, strict=True) if share > 0.3]
        mergeable = _MERGED if "slices" not in names else _MERGED[:-1]
        merged = next((name for name in mergeable if name in together), None)
        if merged is not None:
            return _separable(design, total, used[used != COLUMNS.index(merged)])
        varied, *others = [name for name in together if name != "runs"] or ["input_bytes"]
        sizes = design[:, COLUMNS.index(varied)]
        step = (
            f"Add null probes that vary {varied} from {max(1, min(sizes)):.0f} to {4 * max(sizes):.0f}"
            f" while {' and '.join(others) or 'the other sizes'} stay constant"
        )
        why = f"{' and '.join(together)} vary together (condition number {condition:.3g})"
        raise IllConditionedDesign("a, b and c cannot be fitted", why=why, next_step=step)
    return used, condition


def _condition(design: Floats, weight: Floats) -> tuple[float, Floats]:
    """Return the condition number of a weighted design, and the shares of columns in what it separates least."""
    scaled = design * weight[:, None]
    _, singular, right = np.linalg.svd(scaled / np.maximum(np.linalg.norm(scaled, axis=0), 1e-300))
    return float(singular[0] / max(singular[-1], 1e-300)), abs(right[-1])


def _refits(design: Floats, total: Floats, weight: Floats, fitted: Floats, random: np.random.Generator) -> Floats:
    """Return fits to totals drawn about the fitted ones, with the robust spread of the weighted residuals.

    The spread excludes as many of the smallest residuals as there are columns: the fit made them small. The ratio of
    Student's to the normal quantile widens the draws for the degrees of freedom.
    """
    from scipy.stats import t

    expected = design @ fitted
    columns = design.shape[1]
    residual = np.sort(abs(total - expected) * weight)
    freedom = len(total) - columns
    spread = MAD_TO_SIGMA * float(np.median(residual[columns:])) * float(t.ppf(0.975, freedom)) / Z_95
    noise = random.standard_normal((_REFITS, len(total))) * spread / weight
    return robust_fits(design, expected + noise, weight)


def _misfit(residual: Floats, total: Floats, stderr: Floats, columns: int) -> tuple[float, float]:
    """Return the relative scatter that measured errors do not explain, and its probability on an additive device.

    The probability is a binomial test of how many probes are further from the fit than their standard error: a few
    disturbed probes do not decide it.
    """
    from scipy.stats import binom

    beyond = int(np.count_nonzero(abs(residual) > stderr))
    likely = float(binom.sf(beyond - 1, len(residual), 1 - _WITHIN_ONE_SIGMA))
    # Each column takes one degree of freedom from the residuals.
    spread = MAD_TO_SIGMA * float(np.median(np.sort(abs(residual) / total)[columns // 2 :]))
    explained = float(np.median(stderr / total))
    return float(np.sqrt(max(0.0, spread**2 - explained**2))), likely


def _least_squares(design: Floats, total: Floats, weight: Floats) -> tuple[Floats, float]:
    from sklearn.linear_model import LinearRegression

    # Columns of bytes are so much larger than that of runs that the solver would treat it as rounding.
    scale = np.linalg.norm(design * weight[:, None], axis=0)
    model = LinearRegression(fit_intercept=False).fit(design / scale, total, sample_weight=weight**2)
    plain: Floats = model.coef_ / scale
    return plain, _r2(total, design @ plain, weight)


def _r2(total: Floats, predicted: Floats, weight: Floats) -> float:
    """Return the share of the weighted variance that the fit explains; 1 where there is no variance."""
    centre = np.average(total, weights=weight**2)
    unexplained = float(np.sum((weight * (total - predicted)) ** 2))
    variance = float(np.sum((weight * (total - centre)) ** 2))
    if variance <= _ROUNDING * float(np.sum((weight * total) ** 2)):
        return 1.0
    return 1 - unexplained / variance


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
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=_VARY)
    condition, _ = _condition(design, np.ones(len(design)))
    if condition > MAX_CONDITION:
        why = f"Their sizes vary together (condition number {condition:.3g})"
        raise IllConditionedDesign("The null probes do not separate a, b and c", why=why, next_step=_VARY)
    return condition


def _white_covariance(design: Floats, residual: Floats) -> Floats:
    """Return the covariance of coefficients by White's estimate, each residual divided by one minus its leverage."""
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.einsum("pi,ij,pj->p", design, inverse, design)
    honest = residual / np.maximum(1 - leverage, _LEAST_DENOMINATOR)
    found: Floats = inverse @ (design.T * honest**2) @ design @ inverse
    return found
