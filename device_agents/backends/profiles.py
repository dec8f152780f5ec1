"""What a runtime's own profile tells of a model's layers, and what is taken off it.

A profile is wall time, told per executed node: another process that takes the core adds milliseconds to the
node it hits, and the profiler adds time of its own. Neither belongs to the layers.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Iterator, Sequence

from device_agents.backends import Refused, Sample
from device_agents.truth import TrueLayer, Truth

FEWEST_RUNS, MOST_RUNS = 30, 100
_BUDGET_S = 4.0
_LOW = 0.1
_DISTURBED = 1.25


def rounds() -> Iterator[int]:
    """Numbers of runs: as many as fit into a few seconds, within FEWEST_RUNS and MOST_RUNS."""
    started = time.monotonic()
    for number in range(MOST_RUNS):
        if number >= FEWEST_RUNS and time.monotonic() - started > _BUDGET_S:
            return
        yield number


def undisturbed_mean(samples: Sequence[float], slack: float) -> float:
    """The mean of the samples that nothing disturbed.

    These lie within a quarter, or `slack`, of the tenth percentile. On a quiet machine that is all of them;
    means, for whole units average out where medians do not.
    """
    low = sorted(samples)[int(_LOW * (len(samples) - 1))]
    return statistics.fmean(sample for sample in samples if sample <= max(_DISTURBED * low, low + slack))


def makespan_s(samples: Sequence[Sample]) -> float:
    """The median run without profiling, in CPU time where that is told."""
    return statistics.median(sample.wall_ns if sample.cpu_ns is None else sample.cpu_ns for sample in samples) / 1e9


def truth_of(layers: Sequence[TrueLayer], makespan: float) -> Truth:
    """Layers as profiled, in the proportion that makes them add up to what a run takes without the profiler.

    Raises Refused where the profile holds nothing.
    """
    profiled_s = sum(layer.latency_s for layer in layers)
    if profiled_s <= 0:
        raise Refused("the runtime's profile tells of no time spent in any node")
    scale = makespan / profiled_s
    scaled = tuple(replace(layer, latency_s=layer.latency_s * scale) for layer in layers)
    return Truth(None, sum(layer.latency_s for layer in scaled), scaled)
