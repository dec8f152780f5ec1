"""Layers drawn evenly from a space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigurationError
from harness.space.blocks import AnyBlock
from harness.space.configuration import Configuration
from harness.space.space import LayerSpace

_HALVINGS = 12
_ENDS = 2
_POINTS_PER_LAYER = 20


@dataclass(frozen=True)
class SpaceLayers:
    """The layers of a space as `planner.explore` draws them."""

    space: LayerSpace

    def spread(self, count: int, seed: int) -> list[Configuration]:
        """Return up to `count` layers that cover the space evenly: the ends of every block, then a Sobol sequence."""
        shares = np.array([block.share for block in self.space.layers])
        shares /= shares.sum()
        queues = {
            number: self._spread(block, 2 * _ENDS + round(2 * count * shares[number]), seed + number)
            for number, block in enumerate(self.space.layers)
        }
        found: dict[Configuration, None] = {}
        taken = np.zeros(shares.size)
        while queues and len(found) < count:
            # The ends of all blocks come first, so that a small count covers them; then the block furthest behind.
            number = min(queues, key=lambda at: (max(taken[at], _ENDS), taken[at] / shares[at]))
            if taken[number] >= _ENDS:
                number = min(queues, key=lambda at: taken[at] / shares[at])
            layer = next((layer for layer in queues[number] if layer not in found), None)
            if layer is None:
                del queues[number]
            else:
                found[layer] = None
                taken[number] += 1
        if not found:
            raise _empty()
        return list(found)

    def _spread(self, block: AnyBlock, count: int, seed: int) -> Iterator[Configuration]:
        from scipy.stats import qmc

        axes = len(block.axes)
        exponent = int(np.ceil(np.log2(max(2, count * _POINTS_PER_LAYER))))
        inside = qmc.Sobol(axes, scramble=True, seed=seed).random_base2(exponent)
        ends = (self._end(block, np.full(axes, corner)) for corner in (0.0, 1.0))
        layers = itertools.chain(ends, (self._layer(block, point) for point in inside))
        yield from itertools.islice((layer for layer in layers if layer is not None), count)

    def _end(self, block: AnyBlock, corner: NDArray[np.float64]) -> Configuration | None:
        """The layer within the limits that is nearest to a corner of the block, on the line to its middle."""
        points = (corner + (0.5 - corner) * (halving / _HALVINGS) for halving in range(_HALVINGS))
        layers = (self._layer(block, point) for point in points)
        return next((layer for layer in layers if layer is not None), None)

    def _layer(self, block: AnyBlock, point: NDArray[np.float64]) -> Configuration | None:
        """The layer at a point of a block; None if its sizes do not fit together or exceed the limits."""
        layer = block.at(point.tolist())
        return layer if layer is not None and self.space.limits.hold(layer) else None


def _empty() -> ConfigurationError:
    return ConfigurationError(
        "The space holds no layer",
        why="None of many drawn at random had sizes that fit together and lay within max_macs and max_bytes",
        next_step="Raise the limits or lower the sizes",
    )
