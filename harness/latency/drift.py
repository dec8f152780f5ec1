"""Drift of a device's speed: the error that all totals of a calibration have in common.

What changes all latencies by the same factor shows in no scatter about a fit: a calibration of seconds on a host that
becomes slower and faster over minutes is off by one factor throughout. Two parts of it:

- what drifts between the rounds of a calibration can be seen, and taken out of the samples (`level_factors`);
- what drifts more slowly cannot, and an interval can only allow for it (`SLOW_DRIFT`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.measure.summary import STUDENT_95, Z_95, seconds_of
from harness.samples import Sample

SLOW_DRIFT = 0.005
"""Relative standard deviation of a device's speed from one campaign to the next, where nothing is known of it: an
assumption, no measurement. Whole networks on a quiet processor repeat within one to two percent."""


def level_factors(samples: Mapping[str, Sequence[Sample]], clock: str) -> tuple[float, ...]:
    """How slow each round was, as a factor about a mean of one; the nth sample of each probe is of the nth round."""
    seconds = {probe: [seconds_of(sample, clock) for sample in taken] for probe, taken in samples.items() if taken}
    centres = {probe: statistics.median(values) for probe, values in seconds.items()}
    factors = []
    for number in range(max(map(len, seconds.values()), default=0)):
        there = [
            values[number] / centres[probe]
            for probe, values in seconds.items()
            if number < len(values) and centres[probe] > 0
        ]
        # A round of few probes, as the last ones may be, tells of these and not of the device.
        factors.append(statistics.median(there) if 2 * len(there) > len(seconds) else 1.0)
    mean = statistics.fmean(factors) if factors else 1.0
    return tuple(factor / mean for factor in factors)


def levelled(samples: Sequence[Sample], factors: Sequence[float]) -> list[Sample]:
    """A probe's samples as they would be if all rounds had been equally slow."""
    return [
        replace(
            sample,
            wall_ns=_divided(sample.wall_ns, factor),
            cpu_ns=None if sample.cpu_ns is None else _divided(sample.cpu_ns, factor),
            device_ns=None if sample.device_ns is None else _divided(sample.device_ns, factor),
        )
        for sample, factor in zip(samples, factors, strict=False)
    ]


def level_error(factors: Sequence[float]) -> float:
    """The relative standard error of the mean of the factors, widened for their number; that of one round is unknown.

    The rounds have to lie at random moments of a span: then drift within the span is among them as in any sample,
    whatever its course.
    """
    if len(factors) < 2:
        return 0.0
    widened = STUDENT_95[min(len(factors) - 1, len(STUDENT_95)) - 1] / Z_95
    return widened * statistics.stdev(factors) / (statistics.fmean(factors) * math.sqrt(len(factors)))


def _divided(nanoseconds: int, factor: float) -> int:
    return max(1, round(nanoseconds / factor))
