"""Split conformal intervals on normalised residuals of held-out layers, by operator and coverage."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.uncertainty.coverage import Coverage
from harness.strict_model import Positive

LEVEL = 0.9
"""Share of latencies within their intervals."""
NORMAL_90 = 1.6448536269514722
"""Half the width of an interval of LEVEL, in standard errors."""
ANY = ""
"""Stands for all operators."""
_LEAST_SCORES = 20
_LEAST_FLOOR = 1e-3
_LEAST_APART = math.log(2.0)
"""Medians of latencies that differ by less say little of how errors depend on latency."""
_MOST_BEYOND = 2.0
_WIDEST = 1.0
"""The largest relative standard error of a layer in a sum."""
_STRAY = 10.0
"""Scores are clipped here before their mean is taken."""
_OF_MEAN = math.sqrt(math.pi / 2)
"""The standard deviation of normal errors over their mean without signs."""


@dataclass(frozen=True)
class Residuals:
    """Held-out layers, one entry each.

    `errors` are |log latency - log prediction|, `spread` that of the trees' votes, `beyond` the doublings outside the
    hull, `predicted_s` the prediction.
    """

    operators: tuple[str, ...]
    classes: tuple[Coverage, ...]
    errors: Floats
    spread: Floats
    beyond: Floats
    predicted_s: Floats

    def only(self, coverage: Coverage) -> Residuals:
        """Return the layers of one coverage class."""
        kept = [place for place, found in enumerate(self.classes) if found is coverage]
        operators = tuple(self.operators[place] for place in kept)
        arrays = (self.errors, self.spread, self.beyond, self.predicted_s)
        return Residuals(operators, (coverage,) * len(kept), *(array[kept] for array in arrays))


@dataclass(frozen=True)
class Scale:
    """The expected errors of layers that all trees agree on: `long` at a latency of `long_s`, `short` at `short_s`.

    The error of another layer follows from its latency, on logarithms: that of `long` at least, and of ever shorter
    layers at most twice `short`.
    """

    long: Positive
    long_s: Positive
    short: Positive
    short_s: Positive


@dataclass(frozen=True)
class Calibration:
    """Half widths of intervals in units of a scale.

    `expected` holds the scales by operator, and `quantiles` the half widths by operator and coverage; `ANY` is for
    operators that were never learnt. `usual` is the standard error of a layer in a sum: single layers that are far off
    decide about quantiles, but hardly about sums.
    """

    expected: dict[str, Scale]
    quantiles: dict[tuple[str, Coverage], float]
    usual: float

    def half_widths(
        self, operators: Sequence[str], classes: Sequence[Coverage], spread: Floats, beyond: Floats, predicted_s: Floats
    ) -> Floats:
        """Return the half widths of intervals in logarithms of latency."""
        known = self.quantiles
        quantile = [known.get((name, where), known[ANY, where]) for name, where in zip(operators, classes, strict=True)]
        return np.array(quantile) * self.scales(operators, spread, beyond, predicted_s)

    def errors(self, operators: Sequence[str], spread: Floats, beyond: Floats, predicted_s: Floats) -> Floats:
        """Return the relative standard errors of layers in sums, at most 1."""
        return np.minimum(self.usual * self.scales(operators, spread, beyond, predicted_s), _WIDEST)

    def scales(self, operators: Sequence[str], spread: Floats, beyond: Floats, predicted_s: Floats) -> Floats:
        """Return the expected errors, larger with disagreement of the trees and with each doubling outside."""
        return _scales(self.expected, operators, spread, beyond, predicted_s)


def joined(parts: Sequence[Residuals]) -> Residuals:
    """Return the residuals of all parts as one."""
    return Residuals(
        tuple(name for part in parts for name in part.operators),
        tuple(name for part in parts for name in part.classes),
        np.concatenate([part.errors for part in parts]),
        np.concatenate([part.spread for part in parts]),
        np.concatenate([part.beyond for part in parts]),
        np.concatenate([part.predicted_s for part in parts]),
    )


def calibrate(residuals: Residuals) -> Calibration:
    """Return quantiles of scores, which are errors in units of their scale, by operator and coverage.

    A class with few layers of an operator gets the quantile of all operators, and of classes further out if these are
    few, too. A class further out is never narrower.
    """
    operators = np.array(residuals.operators)
    expected = {ANY: _expected(residuals.errors, residuals.predicted_s)}
    for operator in sorted(set(residuals.operators)):
        own = operators == operator
        expected[operator] = _expected(residuals.errors[own], residuals.predicted_s[own])
    scale = _scales(expected, residuals.operators, residuals.spread, residuals.beyond, residuals.predicted_s)
    every = residuals.errors / scale
    usual = max(_OF_MEAN * float(np.mean(np.minimum(every, _STRAY))), _LEAST_FLOOR)
    scores: dict[tuple[str, Coverage], list[float]] = defaultdict(list)
    scored = zip(residuals.operators, residuals.classes, every.tolist(), strict=True)
    for operator, place, score in scored:
        scores[operator, place].append(score)
        scores[ANY, place].append(score)
    places = list(Coverage)
    quantiles: dict[tuple[str, Coverage], float] = {}
    for operator in expected:
        least = 0.0
        for rank, place in enumerate(places):
            further = [score for other in places[rank:] for score in scores[ANY, other]]
            everything = [score for other in places for score in scores[ANY, other]]
            sources = (scores[operator, place], scores[ANY, place], further)
            enough = next((source for source in sources if len(source) >= _LEAST_SCORES), everything)
            least = max(least, conformal_quantile(enough))
            quantiles[operator, place] = least
    return Calibration(expected, quantiles, usual)


def _expected(errors: Floats, predicted_s: Floats) -> Scale:
    """Return half the median errors of the longer and of the shorter half of some layers; the latter is not less."""
    is_short = predicted_s < np.median(predicted_s)
    is_short = is_short if is_short.any() else ~is_short
    (long, long_s), (short, short_s) = (
        (max(float(np.median(errors[own])) / 2.0, _LEAST_FLOOR), float(np.median(predicted_s[own])))
        for own in (predicted_s >= np.median(predicted_s), is_short)
    )
    return Scale(long, long_s, max(long, short), short_s)


def conformal_quantile(scores: Sequence[float] | Floats) -> float:
    """Return the score that another one stays below with probability LEVEL; infinite where there are too few."""
    rank = math.ceil(LEVEL * (len(scores) + 1))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def _scales(
    expected: Mapping[str, Scale], operators: Sequence[str], spread: Floats, beyond: Floats, predicted_s: Floats
) -> Floats:
    own = [expected.get(operator, expected[ANY]) for operator in operators]
    rows = [(one.long, one.long_s, one.short, one.short_s) for one in own]
    long, log_long_s, short, log_short_s = np.log(np.array(rows, dtype=np.float64).reshape(-1, 4)).T
    apart = np.maximum(log_long_s - log_short_s, _LEAST_APART)
    share = np.clip((log_long_s - np.log(predicted_s)) / apart, 0.0, 2.0)
    typical = np.minimum(np.exp(long + share * (short - long)), _MOST_BEYOND * np.exp(short))
    return np.asarray(np.hypot(spread, typical) * (1.0 + beyond))
