"""A synthetic device with known latency: whole tiles on a few units, one memory, a launch."""

import math

import numpy as np
from convolutions import convolution

from harness.predictor.features.layer_features import (
    LayerFeatures,
    TrainingExample,
    channelwise,
    matrix_product,
)
from harness.predictor.roofline.device_tiling import DeviceTiling

UNITS, TILE, DEPTH = 12, 64, 16
TILING = DeviceTiling(UNITS, DEPTH, 1, ((TILE, TILE, 1),), skips_padding=0.0, product_share=1.0)
LAUNCH_S, TURN_S, BYTE_S = 5e-6, 4e-7, 2e-11
_CHANNELS = (16, 20, 24, 36, 48, 64, 72, 100, 128, 160, 192, 256)


def latency_s(layer: LayerFeatures, moved_bytes: float | None = None) -> float:
    """Return launch plus the longer of memory and waves of 64 x 64 tiles in depth steps of 16."""
    tiles = layer.groups * math.ceil(layer.rows / TILE) * math.ceil(layer.columns / TILE)
    turns = math.ceil(layer.in_channels // layer.groups * layer.taps / DEPTH)
    return LAUNCH_S + max(math.ceil(tiles / UNITS) * turns * TURN_S, (moved_bytes or layer.moved_bytes) * BYTE_S)


def random_layers(count: int, seed: int) -> list[LayerFeatures]:
    """Return different convolutions, poolings and matrix products."""
    generator = np.random.default_rng(seed)
    found: dict[LayerFeatures, None] = {}
    while len(found) < count:
        channels, out_channels = (int(value) for value in generator.choice(_CHANNELS, 2))
        edge = int(generator.integers(7, 57))
        kind = generator.random()
        if kind < 0.6:
            kernel = int(generator.choice([1, 3]))
            layer = convolution(
                batch=1,
                in_channels=channels,
                out_channels=out_channels,
                size=(edge, edge),
                kernel=(kernel, kernel),
                padding=(kernel // 2, kernel // 2),
            )
        elif kind < 0.8:
            size = (2 * edge, 2 * edge)
            layer = channelwise(
                "MaxPool", batch=1, channels=channels, in_size=size, out_size=(edge, edge), kernel=(2, 2), stride=(2, 2)
            )
        else:
            layer = matrix_product(rows=edge, depth=channels * 4, columns=out_channels * 4)
        found[layer] = None
    return list(found)


def measured(count: int, seed: int) -> list[TrainingExample]:
    """Return random layers with their latency and 1 % of noise."""
    noise = np.random.default_rng(seed).normal(1.0, 0.01, count)
    layers = random_layers(count, seed)
    return [
        TrainingExample(layer, latency_s(layer) * factor) for layer, factor in zip(layers, noise.tolist(), strict=True)
    ]
