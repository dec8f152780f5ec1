"""Layer latencies by subtraction: what is left of a total when everything that is not the layer is taken off.

Two estimators follow the sources as they stand, `total - baseline - overhead(total's terms - baseline's terms)`:

- `regression` (S1.5): layer + auxiliary layer, no baseline; the overhead model carries the whole difference;
- `difference` (S1.7): layer + auxiliary layer, minus the auxiliary layer alone on the layer's output.

A third, `chain`, needs no overhead at all: copies of the layer behind each other, whose totals rise by one layer each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from harness.latency.overhead import Overhead, row_of
from harness.measure.summary import Measurement
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe_plan import STACK_COPIES, LayerProbes

Subtraction = Literal["regression", "difference"]
RESOLUTION_SIGMAS = 3.0
_LEAST_ERROR = 1e-6
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Latency:
    """A layer's latency, always positive, with its standard error.

    `resolved` is false where the subtraction leaves less than three standard errors; the value is then
    the mean of what is left given that no layer takes negative time, and where that is less than nothing,
    the standard error is at least what is missing.
    """

    latency_s: float
    stderr_s: float
    resolved: bool
    samples: int


def subtracted(
    layer: LayerProbes,
    method: Subtraction,
    terms: Mapping[str, OverheadTerms],
    measured: Mapping[str, Measurement],
    overhead: Overhead,
) -> Latency | None:
    """The latency of a layer by one subtraction, or None where a probe it needs was not measured."""
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


def chained(layer: LayerProbes, measured: Mapping[str, Measurement]) -> Latency | None:
    """The weighted slope of totals over copies; None where the layer cannot follow itself or was not measured so."""
    if not layer.stacks or any(stack not in measured for stack in layer.stacks):
        return None
    totals = [measured[stack] for stack in layer.stacks]
    weights = [1 / max(total.stderr_s, _LEAST_ERROR * total.latency_s) ** 2 for total in totals]
    centre = sum(weight * copies for weight, copies in zip(weights, STACK_COPIES, strict=True)) / sum(weights)
    spread = sum(weight * (copies - centre) ** 2 for weight, copies in zip(weights, STACK_COPIES, strict=True))
    rise = sum(
        weight * (copies - centre) * total.latency_s
        for weight, copies, total in zip(weights, STACK_COPIES, totals, strict=True)
    )
    return positive(rise / spread, math.sqrt(1 / spread), min(total.samples for total in totals))


def positive(value: float, stderr: float, samples: int) -> Latency:
    """The value where it is resolved, else the mean and spread of its normal distribution above zero.

    A negative value contradicts the subtraction, which then is off by at least as much as it lacks.
    """
    if value >= RESOLUTION_SIGMAS * stderr:
        return Latency(value, stderr, True, samples)
    bound = -value / stderr
    above = max(1e-12, 1 - _NORMAL.cdf(bound))
    hazard = _NORMAL.pdf(bound) / above
    if bound > 6:  # far below zero the distribution above it is exponential with this mean
        return Latency(stderr / bound, -value, False, samples)
    mean = value + stderr * hazard
    spread = stderr * math.sqrt(max(1e-6, 1 + bound * hazard - hazard**2))
    return Latency(max(mean, 1e-12), max(spread, -value), False, samples)
