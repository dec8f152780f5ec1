"""Sums of a value over the positions of candidates, read from one table for each block of positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.architecture_search.block_codes import BlockCodes, Choices, PositionBlock, grouped, widened
from harness.architecture_search.layer_terms import Terms
from harness.architecture_search.position_tables import PositionTable

_MOST_CODES = 1 << 14
"""Combinations of a block: its table of 128 KiB stays in a core's cache."""


@dataclass(frozen=True)
class SumTables:
    """One table for each block, with the sum of its positions by the number of the block."""

    codes: BlockCodes
    tables: tuple[NDArray[np.generic], ...]

    @classmethod
    def of(
        cls,
        tables: Sequence[PositionTable],
        sizes: Sequence[int],
        value: Callable[[Terms], float],
        dtype: type[np.generic] = np.float64,
    ) -> SumTables:
        """Make the tables of a value of terms."""
        codes = BlockCodes(tuple(sizes), grouped(tables, sizes, _MOST_CODES))
        values = [np.array([value(terms) for terms in table.terms], dtype) for table in tables]
        return cls(codes, tuple(_summed(codes, block, tables, values, dtype) for block in codes.blocks))

    def sums(self, choices: Choices) -> NDArray[np.generic]:
        """Return the sum of each candidate."""
        first, *rest = self.codes.of(choices)
        total: NDArray[Any] = self.tables[0].take(first, mode="clip")
        found = np.empty_like(total)
        for table, codes in zip(self.tables[1:], rest, strict=True):
            total += table.take(codes, mode="clip", out=found)
        return total


def _summed(
    codes: BlockCodes,
    block: PositionBlock,
    tables: Sequence[PositionTable],
    values: Sequence[NDArray[np.generic]],
    dtype: type[np.generic],
) -> NDArray[np.generic]:
    found = np.zeros(codes.sizes[slice(*block.window)], dtype)
    for at in range(*block.members):
        found += widened(values[at][tables[at].kinds], tables[at].window, block.window)
    return found.ravel()
