"""Classify samples as quiet or slow, and scale latencies to the machine's typical speed.

Other virtual machines of a host, or the other thread of a core, slow everything that runs by 10 to 100 %, for a tenth
of a second to several seconds. The runs are not marked as preempted. A median over such phases lies between two speeds,
and the difference between two probes is wrong if one of them was slowed more often. So probes are compared by their
runs in quiet phases. A whole network runs in both kinds of phases, so the runs of quiet phases are then lengthened by
one factor.

All probes that run at about the same time are slowed alike. So the slowness of a run is the median deviation of the
runs around it, each from the latency of its own probe in quiet phases.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.measure.noise.interruptions import interruptions_of
from harness.measure.summary import MAD_TO_SIGMA, seconds_of
from harness.samples import ProbeSample, Sample

_AROUND = 4
"""Runs before and after a run that show its slowness, with the run itself."""
_QUIET_SHARES = (0.25, 0.05)
"""Share of the runs of a batch that count as quiet whatever their latency: the quietest. The second one replaces the
first if a quarter of the batch was not quiet."""
MOST_SLOWER = 0.04
"""How much slower than these a run may be."""
_SIGMAS = 4.0
"""By how many standard deviations the differences between successive runs must be smaller than by chance."""
FEWEST_KEPT = 3
"""Runs of each probe in a batch that are kept, the quietest."""
_ITERATIONS = 6
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Phases:
    """The samples of a campaign in quiet phases of the machine, and what the other ones were like.

    `slow_share` is the share of the samples in slow phases; `slowdown` is how much longer than in quiet phases all
    samples took on average, as a fraction. `typical` is how many times as long as in quiet phases all probes together
    take, by the medians of all their samples; `interruptions` is by which fraction long runs exceed these medians.
    """

    quiet: tuple[ProbeSample, ...]
    slow_share: float = 0.0
    slowdown: float = 0.0
    typical: float = 1.0
    interruptions: float = 0.0


def phases_of(samples: Sequence[ProbeSample], clock: str) -> Phases:
    """Find the slow phases in the samples of a campaign; `samples` and the result are in the order of measurement.

    The times of a device with its own clock do not depend on other work of its host: all samples are quiet.
    """
    if clock == "device" or not samples:
        return Phases(tuple(samples))
    in_batches = sorted(range(len(samples)), key=lambda at: samples[at].batch)  # a stable sort keeps the order of time
    log_s = np.log([max(_LEAST_S, seconds_of(one.sample, clock)) for one in samples])
    probes = _numbered(one.probe for one in samples)
    slowness, is_quiet = np.zeros(len(samples)), np.ones(len(samples), dtype=np.bool_)
    for _, group in itertools.groupby(in_batches, key=lambda at: samples[at].batch):
        batch = np.fromiter(group, dtype=np.int64)
        slowness[batch], is_quiet[batch] = _judged(log_s[batch], np.unique(probes[batch], return_inverse=True)[1])
    quiet = tuple(itertools.compress(samples, is_quiet.tolist()))
    return Phases(
        quiet,
        slow_share=1 - len(quiet) / len(samples),
        slowdown=float(np.mean(np.expm1(slowness * ~is_quiet))),
        typical=_sum_of_medians(log_s, probes) / _sum_of_medians(log_s[is_quiet], probes[is_quiet]),
        interruptions=interruptions_of(np.exp(log_s)[in_batches], np.exp(_medians(log_s, probes))[in_batches]),
    )


def at_typical_speed(campaigns: Sequence[Phases]) -> Iterator[Phases]:
    """Yield campaigns of one machine with the quiet runs of all of them lengthened by the same factor.

    The factor is the mean of the campaigns' `typical`: how slow a machine is while one of them is measured is chance.
    """
    runs = [len(one.quiet) for one in campaigns]
    factor = statistics.fmean((one.typical for one in campaigns), weights=runs) if any(runs) else 1.0
    for one in campaigns:
        quiet = one.quiet if factor == 1.0 else tuple(_lengthened(taken, factor) for taken in one.quiet)
        yield replace(one, quiet=quiet)


def by_probe(samples: Iterable[ProbeSample]) -> dict[str, list[Sample]]:
    """Return the samples of each probe in their order."""
    found: dict[str, list[Sample]] = {}
    for one in samples:
        found.setdefault(one.probe, []).append(one.sample)
    return found


def _judged(log_s: Floats, probes: Ints) -> tuple[Floats, Mask]:
    """Return the slowness of each run of a batch, as a logarithm, and whether to keep it.

    `log_s` are logarithms of latencies, `probes` the number of each run's probe. The slowness of a run is the median of
    its deviation and those of its neighbours.
    """
    slowness = np.zeros_like(log_s)
    deviations = log_s
    continued = np.pad(np.arange(len(log_s)), _AROUND, mode="symmetric")  # by mirror images at both ends
    around = np.lib.stride_tricks.sliding_window_view(continued, 2 * _AROUND + 1)
    for _ in range(_ITERATIONS):
        deviations = log_s - _medians(log_s - slowness, probes)
        slowness = np.partition(deviations[around], _AROUND, axis=1)[:, _AROUND]
        slowness -= _quietest(slowness, deviations)
    if not _has_phases(deviations):
        return slowness, np.ones(len(log_s), dtype=np.bool_)
    return slowness, (slowness <= math.log1p(MOST_SLOWER)) | (_ranks(slowness, probes) < FEWEST_KEPT)


def _quietest(slowness: Floats, deviations: Floats) -> float:
    """Return the slowness of the quiet runs of a batch.

    The threads of a process may share no cache for most of a batch: in two parts of a processor, as on a host
    that moves the cores of its guests. Then only a few runs were quiet: faster by more than runs scatter.
    """
    quarter, few = np.quantile(slowness, _QUIET_SHARES)
    scatter = MAD_TO_SIGMA * float(np.median(abs(deviations - slowness)))
    return float(quarter if quarter - few <= max(math.log1p(MOST_SLOWER), scatter) else few)


def _has_phases(deviations: Floats) -> bool:
    """Return whether successive runs are more alike than any two runs of the batch are.

    If runs do not depend on time, the ratio of the two mean differences is about one, whatever their distribution. Its
    standard deviation is below one over the root of their number (after von Neumann, 1941).
    """
    count = len(deviations)
    if count < 2:
        return False
    ranks = np.arange(1 - count, count, 2)
    by_chance = 2 * float(ranks @ np.sort(deviations)) / (count * (count - 1))
    return float(np.mean(abs(np.diff(deviations)))) < by_chance * (1 - _SIGMAS / math.sqrt(count))


def _medians(values: Floats, groups: Ints) -> Floats:
    """Return for each value the median of its group."""
    order = np.lexsort((values, groups))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    ordered = values[order]
    centres = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return np.asarray(centres[groups])


def _ranks(values: Floats, groups: Ints) -> Ints:
    """Return the rank of each value in its group, from 0."""
    order = np.lexsort((values, groups))
    counts = np.bincount(groups)
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _sum_of_medians(log_s: Floats, groups: Ints) -> float:
    """Return the sum over all groups of the median of a group, in seconds."""
    return float(np.sum(_medians(np.exp(log_s), groups) / np.bincount(groups)[groups]))


def _lengthened(sample: ProbeSample, factor: float) -> ProbeSample:
    run = sample.sample
    cpu_ns = None if run.cpu_ns is None else round(run.cpu_ns * factor)
    return replace(sample, sample=replace(run, wall_ns=round(run.wall_ns * factor), cpu_ns=cpu_ns))


def _numbered(names: Iterable[str]) -> Ints:
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
