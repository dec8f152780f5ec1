"""Layer latencies by subtraction: a probe's total minus everything in it that is not the layer.

These estimators compute `total - baseline - overhead(total's terms - baseline's terms)`:

- `regression` (S1.5): layer + auxiliary layer, no baseline; the overhead of three coefficients is subtracted. With
  `regression-terms` it is the overhead with all further terms;
- `difference` (S1.7): layer + auxiliary layer, minus the auxiliary layer by itself on the layer's output.

Another, `chain`, needs no overhead: it stacks copies of the layer, and each copy adds one layer to the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np

from harness.array_types import Floats
from harness.latency.overhead import Overhead, row_of
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

Subtraction = Literal["regression", "regression-terms", "difference"]
REGRESSIONS: tuple[Subtraction, ...] = ("regression", "regression-terms")
RESOLUTION_SIGMAS = 3.0
CERTAIN_SIGMAS = 2.0
_SMALLEST_ERROR = 1e-6
_NORMAL = NormalDist()


@dataclass(frozen=True)
class CampaignData:
    """The measurements of a campaign: its layers and chains; role, terms, visit policy and summary by probe.

    If the latency of a probe depends on what else is in its batch, `batches` has its summary in each, by probe and
    number of the batch. Others are not in it. `slowdown` is what slow phases of the machine added to all runs on
    average, as a fraction; `slow_share` is the share of runs in these phases. `interruptions` is what interruptions add
    to long runs, as a fraction.
    """

    layers: Sequence[LayerProbes]
    chains: Sequence[ChainProbes]
    roles: Mapping[str, str]
    terms: Mapping[str, OverheadTerms]
    visits: Mapping[str, str]
    summaries: Mapping[str, Measurement]
    batches: Mapping[str, Mapping[int, Measurement]] = field(default_factory=dict)
    slowdown: float = 0.0
    slow_share: float = 0.0
    interruptions: float = 0.0


@dataclass(frozen=True)
class Latency:
    """A layer's latency, always positive, with its standard error.

    The remainder is what the subtraction leaves, which noise makes negative at times. `resolved` is false where it is
    less than three of its standard errors. The latency is then the mean of the remainder given that no layer takes
    negative time. A negative remainder contradicts the subtraction, which is off by at least its size: that is the
    least that both standard errors can be. Sums of layers add remainders: latencies that are all moved upwards would
    add up to too much.
    """

    latency_s: float
    stderr_s: float
    resolved: bool
    samples: int
    remainder_s: float
    remainder_stderr_s: float


def subtracted(layer: LayerProbes, method: Subtraction, data: CampaignData, overhead: Overhead) -> Latency | None:
    """Return the latency of a layer by one subtraction, or None where a probe it needs was not measured."""
    found = subtraction(layer, method, data)
    return None if found is None else found.latency(data.summaries, overhead)


def subtraction(layer: LayerProbes, method: Subtraction, data: CampaignData) -> Combination | None:
    """Return what is subtracted from what, or None where a probe it needs was not measured."""
    measured, terms = data.summaries, data.terms
    baseline = None if method in REGRESSIONS else layer.auxiliary
    if layer.layer not in measured or (baseline is not None and baseline not in measured):
        return None
    row = row_of(terms[layer.layer])
    if baseline is None:
        return Combination({layer.layer: 1.0}, row)
    row = tuple(one - other for one, other in zip(row, row_of(terms[baseline]), strict=True))
    return Combination({layer.layer: 1.0, baseline: -1.0}, row)


def slope(layer: LayerProbes, measured: Mapping[str, Measurement]) -> Combination | None:
    """Return the weights of the totals in their slope over copies, or None where not all were measured."""
    if not layer.stacks or any(stack not in measured for stack in layer.stacks):
        return None
    weights = [1 / _error_of(measured[stack]) ** 2 for stack in layer.stacks]
    centre = sum(weight * copies for weight, copies in zip(weights, STACK_COPIES, strict=True)) / sum(weights)
    spread = sum(weight * (copies - centre) ** 2 for weight, copies in zip(weights, STACK_COPIES, strict=True))
    parts = zip(layer.stacks, weights, STACK_COPIES, strict=True)
    return Combination({stack: weight * (copies - centre) / spread for stack, weight, copies in parts})


@dataclass(frozen=True)
class Combination:
    """A layer's latency as a weighted sum of measured totals, minus the overhead of a `row` of amounts.

    `misfit_s` is the error of the overhead model for this layer, which layers share.
    """

    totals: Mapping[str, float]
    row: tuple[float, ...] = ()
    misfit_s: float = 0.0

    def latency(self, measured: Mapping[str, Measurement], overhead: Overhead | None = None) -> Latency:
        """Return the latency with its error; `overhead` is needed with a row."""
        left = sum(weight * measured[probe].latency_s for probe, weight in self.totals.items())
        variance = sum((weight * _error_of(measured[probe])) ** 2 for probe, weight in self.totals.items())
        expected, uncertainty = overhead.of(self.row) if overhead is not None and self.row else (0.0, 0.0)
        samples = min(measured[probe].samples for probe in self.totals)
        return positive(left - expected, math.sqrt(variance + uncertainty + self.misfit_s**2), samples)


def misfit_s(layer: LayerProbes, data: CampaignData, overhead: Overhead) -> float:
    """Return how far the overhead model is off for the auxiliary layer after this layer, beyond errors.

    The probe of the auxiliary layer by itself contains no layer (S1.7): its whole time is overhead. 0 if it was not
    measured.
    """
    if layer.auxiliary not in data.summaries:
        return 0.0
    measured = data.summaries[layer.auxiliary]
    expected, uncertainty = overhead.of(row_of(data.terms[layer.auxiliary]))
    within = CERTAIN_SIGMAS**2 * (measured.stderr_s**2 + uncertainty)
    return math.sqrt(max(0.0, (measured.latency_s - expected) ** 2 - within))


def covariance_of(found: Sequence[Combination], measured: Mapping[str, Measurement], overhead: Overhead) -> Floats:
    """Return the covariance of layers in s².

    They share the fitted overhead and, with the same sign, what it leaves out; some share measured totals.
    """
    probes = {probe: at for at, probe in enumerate(dict.fromkeys(name for one in found for name in one.totals))}
    weights, rows = np.zeros((len(found), len(probes))), np.zeros((len(found), len(overhead.covariance)))
    for at, one in enumerate(found):
        for probe, weight in one.totals.items():
            weights[at, probes[probe]] = weight * _error_of(measured[probe])
        rows[at, : len(one.row)] = one.row
    shared: Floats = rows @ np.array(overhead.covariance) @ rows.T
    misfits = np.array([one.misfit_s for one in found])
    return weights @ weights.T + shared + np.outer(misfits, misfits)


def _error_of(total: Measurement) -> float:
    return max(total.stderr_s, _SMALLEST_ERROR * total.latency_s)


def positive(value: float, stderr: float, samples: int) -> Latency:
    """Return the value if it is resolved, else the mean and spread of its normal distribution above zero.

    A negative value contradicts the subtraction, which is then off by at least its size.
    """
    if value >= RESOLUTION_SIGMAS * stderr:
        return Latency(value, stderr, True, samples, value, stderr)
    bound, doubt = -value / stderr, max(stderr, -value)
    above = max(1e-12, 1 - _NORMAL.cdf(bound))
    hazard = _NORMAL.pdf(bound) / above
    if bound > 6:  # far below zero, the distribution above zero is exponential with this mean
        return Latency(stderr / bound, -value, False, samples, value, doubt)
    mean = value + stderr * hazard
    spread = stderr * math.sqrt(max(1e-6, 1 + bound * hazard - hazard**2))
    return Latency(max(mean, 1e-12), max(spread, -value), False, samples, value, doubt)
