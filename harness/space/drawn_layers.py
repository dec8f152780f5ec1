"""Layers drawn evenly from a space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from harness.errors import ConfigurationError
from harness.space.blocks import AnyBlock
from harness.space.configuration import Configuration
from harness.space.space import LayerSpace

_POINTS_PER_LAYER = 20
_FEWEST = 4
"""Layers of each block that are looked for at least, some of which others may equal."""


def even_layers(space: LayerSpace, count: int, seed: int) -> list[Configuration]:
    """Return up to `count` layers that cover the space evenly: of each block by its share, points of a Sobol sequence.

    The first layers are one of each block. Raises ConfigurationError if the space holds none.
    """
    shares = np.array([block.share for block in space.layers])
    shares /= shares.sum()
    queues = {
        number: _points(space, block, _FEWEST + round(2 * count * shares[number]), seed + number)
        for number, block in enumerate(space.layers)
    }
    found: dict[Configuration, None] = {}
    taken = np.zeros(shares.size)
    while queues and len(found) < count:
        number = min(queues, key=lambda at: taken[at] / shares[at])
        layer = next((layer for layer in queues[number] if layer not in found), None)
        if layer is None:
            del queues[number]
        else:
            found[layer] = None
            taken[number] += 1
    if not found:
        raise ConfigurationError(
            "The space holds no layer",
            why="None of many drawn at random had sizes that fit together and lay within max_macs and max_bytes",
            next_step="Raise the limits or lower the sizes",
        )
    return list(found)


def _points(space: LayerSpace, block: AnyBlock, count: int, seed: int) -> Iterator[Configuration]:
    from scipy.stats import qmc

    exponent = int(np.ceil(np.log2(count * _POINTS_PER_LAYER)))
    points = qmc.Sobol(len(block.axes), scramble=True, seed=seed).random_base2(exponent)
    layers = (space.layer_at(block, point.tolist()) for point in points)
    return itertools.islice((layer for layer in layers if layer is not None), count)
