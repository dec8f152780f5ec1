"""Finds loops in a list of items: bodies that repeat with addresses that advance by constants (S2.5).

The search goes from the outside in: it chooses the repetitions in a range of items that save most, then searches the
body of each. Within a body, items are equal only if the enclosing loops advance them equally.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from device_agents.emulated_npu.isa.settings_words import settings_words
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Item, Operand
from device_agents.emulated_npu.unit_settings import Settings

Steps = tuple[int, int, int, int, int]

OPERANDS = ("target", "first", "second", "third", "fourth")


@dataclass(frozen=True)
class RolledItem:
    """An item as in the first iteration of its enclosing loops, and how they advance it.

    `steps` has for every enclosing loop, outermost first, the bytes that an iteration adds to the address of each
    operand (in the order of OPERANDS; 0 if there is none).
    """

    item: Item
    steps: tuple[Steps, ...]


@dataclass(frozen=True)
class Straight:
    """Items in sequence."""

    entries: tuple[RolledItem, ...]


@dataclass(frozen=True)
class Loop:
    """`count` iterations of a body."""

    count: int
    body: tuple[CodePart, ...]


CodePart = Straight | Loop


def roll(items: Sequence[Item]) -> tuple[CodePart, ...]:
    """Return the items with repetitions as loops, chosen greedily for the shortest code."""
    if not items:
        return ()
    signatures, addresses = _interned(items)
    return _Roller(items, addresses).nodes(0, signatures, ())


def advance(node: CodePart, level: int, iterations: int) -> CodePart:
    """Return a node of the body of the loop at `level` (0 is the outermost) after some iterations, without the loop."""
    if isinstance(node, Loop):
        return Loop(node.count, tuple(advance(inner, level, iterations) for inner in node.body))
    return Straight(
        tuple(
            RolledItem(_advanced(entry, level, iterations), entry.steps[:level] + entry.steps[level + 1 :])
            for entry in node.entries
        )
    )


def _advanced(entry: RolledItem, level: int, iterations: int) -> Item:
    item, moves = entry.item, [iterations * step for step in entry.steps[level]]
    if not isinstance(item, Command) or not any(moves):
        return item
    operands: dict[str, Any] = {}
    for name, move in zip(OPERANDS, moves, strict=True):
        operand = getattr(item, name)
        operands[name] = operand and Operand(operand.descriptor, operand.address + move)
    return replace(item, **operands)


def _interned(items: Sequence[Item]) -> tuple[Array, Array]:
    """Return a number (n) for each item without its addresses, equal for equal items, and the addresses (n, 5)."""
    numbers: dict[Any, int] = {}
    known: dict[int, int] = {}

    def number(part: Descriptor | Settings) -> int:
        found = known.get(id(part))
        if found is None:
            # Settings are compared by words, because the values 0.0 and -0.0 are equal.
            key = settings_words(part) if isinstance(part, Settings) else part
            found = known[id(part)] = numbers.setdefault(key, len(numbers))
        return found

    signatures, addresses = [], []
    for item in items:
        if isinstance(item, Command):
            operands = (item.target, item.first, item.second, item.third, item.fourth)
            shapes = [-1 if operand is None else number(operand.descriptor) for operand in operands]
            flags = item.accumulate, item.peer, item.own_queue
            key: Any = (item.function, *shapes, number(item.settings), *flags, item.layer)
            addresses.append([0 if operand is None else operand.address for operand in operands])
        else:
            key = item
            addresses.append([0, 0, 0, 0, 0])
        signatures.append(numbers.setdefault(key, len(numbers)))
    return np.array(signatures, np.int64), np.array(addresses, np.int64)


class _Roller:
    def __init__(self, items: Sequence[Item], addresses: Array) -> None:
        self._items, self._addresses = items, addresses
        # Linear in the addresses: bodies advance equally if and (but for collisions) only if fingerprints do.
        self._fingerprints = addresses.astype(np.uint64) @ _MULTIPLIERS

    def nodes(self, start: int, signatures: Array, steps: tuple[Array, ...]) -> tuple[CodePart, ...]:
        """Return the items from `start` on, one per signature, in loops that advance them by `steps`."""
        size = len(signatures)
        addresses = self._addresses[start : start + size]
        found: list[CodePart] = []
        at = 0
        for begin, period, count in _repetitions(signatures, addresses, self._fingerprints[start : start + size]):
            if begin > at:
                found.append(self._straight(start, at, begin, steps))
            body = slice(begin, begin + period)
            step = addresses[begin + period : begin + 2 * period] - addresses[body]
            inner = _numbered(np.column_stack((signatures[body], step)))
            found.append(Loop(count, self.nodes(start + begin, inner, (*(one[body] for one in steps), step))))
            at = begin + period * count
        if size > at:
            found.append(self._straight(start, at, size, steps))
        return tuple(found)

    def _straight(self, start: int, low: int, high: int, steps: tuple[Array, ...]) -> Straight:
        items = self._items[start + low : start + high]
        if not steps:
            return Straight(tuple([RolledItem(item, ()) for item in items]))
        columns: list[list[Steps]] = [[tuple(row) for row in one[low:high].tolist()] for one in steps]
        return Straight(
            tuple([RolledItem(item, tuple(rows)) for item, rows in zip(items, zip(*columns, strict=True), strict=True)])
        )


_MULTIPLIERS = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


def _numbered(rows: Array) -> Array:
    """Return a number for each row, equal for equal rows."""
    numbers: Array = np.unique(rows, axis=0, return_inverse=True)[1]
    return numbers.reshape(-1)


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


def _repetitions(signatures: Array, addresses: Array, fingerprints: Array) -> list[tuple[int, int, int]]:
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
