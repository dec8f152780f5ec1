"""Robust summaries of samples: the median with its standard error and a 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.samples import Sample

MIN_CLEAN_SHARE = 0.5
Z_95 = 1.959964
MAD_TO_SIGMA = 1.4826
MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)
"""The standard error of a median over that of a mean, for a normal distribution."""
_CLOCK_GRAIN_S = 50e-9
_LEAST_S = 1e-9
# For a normal distribution, in sigmas: the distance from the lowest tenth to the median, and the error of a quartile.
_TENTH_TO_MEDIAN = 1.2816
_QUARTILE_EFFICIENCY = 1.3626
_STUDENT_95 = """
12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131
2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042
"""
STUDENT_95 = tuple(map(float, _STUDENT_95.split()))
"""Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Measurement:
    """Summary of one probe: median latency, standard error, 95 % half-width, and the number of samples used."""

    latency_s: float
    stderr_s: float
    halfwidth_s: float
    samples: int
    preempted: int
    clock: str


def summarise(samples: Sequence[Sample], clock: str) -> Measurement:
    """Return the median of the undisturbed samples on one clock.

    Preempted runs are left out while enough others remain; `samples` counts the samples used and `preempted` those left
    out. The standard error of a single sample is set to its own value. Raises ValueError without any sample, and if the
    clock was not recorded.
    """
    clean = [sample for sample in samples if not sample.preemptions]
    used = clean if len(clean) > 1 and not is_mostly_preempted(samples) else list(samples)
    values = [seconds_of(sample, clock) for sample in used]
    if not values:
        raise ValueError("no samples")
    centre = max(statistics.median(values), _LEAST_S)  # a coarse clock may report zero
    spread = max(mad_sigma(values), _CLOCK_GRAIN_S)
    return _measurement(centre, MEDIAN_EFFICIENCY * spread, values, len(samples) - len(used), clock)


def is_mostly_preempted(samples: Sequence[Sample]) -> bool:
    """Return whether so many runs were preempted that `summarise` uses them, too."""
    return sum(not one.preemptions for one in samples) < MIN_CLEAN_SHARE * len(samples)


def mad_sigma(values: Sequence[float]) -> float:
    """Return the standard deviation of normally distributed values, from their median absolute deviation."""
    centre = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median(abs(value - centre) for value in values)


def undisturbed(samples: Sequence[Sample], clock: str) -> Measurement:
    """Return the lower quartile of the samples with its standard error, for differences on a shared machine.

    Other processes only make runs longer, at some times more than at others, and differences of medians drown in that.
    The error follows from the distance between the lowest tenth and the median, so it grows if half of the runs were
    disturbed. Raises as `summarise` does.
    """
    values = sorted(seconds_of(sample, clock) for sample in samples)
    if not values:
        raise ValueError("no samples")
    lowest, quartile, median = (_quantile(values, share) for share in (0.1, 0.25, 0.5))
    spread = max((median - lowest) / _TENTH_TO_MEDIAN, _CLOCK_GRAIN_S)
    return _measurement(quartile, _QUARTILE_EFFICIENCY * spread, values, 0, clock)


def _measurement(
    latency_s: float, deviation_s: float, values: Sequence[float], preempted: int, clock: str
) -> Measurement:
    """The summary of values whose location has this standard deviation, divided by the root of their number."""
    if len(values) == 1:  # a single sample has no error estimate
        return Measurement(latency_s, latency_s, math.inf, 1, preempted, clock)
    stderr = deviation_s / math.sqrt(len(values))
    quantile = STUDENT_95[min(len(values) - 1, len(STUDENT_95)) - 1]
    return Measurement(latency_s, stderr, quantile * stderr, len(values), preempted, clock)


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def seconds_of(sample: Sample, clock: str) -> float:
    """Return a sample in seconds on one clock; raises ValueError if that clock was not recorded."""
    value = {"cpu": sample.cpu_ns, "wall": sample.wall_ns, "device": sample.device_ns}[clock]
    if value is None:
        raise ValueError(f"the clock {clock!r} was not recorded")
    return value / 1e9
