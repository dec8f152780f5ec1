"""Blocks of neighbouring positions: their choices together are one number, so one lookup serves several positions.

The number of a block is a sum of its choices times strides. A product of two matrices computes the numbers of all
blocks of many candidates.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.architecture_search.position_tables import PositionTable, Window

Choices = NDArray[np.uint8]
"""Candidates, one row for each position."""
Codes = NDArray[np.intp]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class PositionBlock:
    """Positions `members`, whose terms depend on the choices in `window`."""

    members: Window
    window: Window


@dataclass(frozen=True)
class BlockCodes:
    """The blocks of a space with `sizes` choices."""

    sizes: tuple[int, ...]
    blocks: tuple[PositionBlock, ...]

    @functools.cached_property
    def strides(self) -> NDArray[np.float32]:
        """One row for each block, one column for each position."""
        found = np.zeros((len(self.blocks), len(self.sizes)), np.float32)
        for row, block in enumerate(self.blocks):
            first, stop = block.window
            found[row, first:stop] = [math.prod(self.sizes[at + 1 : stop]) for at in range(first, stop)]
        return found

    def of(self, choices: Choices) -> Codes:
        """Return the numbers of many candidates, one row for each block; all are below 2**24, which floats hold."""
        return (self.strides @ choices.astype(np.float32)).astype(np.intp)


def widened(values: NDArray[Number], window: Window, wider: Window) -> NDArray[Number]:
    """Return an array over the choices of a window as one over a wider window, along whose new axes it is constant."""
    shape = (1,) * (window[0] - wider[0]) + values.shape + (1,) * (wider[1] - window[1])
    return values.reshape(shape)


def union(one: Window, other: Window) -> Window:
    """Return the window of both."""
    return min(one[0], other[0]), max(one[1], other[1])


def grouped(tables: Sequence[PositionTable], sizes: Sequence[int], most: int) -> tuple[PositionBlock, ...]:
    """Return the longest blocks with at most `most` combinations each; a block of one position may have more."""
    blocks: list[PositionBlock] = []
    for at, table in enumerate(tables):
        if blocks:
            last = blocks[-1]
            longer = PositionBlock((last.members[0], at + 1), union(last.window, table.window))
            if combinations(sizes, longer.window) <= most:
                blocks[-1] = longer
                continue
        blocks.append(PositionBlock((at, at + 1), table.window))
    return tuple(blocks)


def combinations(sizes: Sequence[int], window: Window) -> int:
    """Return the number of combinations of choices in a window."""
    return math.prod(sizes[slice(*window)])
