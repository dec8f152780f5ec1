"""Layers drawn from a space: at random, and evenly for the first round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigurationError
from harness.space.configuration import Configuration
from harness.space.space import SearchSpace

if TYPE_CHECKING:
    from harness.space.blocks import AnyBlock

_TRIES = 200
"""Failed draws in a row after which a space counts as exhausted, or as empty within its limits."""
_HALVINGS = 12
_POINTS_PER_LAYER = 20


@dataclass(frozen=True)
class SpaceLayers:
    """The layers of a space as `planner.explore` draws them."""

    space: SearchSpace

    def random(
        self, count: int, generator: np.random.Generator, without: frozenset[Configuration]
    ) -> list[Configuration]:
        """See `random_layers`."""
        return random_layers(self.space, count, generator, without)

    def spread(self, count: int, seed: int) -> list[Configuration]:
        """See `spread_layers`."""
        return spread_layers(self.space, count, seed)


def random_layers(
    space: SearchSpace, count: int, generator: np.random.Generator, without: frozenset[Configuration] = frozenset()
) -> list[Configuration]:
    """Return up to `count` different layers, blocks by their shares; fewer only if the space is nearly exhausted.

    Raises ConfigurationError if no layer of the space is within its limits.
    """
    shares = np.array([block.share for block in space.layers])
    found: dict[Configuration, None] = {}
    misses = 0
    while len(found) < count and misses < _TRIES:
        block = space.layers[int(generator.choice(shares.size, p=shares / shares.sum()))]
        layer = _within(space, block.at(generator.random(len(block.axes)).tolist()))
        if layer is None or layer in found or layer in without:
            misses += 1
        else:
            found[layer] = None
            misses = 0
    if not found and not without:
        raise _empty()
    return list(found)


def spread_layers(space: SearchSpace, count: int, seed: int) -> list[Configuration]:
    """Return up to `count` layers that cover the space evenly: the ends of every block, then a Sobol sequence."""
    shares = np.array([block.share for block in space.layers])
    parts = np.maximum(2, np.round(count * shares / shares.sum())).astype(int)
    queues = [
        _spread(space, block, int(part), seed + number)
        for number, (block, part) in enumerate(zip(space.layers, parts, strict=True))
    ]
    found: dict[Configuration, None] = {}
    turn = 0
    while queues and len(found) < count:  # in turns, so that a small count covers all blocks
        queue = queues[turn % len(queues)]
        layer = next((layer for layer in queue if layer not in found), None)
        if layer is None:
            queues.remove(queue)
        else:
            found[layer] = None
            turn += 1
    if not found:
        raise _empty()
    return list(found)


def _spread(space: SearchSpace, block: AnyBlock, count: int, seed: int) -> Iterator[Configuration]:
    axes = len(block.axes)
    ends = (_end(space, block, np.zeros(axes)), _end(space, block, np.ones(axes)))
    points = (_within(space, block.at(point.tolist())) for point in _sobol(axes, count * _POINTS_PER_LAYER, seed))
    yield from itertools.islice((layer for layer in (*ends, *points) if layer is not None), count)


def _end(space: SearchSpace, block: AnyBlock, corner: NDArray[np.float64]) -> Configuration | None:
    """The layer within the limits that is nearest to a corner of the block, on the line to its middle."""
    middle = np.full(corner.size, 0.5)
    for halving in range(_HALVINGS):
        point = corner + (middle - corner) * (halving / _HALVINGS)
        layer = _within(space, block.at(point.tolist()))
        if layer is not None:
            return layer
    return None


def _sobol(axes: int, count: int, seed: int) -> NDArray[np.float64]:
    from scipy.stats import qmc

    exponent = int(np.ceil(np.log2(max(2, count))))
    return np.asarray(qmc.Sobol(axes, scramble=True, seed=seed).random_base2(exponent))


def _within(space: SearchSpace, layer: Configuration | None) -> Configuration | None:
    return layer if layer is not None and space.limits.hold(layer) else None


def _empty() -> ConfigurationError:
    return ConfigurationError(
        "The space holds no layer",
        why="None of many drawn at random had sizes that fit together and lay within max_macs and max_bytes",
        next_step="Raise the limits or lower the sizes",
    )
