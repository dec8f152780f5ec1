"""Figures of one benchmarked network: percentiles of its samples, and the mean power of the device."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.summary import seconds_of
from harness.samples import Sample

State = Mapping[str, float]


@dataclass(frozen=True)
class LatencyFigures:
    """Latencies of all runs, preempted ones included. pN_s is the smallest that at least N % do not exceed."""

    runs: int
    mean_s: float
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, latencies_s: Sequence[float]) -> LatencyFigures:
        """Return the figures of one run or more; raises ValueError without any."""
        if not latencies_s:
            raise ValueError("no samples")
        ordered = sorted(latencies_s)
        p50_s, p90_s, p99_s = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9, 0.99))
        mean_s = statistics.fmean(ordered)
        return cls(len(ordered), mean_s, ordered[0], p50_s, p90_s, p99_s, ordered[-1])


def reported_clock(clock: str) -> str:
    """Return the clock of percentiles: that of the device where it has one, else wall time, which users wait for."""
    return "device" if clock == "device" else "wall"


def latencies_s(samples: Sequence[Sample], clock: str) -> tuple[float, ...]:
    """Return the latency of each run on the reported clock of a device with this clock."""
    return tuple(seconds_of(sample, reported_clock(clock)) for sample in samples)


def mean_power_w(states: Sequence[State], cores: int) -> float | None:
    """Return the mean power over the states of a measurement, in order; None where the device reports none.

    Sensors report power, whose mean this is. Counters report energy: its rise over the time between the first and the
    last state, which the times of all processors show. A counter that falls has no mean, unless it wraps at a range.
    """
    sensed = [state["power_w"] for state in states if "power_w" in state]
    if sensed:
        return statistics.fmean(sensed)
    counted = [state for state in states if "energy_j" in state and "cpu_total_s" in state]
    if len(counted) < 2 or cores < 1:
        return None
    elapsed_s = (counted[-1]["cpu_total_s"] - counted[0]["cpu_total_s"]) / cores
    energy_j = sum(
        (after["energy_j"] - before["energy_j"]) % after.get("energy_range_j", math.inf)
        for before, after in itertools.pairwise(counted)
    )
    return energy_j / elapsed_s if elapsed_s > 0 and math.isfinite(energy_j) else None
