"""The overhead of host and transfers by regression on null probes (S1.3, S1.4).

`total = a * input_bytes + b * output_bytes + c` plus the null probes' own operators (auxiliary layers and
slices, see `OverheadTerms`), fitted twice: by plain least squares, and robustly with coefficients that cannot be
negative. The robust one is used, the plain one shown beside it.

Intervals hold three errors: of sampling and of the model, both as the null probes scatter about the fit, and of
drift, which all null probes of a campaign share and which therefore shows in no scatter (see `drift`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import IllConditionedDesign
from harness.latency.dense_fits import robust_fits
from harness.latency.drift import SLOW_DRIFT
from harness.measure.summary import MAD_TO_SIGMA, Z_95, Measurement
from harness.probe.overhead_terms import TERM_NAMES, OverheadTerms

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

COLUMNS = ("runs", *TERM_NAMES)
"""Coefficients in this order: `runs` is c, `input_bytes` a and `output_bytes` b."""
MEMORY_COLUMNS = ("stored_bytes", "loaded_bytes", "last_bytes", "accesses")
"""What the device's own memory takes, beside which a and b stand."""
MAX_CONDITION = 100.0
MODEL_NOISE = 0.01
"""Relative error that every total is believed to have beyond its standard error, so that none dominates."""
_REFITS = 400
_CONFIDENCE = 95.0
_ROUNDING = 1e-18
_WITHIN_ONE_SIGMA = 0.6827
_SIGNIFICANT = 0.01


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

    `covariance` is over `COLUMNS` and holds within the campaign: `drift`, the relative error that all its totals have
    in common, cancels where one is taken from another and is in the coefficients' errors alone. `least_squares` is the
    plain fit beside the robust one, `scatter` the robust relative spread of the null probes about the fit. `misfit` is
    what of it their measured errors leave unexplained: how far the additive model is off on this device; `misfit_p` is
    how likely an additive device scatters so much.
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

    @property
    def untold(self) -> tuple[str, ...]:
        """Columns of the device's own memory that its null probes do not tell from a and b."""
        return tuple(name for name in MEMORY_COLUMNS if name not in self.least_squares)

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
        """Whether the null probes contradict the additive model, beyond chance and by more than any fit forgives."""
        return self.misfit_p < _SIGNIFICANT and self.misfit > MODEL_NOISE

    def of(self, row: Sequence[float]) -> tuple[float, float]:
        """Seconds, and their variance, of a row of amounts in the order of `COLUMNS`."""
        value = sum(self.coefficients[name].value * amount for name, amount in zip(COLUMNS, row, strict=True))
        variance = sum(
            left * right * self.covariance[i][j]
            for i, left in enumerate(row) if left
            for j, right in enumerate(row) if right
        )  # fmt: skip
        return value, max(0.0, variance)


def row_of(terms: OverheadTerms, runs: int = 1) -> tuple[float, ...]:
    """A probe's amounts in the order of `COLUMNS`."""
    return (float(runs), *(float(amount) for amount in astuple(terms)))


def fit_overhead(
    nulls: Sequence[tuple[OverheadTerms, Measurement]], seed: int = 0, drift: float = SLOW_DRIFT
) -> Overhead:
    """Fits a, b, c and the null probes' own operators.

    Intervals are percentiles over refits to totals drawn anew, which holds where a coefficient sits at zero
    and where long totals scatter more. `drift` is the relative standard error that all totals have in common.
    Where a device is too slow or too fast for the null probes to tell a and b from what its own memory takes,
    the memory's column is left out: what it takes is then part of the other. Raises IllConditionedDesign where the
    sizes do not tell the columns apart.
    """
    import numpy as np

    design = np.array([row_of(terms) for terms, _ in nulls]).reshape(-1, len(COLUMNS))
    total = np.array([measurement.latency_s for _, measurement in nulls])
    used = np.flatnonzero(design.any(axis=0))
    stderr = np.array([min(measurement.stderr_s, measurement.latency_s) for _, measurement in nulls])
    weight = 1 / np.hypot(stderr, MODEL_NOISE * total)
    used, condition = _told_apart(design, weight, used)
    fitted = robust_fits(design[:, used], total[None], weight)[0]
    random = np.random.default_rng(seed)
    draws = _refits(design[:, used], total, weight, fitted, random)
    residual = total - design[:, used] @ fitted
    misfit, misfit_p = _misfit(residual, total, stderr, len(used))
    covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
    covariance[np.ix_(used, used)] = np.cov(draws, rowvar=False).reshape(len(used), len(used))
    drifted = draws * np.exp(drift * random.standard_normal((_REFITS, 1)))
    bounds = np.percentile(drifted, [50 - _CONFIDENCE / 2, 50 + _CONFIDENCE / 2], axis=0)
    coefficients = {name: Coefficient(0.0, 0.0, 0.0, 0.0) for name in COLUMNS}
    for at, column in enumerate(used):
        low, high = min(bounds[0][at], fitted[at]), max(bounds[1][at], fitted[at])
        spread = float(np.std(drifted[:, at], ddof=1))
        coefficients[COLUMNS[column]] = Coefficient(float(fitted[at]), spread, float(low), float(high))
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


def _told_apart(design: Array, weight: Array, used: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """The columns that the design tells apart, with its condition number when they have unit length."""
    import numpy as np

    names = [COLUMNS[column] for column in used]
    step = "Measure null probes whose input and output sizes vary independently, as `harness profile` plans them"
    if len(design) <= len(used) or not {"runs", "input_bytes", "output_bytes"} <= set(names):
        why = f"{len(design)} null probes cannot tell {', '.join(names) or 'anything'} apart"
        raise IllConditionedDesign("The overhead cannot be fitted", why=why, next_step=step)
    scaled = design[:, used] * weight[:, None]
    scaled = scaled / np.linalg.norm(scaled, axis=0)
    _, singular, right = np.linalg.svd(scaled)
    condition = float(singular[0] / max(singular[-1], 1e-300))
    if condition > MAX_CONDITION:
        together = [name for name, share in zip(names, abs(right[-1]), strict=True) if share > 0.3]
        memory = next((name for name in MEMORY_COLUMNS if name in together), None)
        if memory is not None:
            return _told_apart(design, weight, used[used != COLUMNS.index(memory)])
        varied, *others = [name for name in together if name != "runs"] or ["input_bytes"]
        sizes = design[:, COLUMNS.index(varied)]
        why = f"{' and '.join(together)} go up and down together (condition number {condition:.3g})"
        step = (
            f"Add null probes that vary {varied} from {max(1, min(sizes)):.0f} to {4 * max(sizes):.0f}"
            f" while {' and '.join(others) or 'the other sizes'} stay as they are"
        )
        raise IllConditionedDesign("a, b and c cannot be told apart", why=why, next_step=step)
    return used, condition


def _refits(design: Array, total: Array, weight: Array, fitted: Array, random: np.random.Generator) -> Array:
    """Fits to totals drawn about the fitted ones, with the robust spread of the weighted residuals.

    The smallest residuals, as many as there are columns, are left out of the spread: the fit made them small.
    Student's quantile over the normal's widens the draws for the degrees of freedom.
    """
    import numpy as np
    from scipy.stats import t

    expected = design @ fitted
    columns = design.shape[1]
    residual = np.sort(abs(total - expected) * weight)
    freedom = len(total) - columns
    spread = MAD_TO_SIGMA * float(np.median(residual[columns:])) * float(t.ppf(0.975, freedom)) / Z_95
    noise = random.standard_normal((_REFITS, len(total))) * spread / weight
    return robust_fits(design, expected + noise, weight)


def _misfit(residual: Array, total: Array, stderr: Array, columns: int) -> tuple[float, float]:
    """The relative scatter that measured errors do not explain, and how likely an additive device has so much.

    A binomial test of how many probes lie further from the fit than their standard error: a few that were
    disturbed do not decide it.
    """
    import numpy as np
    from scipy.stats import binom

    beyond = int(np.count_nonzero(abs(residual) > stderr))
    likely = float(binom.sf(beyond - 1, len(residual), 1 - _WITHIN_ONE_SIGMA))
    # The fit takes one degree of freedom a column out of the residuals.
    spread = MAD_TO_SIGMA * float(np.median(np.sort(abs(residual) / total)[columns // 2 :]))
    explained = float(np.median(stderr / total))
    return float(np.sqrt(max(0.0, spread**2 - explained**2))), likely


def _least_squares(design: Array, total: Array, weight: Array) -> tuple[Array, float]:
    import numpy as np
    from sklearn.linear_model import LinearRegression

    # Columns of bytes dwarf that of runs, and the solver would take the latter for rounding.
    scale = np.linalg.norm(design * weight[:, None], axis=0)
    model = LinearRegression(fit_intercept=False).fit(design / scale, total, sample_weight=weight**2)
    plain: Array = model.coef_ / scale
    return plain, _r2(total, design @ plain, weight)


def _r2(total: Array, predicted: Array, weight: Array) -> float:
    """Share of the weighted variance that the fit explains; 1 where there is none to explain."""
    import numpy as np

    centre = np.average(total, weights=weight**2)
    unexplained = float(np.sum((weight * (total - predicted)) ** 2))
    variance = float(np.sum((weight * (total - centre)) ** 2))
    if variance <= _ROUNDING * float(np.sum((weight * total) ** 2)):
        return 1.0
    return 1 - unexplained / variance
