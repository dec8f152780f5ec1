"""Fit the overhead of host and transfers by regression on null probes (S1.3).

The model is `total = a * input_bytes + b * output_bytes + c` plus the null probes' own operators (auxiliary layers
and slices, see `OverheadTerms`). It is fitted twice: by plain least squares, and robustly with coefficients that cannot
be negative. The robust fit is used; the plain one is shown for comparison.

Intervals cover three errors. The scatter of the null probes about the fit shows those of sampling and of the model.
Drift is common to all null probes of a campaign, so no scatter shows it (see `drift`).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.array_types import Array, Floats
from harness.errors import IllConditionedDesign
from harness.latency.drift import SLOW_DRIFT, level_error, level_factors, levelled
from harness.latency.overhead import COLUMNS, MERGED, MODEL_NOISE, Coefficient, Overhead, row_of
from harness.latency.robust import robust_fits
from harness.measure.summary import MAD_TO_SIGMA, Z_95, Measurement, summarise
from harness.probe.overhead_terms import OverheadTerms
from harness.samples import Sample

MAX_CONDITION = 100.0
_REFITS = 400
_CONFIDENCE = 95.0
_ROUNDING = 1e-18
_WITHIN_ONE_SIGMA = 0.6827
VARY = "Measure null probes whose input and output sizes vary independently, as `harness profile` plans them"


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
    `MERGED` is left out if the null probes cannot separate it from a, b and c, and its time becomes part of them.
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
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=VARY)
    condition, shares = condition_of(design[:, used], 1 / total)
    if condition > MAX_CONDITION:
        together = [name for name, share in zip(names, shares, strict=True) if share > 0.3]
        mergeable = MERGED if "slices" not in names else MERGED[:-1]
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


def condition_of(design: Floats, weight: Floats) -> tuple[float, Floats]:
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
