"""Layer latencies by subtraction: a probe's total minus everything in it that is not the layer.

Two estimators compute `total - baseline - overhead(total's terms - baseline's terms)`:

- `regression` (S1.5): layer + auxiliary layer, no baseline; the overhead model carries the whole difference;
- `difference` (S1.7): layer + auxiliary layer, minus the auxiliary layer alone on the layer's output.

A third, `chain`, needs no overhead: it stacks copies of the layer, and each copy adds one layer to the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from harness.latency.overhead import Overhead, row_of
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

Subtraction = Literal["regression", "difference"]
RESOLUTION_SIGMAS = 3.0
_SMALLEST_ERROR = 1e-6
_NORMAL = NormalDist()


@dataclass(frozen=True)
class CampaignData:
    """The measurements of a campaign: its layers and chains; role, terms, visit policy and summary by probe."""

    layers: Sequence[LayerProbes]
    chains: Sequence[ChainProbes]
    roles: Mapping[str, str]
    terms: Mapping[str, OverheadTerms]
    visits: Mapping[str, str]
    summaries: Mapping[str, Measurement]


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
    measured, terms = data.summaries, data.terms
    baseline = layer.auxiliary if method == "difference" else None
    if layer.layer not in measured or (baseline is not None and baseline not in measured):
        return None
    total = measured[layer.layer]
    left, variance, samples = total.latency_s, total.stderr_s**2, total.samples
    row = row_of(terms[layer.layer])
    if baseline is not None:
        without = measured[baseline]
        left, variance = left - without.latency_s, variance + without.stderr_s**2
        row = tuple(one - other for one, other in zip(row, row_of(terms[baseline]), strict=True))
        samples = min(samples, without.samples)
    expected, uncertainty = overhead.of(row)
    return positive(left - expected, math.sqrt(variance + uncertainty), samples)


def slope_over_copies(layer: LayerProbes, measured: Mapping[str, Measurement]) -> Latency | None:
    """Return the weighted slope of totals over copies, or None where the stacks were not all measured."""
    if not layer.stacks or any(stack not in measured for stack in layer.stacks):
        return None
    totals = [measured[stack] for stack in layer.stacks]
    weights = [1 / max(total.stderr_s, _SMALLEST_ERROR * total.latency_s) ** 2 for total in totals]
    centre = sum(weight * copies for weight, copies in zip(weights, STACK_COPIES, strict=True)) / sum(weights)
    spread = sum(weight * (copies - centre) ** 2 for weight, copies in zip(weights, STACK_COPIES, strict=True))
    rise = sum(
        weight * (copies - centre) * total.latency_s
        for weight, copies, total in zip(weights, STACK_COPIES, totals, strict=True)
    )
    return positive(rise / spread, math.sqrt(1 / spread), min(total.samples for total in totals))


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
