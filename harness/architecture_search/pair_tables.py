"""Variances of candidates: a quadratic form of counts, as lookups by pairs of blocks of positions.

The counts of a candidate are the sum of the counts u of its blocks. So its variance is the sum of `u Q u` over blocks
and of `2 u Q v` over pairs of blocks. Each term depends on two numbers only and is computed once. Nothing is
approximated: the covariance Q may be any.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.architecture_search.block_codes import BlockCodes, Choices, PositionBlock, combinations, union, widened
from harness.architecture_search.position_tables import PositionTable
from harness.array_types import Floats, Ints
from harness.errors import UnsupportedNetwork
from harness.text import byte_size

_MOST_KINDS = 128
"""Different counts of a block with several positions: a table of a pair then has at most 128 KiB."""
_MOST_CODES = 1 << 16
MOST_BYTES = 1 << 29


@dataclass(frozen=True)
class _Numbered:
    """A block whose different counts are numbered: `kinds` by choices, and counts and own variance of each kind."""

    block: PositionBlock
    kinds: Ints
    counts: Floats
    spread_s2: Floats

    def joined(self, other: _Numbered) -> _Numbered:
        """Return this block and the next one as one."""
        window = union(self.block.window, other.block.window)
        both = widened(self.kinds, self.block.window, window) * len(other.counts)
        both = both + widened(other.kinds, other.block.window, window)
        held, kinds = np.unique(both, return_inverse=True)
        left, right = np.divmod(held, len(other.counts))
        return _Numbered(
            PositionBlock((self.block.members[0], other.block.members[1]), window),
            kinds.reshape(both.shape).astype(np.int64),
            self.counts[left] + other.counts[right],
            self.spread_s2[left] + other.spread_s2[right],
        )


@dataclass(frozen=True)
class PairTables:
    """For each block the kinds of counts by its number, None where these are equal; for each pair a table by kinds.

    `numbers` are the numbers of kinds. With one block there is one table, by its kind.
    """

    codes: BlockCodes
    kinds: tuple[Ints | None, ...]
    numbers: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    tables: tuple[Floats, ...]

    @classmethod
    def of(cls, tables: Sequence[PositionTable], sizes: Sequence[int], covariance: Floats) -> PairTables:
        """Make the tables; raises UnsupportedNetwork if they take too much memory."""
        blocks = _blocks([_numbered(at, table, len(covariance)) for at, table in enumerate(tables)], sizes)
        numbers = tuple(len(one.counts) for one in blocks)
        _check_size(numbers)
        codes = BlockCodes(tuple(sizes), tuple(one.block for one in blocks))
        weighted = [one.counts @ covariance for one in blocks]
        alone = [(left * one.counts).sum(axis=1) + one.spread_s2 for left, one in zip(weighted, blocks, strict=True)]
        flat = (one.kinds.ravel() for one in blocks)
        kinds = tuple(None if np.array_equal(one, np.arange(len(one))) else one for one in flat)
        if len(blocks) == 1:
            return cls(codes, kinds, numbers, (), (alone[0],))
        pairs = tuple(itertools.combinations(range(len(blocks)), 2))
        found = {(at, other): 2.0 * weighted[at] @ blocks[other].counts.T for at, other in pairs}
        for at, own in enumerate(alone[:-1]):
            found[at, at + 1] += own[:, None]
        found[len(alone) - 2, len(alone) - 1] += alone[-1]
        return cls(codes, kinds, numbers, pairs, tuple(np.ascontiguousarray(found[pair]).ravel() for pair in pairs))

    def sums(self, choices: Choices) -> Floats:
        """Return the variance of each candidate."""
        rows = [
            codes if kinds is None else kinds.take(codes, mode="clip")
            for codes, kinds in zip(self.codes.of(choices), self.kinds, strict=True)
        ]
        if not self.pairs:
            alone: Floats = self.tables[0].take(rows[0], mode="clip")
            return alone
        total = np.zeros(choices.shape[1])
        place, found = np.empty_like(rows[0]), np.empty_like(total)
        for (at, other), table in zip(self.pairs, self.tables, strict=True):
            np.multiply(rows[at], self.numbers[other], out=place)
            np.add(place, rows[other], out=place)
            total += table.take(place, mode="clip", out=found)
        return total


def _numbered(at: int, table: PositionTable, sources: int) -> _Numbered:
    """Return one position as a block."""
    numbers: dict[tuple[tuple[tuple[int, float], ...], float], int] = {}
    renamed = [numbers.setdefault((terms.counts, terms.spread_s2), len(numbers)) for terms in table.terms]
    counts = np.zeros((len(numbers), sources))
    for row, (held, _) in enumerate(numbers):
        for source, count in held:
            counts[row, source] = count
    spread_s2 = np.array([own_s2 for _, own_s2 in numbers])
    return _Numbered(PositionBlock((at, at + 1), table.window), np.array(renamed)[table.kinds], counts, spread_s2)


def _blocks(positions: Sequence[_Numbered], sizes: Sequence[int]) -> list[_Numbered]:
    """Join neighbouring positions as long as the blocks have few kinds."""
    blocks = [positions[0]]
    for one in positions[1:]:
        last = blocks[-1]
        if combinations(sizes, union(last.block.window, one.block.window)) <= _MOST_CODES:
            longer = last.joined(one)
            if len(longer.counts) <= _MOST_KINDS:
                blocks[-1] = longer
                continue
        blocks.append(one)
    return blocks


def _check_size(numbers: Sequence[int]) -> None:
    total_bytes = sum(8 * one * other for one, other in itertools.combinations(numbers, 2))
    if total_bytes > MOST_BYTES:
        why = f"Their tables take {byte_size(total_bytes)}; the limit is {byte_size(MOST_BYTES)}"
        step = "Ask for latencies without intervals, or use a table without neighbourhoods of these layers"
        raise UnsupportedNetwork("Intervals of this space need too much memory", why=why, next_step=step)
