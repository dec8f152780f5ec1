"""What a device loads again of a map that its buffer does not hold: tiles whose windows overlap share rows and columns.

A tile of the result is computed from all that its windows span. The device cuts a layer into the tiles that load least
among those that fit into its buffer, together with what they write. With a dilation, a window spans many rows of which
it reads few, and all of them are loaded. At most, a device loads the taps of each window by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays

_TILES = 2.0 ** np.arange(13)[:, None]
"""Sizes of tiles along an axis."""


@dataclass(frozen=True)
class _AxisTiles:
    """Along one axis, for tiles of each size: what a tile computes and holds, and what all of them load."""

    computed: Floats
    held: Floats
    loaded: Floats

    @classmethod
    def of(cls, arrays: LayerArrays, axis: str) -> _AxisTiles:
        size, taps, apart = (arrays.sizes[f"{name}_{axis}"] for name in ("in", "kernel", "dilation"))
        count, stride = arrays.sizes[f"out_{axis}"], arrays.sizes[f"stride_{axis}"]
        window, padding = (taps - 1.0) * apart + 1.0, arrays.padding(axis)
        computed = np.minimum(_TILES, count)
        tiles, step, span = np.ceil(count / computed), computed * stride, (computed - 1.0) * stride + window
        outside = np.minimum(np.ceil(padding / step), tiles)  # tiles that begin in the padding
        begins = (tiles - outside) * (step * (outside + tiles - 1.0) / 2.0 - padding)
        inside = np.clip(np.floor((size + padding - span) / step) + 1.0, 0.0, tiles - 1.0)  # tiles that end on the map
        ends = inside * (span - padding + step * (inside - 1.0) / 2.0) + (tiles - 1.0 - inside) * size
        last = np.minimum((count - 1.0) * stride + window - padding, size)
        return cls(computed, np.minimum(span, size), np.maximum(ends + last - begins, size))


def times_loaded(arrays: LayerArrays, buffer_bytes: float) -> Floats:
    """Return how many times the elements of each layer's map are loaded on average, (layers,); 1 if the map fits."""
    rows, columns = (_AxisTiles.of(arrays, axis) for axis in ("height", "width"))
    element_bytes = arrays.sizes["element_bytes"]
    read, written = arrays.group_channels * element_bytes, arrays.columns * element_bytes
    held = rows.held[:, None] * columns.held * read + rows.computed[:, None] * columns.computed * written
    fits = held <= buffer_bytes
    least = np.where(fits, rows.loaded[:, None] * columns.loaded, np.inf).min(axis=(0, 1))
    pixels, windows = (arrays.sizes[f"{name}_height"] * arrays.sizes[f"{name}_width"] for name in ("in", "out"))
    return np.asarray(np.maximum(np.minimum(least, arrays.taps * windows) / pixels, 1.0))
