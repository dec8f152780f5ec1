"""Turn a runtime's own profile into true layer latencies.

A profile is wall time per executed node. Another process that takes the core adds milliseconds to one node, and the
profiler adds time. Neither belongs to the layers.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Sequence

from device_agents.backends import Refused
from device_agents.messages import Sample, TrueLayer, Truth

_LOW = 0.1
_DISTURBED = 1.25


def undisturbed_mean(samples: Sequence[float], slack: float) -> float:
    """Return the mean of the samples within a quarter, or `slack`, of the tenth percentile.

    On a quiet machine these are all samples. A mean averages out rounding to whole units, a median does not.
    """
    low = sorted(samples)[int(_LOW * (len(samples) - 1))]
    return statistics.fmean(sample for sample in samples if sample <= max(_DISTURBED * low, low + slack))


def makespan_s(samples: Sequence[Sample]) -> float:
    """Return the median of runs without profiling, in CPU time if the samples have it."""
    return statistics.median(sample.wall_ns if sample.cpu_ns is None else sample.cpu_ns for sample in samples) / 1e9


def truth_of(layers: Sequence[TrueLayer], makespan: float) -> Truth:
    """Scale profiled layers so that they add up to `makespan`, the time of their nodes without the profiler.

    Raises Refused if the profile is empty.
    """
    profiled_s = sum(layer.latency_s for layer in layers)
    if profiled_s <= 0:
        raise Refused("the runtime's profile reports no time for any node")
    scale = makespan / profiled_s
    scaled = tuple(replace(layer, latency_s=layer.latency_s * scale) for layer in layers)
    return Truth(None, sum(layer.latency_s for layer in scaled), scaled)
