"""Drift of a device's speed: the error that all totals of a calibration share.

The speed of a host changes over minutes, and a calibration takes seconds. So all its latencies are off by one common
factor, which no scatter about a fit shows. It has two parts:

- drift between the rounds of a calibration is visible, and is removed from the samples (`level_factors`);
- slower drift is not visible, and an interval can only allow for it (`SLOW_DRIFT`).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.measure.summary import STUDENT_95, Z_95, seconds_of
from harness.samples import Sample

SLOW_DRIFT = 0.005
"""Assumed, not measured: relative standard deviation of a device's speed from one campaign to the next. Whole networks
on a quiet processor repeat within one to two percent."""


def level_factors(samples: Mapping[str, Sequence[Sample]], clock: str) -> tuple[float, ...]:
    """Return how slow each round was, as factors with mean one; a probe's nth sample belongs to the nth round."""
    seconds = {probe: [seconds_of(sample, clock) for sample in taken] for probe, taken in samples.items() if taken}
    centres = {probe: statistics.median(values) for probe, values in seconds.items()}
    factors = []
    for number in range(max(map(len, seconds.values()), default=0)):
        there = [
            values[number] / centres[probe]
            for probe, values in seconds.items()
            if number < len(values) and centres[probe] > 0
        ]
        # A round of few probes, as the last ones may be, shows those probes and not the device.
        factors.append(statistics.median(there) if 2 * len(there) > len(seconds) else 1.0)
    mean = statistics.fmean(factors) if factors else 1.0
    return tuple(factor / mean for factor in factors)


def levelled(samples: Sequence[Sample], factors: Sequence[float]) -> list[Sample]:
    """Return a probe's samples as if all rounds had been equally slow."""
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
    """Return the relative standard error of the factors' mean, widened for their number; 0 for one round.

    It holds if the rounds are at random times over a span: they then sample the drift within it, whatever its course.
    """
    if len(factors) < 2:
        return 0.0
    widened = STUDENT_95[min(len(factors) - 1, len(STUDENT_95)) - 1] / Z_95
    return widened * statistics.stdev(factors) / (statistics.fmean(factors) * math.sqrt(len(factors)))


def _divided(nanoseconds: int, factor: float) -> int:
    return max(1, round(nanoseconds / factor))
