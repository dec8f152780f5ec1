"""Multiply-adds and external elements of chained layers cut into tiles, as DeFiNES counts them (HPCA 2023)."""

from collections.abc import Sequence
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import ceil_div


class ValidConvolution(NamedTuple):
    """A convolution with a square kernel, stride 1 and no padding."""

    kernel: int
    in_channels: int
    out_channels: int


class HaloMacs(NamedTuple):
    """Multiply-adds of a chain for each treatment of the halo."""

    recompute: int
    one_direction: int
    retained: int


def _margins(layers: Sequence[ValidConvolution]) -> list[int]:
    """Return how many rows (and columns) each layer's output exceeds the last output of the chain by."""
    margins, margin = [], 0
    for layer in reversed(layers):
        margins.append(margin)
        margin += layer.kernel - 1
    return margins[::-1]


def halo_macs(
    layers: Sequence[ValidConvolution], width: int, height: int, tile_width: int, tile_height: int
) -> HaloMacs:
    """Return the multiply-adds of a chain whose last output of width x height is computed tile by tile.

    - recompute: every tile computes its whole pyramid.
    - one_direction: tiles keep the halo along the width (DeFiNES: horizontally cached).
    - retained: tiles keep the halo along both axes (DeFiNES: fully cached).

    The last tile of a row or column counts with its own size.
    """
    columns, rows = ceil_div(width, tile_width), ceil_div(height, tile_height)
    recompute = one_direction = retained = 0
    for layer, margin in zip(layers, _margins(layers), strict=True):
        products = layer.kernel**2 * layer.in_channels * layer.out_channels
        across, down = width + columns * margin, height + rows * margin
        recompute += across * down * products
        one_direction += (width + margin) * down * products
        retained += (width + margin) * (height + margin) * products
    return HaloMacs(recompute, one_direction, retained)


def _intermediate_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    return sum(
        (width + margin) * (height + margin) * layer.out_channels
        for layer, margin in zip(layers[:-1], _margins(layers)[:-1], strict=True)
    )


def chained_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    """Return the external activation elements of a chain that keeps its halo: input read plus output written (S3.1)."""
    margin = sum(layer.kernel - 1 for layer in layers)
    read = (width + margin) * (height + margin) * layers[0].in_channels
    return read + width * height * layers[-1].out_channels


def layer_by_layer_elements(layers: Sequence[ValidConvolution], width: int, height: int) -> int:
    """Return the external activation elements without chaining: each intermediate is written once and read once."""
    return chained_elements(layers, width, height) + 2 * _intermediate_elements(layers, width, height)
