"""Which ranges of a list of items repeat, and which of these repetitions save most as loops (S2.5)."""

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from device_agents.emulated_npu.numpy_types import Array


class _Region(NamedTuple):
    """A range where every item equals the one `period` before it and, unless `pair`, advances by constants."""

    start: int
    end: int
    period: int
    pair: bool

    @property
    def fitting(self) -> int:
        """How often the body fits into the range."""
        return min((self.end - self.start) // self.period, 2 if self.pair else self.end)

    @property
    def gain(self) -> int:
        """Instructions that a loop saves, with a new address for every other item."""
        return (self.fitting - 1) * (self.period + (self.period + 1) // 2) - _LOOP_INSTRUCTIONS


_LOOP_INSTRUCTIONS = 3  # setting, counting, branching
# Smaller savings are not worth the time of counting and branching in every iteration.
_LEAST_GAIN = 6
_LEAST_GAIN_OF_PAIR = 16
# Any two bodies advance by constants. They count as a repetition only if they have few different steps.
_PAIR_ITEMS_PER_STEP = 4


def repetitions(signatures: Array, addresses: Array, fingerprints: Array) -> list[tuple[int, int, int]]:
    """Return disjoint repetitions (start, period, count) in order; those that save most are chosen first."""
    regions = _all_regions(signatures, fingerprints)
    inner = np.array([region[:3] for region in regions if not region.pair], np.int64).reshape(-1, 3)
    heap = [(-region.gain, region) for region in regions if region.gain > 0]
    heapq.heapify(heap)
    taken = _Taken()
    chosen = []
    while heap:
        _, region = heapq.heappop(heap)
        free = taken.free(region.start, region.end)
        if free != [(region.start, region.end)]:
            parts = [region._replace(start=start, end=end) for start, end in free]
            for part in parts:
                if part.gain > 0:
                    heapq.heappush(heap, (-part.gain, part))
            continue
        start, period, count = _aligned(region, inner), region.period, region.fitting
        if _pays(addresses[start : start + period * count], period):
            taken.add(start, start + period * count)
            chosen.append((start, period, count))
    return sorted(chosen)


def _pays(addresses: Array, period: int) -> bool:
    """Return whether bodies advance by constants, and a loop is less code than setting every new address once."""
    bodies = addresses.reshape(-1, period * addresses.shape[1])
    steps = np.diff(bodies, axis=0)
    if not (steps == steps[0]).all():
        return False
    moves = steps[0] != 0
    moving = len(np.unique(np.column_stack((bodies[0], steps[0]))[moves], axis=0))
    if len(bodies) > 2:
        saved = (len(bodies) - 1) * (period + moving) - moving
        return saved - _LOOP_INSTRUCTIONS >= _LEAST_GAIN
    if len(np.unique(steps[0])) > period // _PAIR_ITEMS_PER_STEP:
        return False
    new = len(np.unique(bodies)) - len(np.unique(bodies[0]))
    return period + new - moving - _LOOP_INSTRUCTIONS >= _LEAST_GAIN_OF_PAIR


def _aligned(region: _Region, inner: Array) -> int:
    """Return the first place where the body can begin without dividing a repetition of a shorter period."""
    slack = region.end - region.start - region.fitting * region.period
    if region.pair or not slack:
        return region.start
    starts, ends, periods = inner.T
    last = region.start + slack
    cut = np.zeros(slack + 1, bool)
    for index in np.flatnonzero((starts < last) & (ends > region.start) & (2 * periods <= region.period)):
        cut[max(starts[index] + 1 - region.start, 0) : ends[index] - region.start] = True
    free = np.flatnonzero(~cut)
    return region.start + (int(free[0]) if free.size else 0)


class _Taken:
    """Disjoint ranges that are already taken."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        index = bisect_right(self._starts, start)
        self._starts.insert(index, start)
        self._ends.insert(index, end)

    def free(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not taken."""
        left = []
        index = bisect_right(self._ends, start)
        while index < len(self._starts) and self._starts[index] < end:
            if self._starts[index] > start:
                left.append((start, self._starts[index]))
            start = self._ends[index]
            index += 1
        if start < end:
            left.append((start, end))
        return left


_SHORT_PERIODS = 32
_OCCURRENCES = 6
_MOST_PERIODS = 256


def _all_regions(signatures: Array, fingerprints: Array) -> list[_Region]:
    """Return the repetitions of every promising period, including the distances at which repetitions recur."""
    regions: list[_Region] = []
    tried: set[int] = set()
    periods = _periods(signatures, fingerprints)
    while periods:
        tried.update(periods)
        found = [region for period in periods for region in _regions(signatures, fingerprints, period)]
        regions += found
        steady = np.array([(region.period, region.start) for region in found if not region.pair], np.int64)
        marks = steady[np.lexsort(steady.T[::-1])] if len(steady) else steady.reshape(0, 2)
        distances = _distances(marks[:, 1], marks[:, 0])
        periods = [period for period in _commonest(distances, len(signatures)) if period not in tried]
    return regions


def _periods(signatures: Array, fingerprints: Array) -> list[int]:
    """Return promising periods: the short ones, and the distances between equal items and equal neighbours."""
    size = len(signatures)
    order = np.argsort(signatures, kind="stable")
    step = np.diff(fingerprints)
    neighbours = np.argsort(step, kind="stable")
    distances = (_distances(order, signatures[order]), _distances(neighbours, step[neighbours]))
    short = range(1, min(_SHORT_PERIODS, size // 2) + 1)
    return sorted({*short, *_commonest(np.concatenate(distances), size)})


def _distances(places: Array, values: Array) -> Array:
    """Return the distances from each place to the next few with the same value; `values` must be sorted."""
    found = [(places[k:] - places[:-k])[values[k:] == values[:-k]] for k in range(1, _OCCURRENCES + 1)]
    return np.concatenate(found)


def _commonest(distances: Array, size: int) -> list[int]:
    """Return the most frequent distances, of those that fit twice."""
    found, counts = np.unique(distances, return_counts=True)
    fitting = 2 * found <= size
    found, counts = found[fitting], counts[fitting]
    common: list[int] = found[np.argsort(-counts, kind="stable")[:_MOST_PERIODS]].tolist()
    return common


def _regions(signatures: Array, fingerprints: Array, period: int) -> Iterator[_Region]:
    """Yield maximal ranges of three or more repetitions that advance by constants, and of two with any steps."""
    same = signatures[:-period] == signatures[period:]
    if np.count_nonzero(same) < period:
        return
    for start, end in _runs(same, period):
        yield _Region(start, end + period, period, pair=True)
    step = fingerprints[period:] - fingerprints[:-period]
    steady = same[:-period] & same[period:] & (step[:-period] == step[period:])
    for start, end in _runs(steady, period):
        yield _Region(start, end + 2 * period, period, pair=False)


def _runs(mask: Array, least: int) -> list[tuple[int, int]]:
    """Return the ranges of at least `least` true elements."""
    edges = np.concatenate(([-1], np.flatnonzero(~mask), [len(mask)]))
    long = np.flatnonzero(np.diff(edges) > least)
    return [(int(edges[index]) + 1, int(edges[index + 1])) for index in long]
