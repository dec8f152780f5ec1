"""Layer latencies: what is left of a total when everything that is not the layer is subtracted (S1.5, S1.7).

All estimators are one subtraction, `total - baseline - overhead(total's terms - baseline's terms)`; they
differ in the probe and its baseline:

- `regression`: layer + auxiliary layer, no baseline; the overhead model carries the whole difference;
- `difference`: layer + auxiliary layer, minus the auxiliary layer alone on the layer's output;
- `context`: producers + layer + auxiliary layer, minus the same without the layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

from harness.latency.overhead import Overhead, row_of
from harness.measure.summary import Measurement
from harness.probe.plan import LayerProbes
from harness.probe.terms import Terms

Method = Literal["context", "regression", "difference"]
METHODS: tuple[Method, ...] = get_args(Method)
RESOLUTION_SIGMAS = 3.0
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


def probes_of(layer: LayerProbes, method: Method) -> tuple[str, str | None]:
    """The probe that holds the layer, and its baseline."""
    if method == "context":
        return layer.in_context, layer.null
    return layer.layer, layer.auxiliary if method == "difference" else None


def layer_latency(
    layer: LayerProbes,
    method: Method,
    terms: Mapping[str, Terms],
    measured: Mapping[str, Measurement],
    overhead: Overhead,
) -> Latency | None:
    """The latency of a layer by one estimator, or None where a probe it needs was not measured."""
    probe, baseline = probes_of(layer, method)
    if probe not in measured or (baseline is not None and baseline not in measured):
        return None
    total = measured[probe]
    left, variance, samples = total.latency_s, total.stderr_s**2, total.samples
    row = row_of(terms[probe])
    if baseline is not None:
        without = measured[baseline]
        left, variance = left - without.latency_s, variance + without.stderr_s**2
        row = tuple(one - other for one, other in zip(row, row_of(terms[baseline]), strict=True))
        samples = min(samples, without.samples)
    expected, uncertainty = overhead.of(row)
    return _positive(left - expected, math.sqrt(variance + uncertainty), samples)


def _positive(value: float, stderr: float, samples: int) -> Latency:
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
