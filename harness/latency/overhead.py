"""The overhead of host and transfers: coefficients of the terms of a run, and how well null probes determine them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from harness.probe.overhead_terms import LATER_TERMS, TERM_NAMES, OverheadTerms

COLUMNS = ("runs", *TERM_NAMES)
"""The order of coefficients: `runs` is c, `input_bytes` is a, `output_bytes` is b."""
PLAIN_COLUMNS = ("runs", "input_bytes", "output_bytes")
"""The coefficients of S1.4; the others are further terms."""
OverheadModel = Literal["plain", "extended"]
"""Only the three coefficients of S1.4, or with further terms."""
MERGED = ("stored_bytes", "loaded_bytes", "last_bytes", "accesses", *LATER_TERMS, "auxiliary_input_bytes")
"""Columns whose time becomes part of a, b and c where the null probes do not separate them. Only probes that slice
their input separate what an auxiliary layer reads, the last column, from a, and a device may refuse all of these."""
MODEL_NOISE = 0.01
"""Relative error added to every total's standard error, so that none dominates."""
_SIGNIFICANT = 0.01
_amounts_of = attrgetter(*TERM_NAMES)


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
        return tuple(name for name in MERGED if name not in self.least_squares)

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


def row_of(terms: OverheadTerms, runs: int = 1) -> tuple[float, ...]:
    """Return a probe's amounts in the order of `COLUMNS`."""
    return (float(runs), *map(float, _amounts_of(terms)))
