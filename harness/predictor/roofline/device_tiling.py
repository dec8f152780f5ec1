"""Steps in latency: a device works in whole tiles, and on tiles in whole waves over its parallel units.

Layers that compute each channel alone are not matrix products: their elements go through vector units, a few at a time,
and their work has no steps of tiles. With them, a pooling of the whole map to one pixel would fill one row of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.roofline.tile_refetch import times_loaded
from harness.strict_model import Share, Size

_MOST_TAPS = 64
_ALONE = 2.0
"""The time of a tap at the edge of a map, where pixels are processed one at a time, over one in its middle."""
WIDTHS = (32, 64, 128, 256)
_RUN = 64.0
"""Elements that a jump in memory takes the time of."""
_LARGEST_TILE = 32768
_VECTOR_BYTES = 64
_PIXELS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 16.0, 32.0)
"""Pixels that an array may compute together."""
Tile = tuple[Size, Size, Size]
"""Rows and columns of an output tile, and the number of tiles that a unit works on at a time."""
ALL_TILES: tuple[Tile, ...] = tuple(
    (rows, columns, together)
    for together in (1, 2)
    for rows in WIDTHS
    for columns in WIDTHS
    if rows * columns <= _LARGEST_TILE
)


@dataclass(frozen=True)
class AxisShares:
    """Along one axis: the share of taps that lie on the map, and of positions whose taps all do, (layers,)."""

    taps: Floats
    whole: Floats


def shares_of(arrays: LayerArrays, axis: str) -> AxisShares:
    """Return the shares along the axis "height" or "width"."""
    size, taps, apart = (arrays.sizes[f"{name}_{axis}"] for name in ("in", "kernel", "dilation"))
    count, stride = arrays.sizes[f"out_{axis}"], arrays.sizes[f"stride_{axis}"]
    padding = arrays.padding(axis)

    def on_map(first_tap: Floats | int, last_tap: Floats | int) -> Floats:
        """Count the positions whose taps from the first to the last are on the map."""
        first = np.maximum(np.ceil((padding - first_tap * apart) / stride), 0.0)
        last = np.minimum(np.floor((size - 1 + padding - last_tap * apart) / stride), count - 1)
        return np.asarray(np.maximum(last - first + 1, 0.0))

    inside = np.zeros(len(arrays))
    for tap in range(min(int(taps.max(initial=0)), _MOST_TAPS)):
        inside += np.where(tap < taps, on_map(tap, tap), 0.0)
    share = np.clip(inside / (count * np.minimum(taps, _MOST_TAPS)), 0.0, 1.0)
    return AxisShares(share, np.minimum(on_map(0, taps - 1) / count, share))


def work_on_map(arrays: LayerArrays) -> Floats:
    """Return the time of a window that skips its padding over that of one without padding, (layers,)."""
    rows, columns = shares_of(arrays, "height"), shares_of(arrays, "width")
    return np.asarray(rows.taps * (_ALONE * columns.taps - (_ALONE - 1.0) * columns.whole))


@dataclass(frozen=True)
class DeviceTiling:
    """The tiling of a device's kernels, found from its latencies.

    units: parallel units that share the tiles of a layer
    depth: products of a sum computed at a time
    channels: input channels are padded to a multiple of this; vector units pad no layer with fewer, such as a first one
    tiles: output tiles of its kernels
    skips_padding: 1 if taps outside the map take no time, see `work_on_map`, 0 if they take as long as others
    product_share: the part of the product of a transposed convolution that moves with the result it is added up to
    buffer_bytes: the memory that holds a tile of a layer, see `times_loaded`; 0 if all maps are loaded once
    copies_windows: convolutions copy their windows where `unfolds` says that a processor does
    copies_to_memory: these copies are written to the memory of the maps; otherwise they stay in the cache of a core
    pixels_fill_vectors: products of copied windows have an output channel in each row of a tile, pixels in its columns
    shares_work: several processors share the work of large layers, at a second start-up
    compares_places: without addressed writes, a scatter compares each of its updates with each row of the table
    stores_tables: a table that the layer before computes moves to the memory from which its rows are picked
    channels_alone: each output of a depthwise convolution with several outputs per channel is computed by itself
    adds_up: a unit that waits for memory computes nothing, so that a layer takes almost the sum of its parts
    packs_pixels: columns that few output channels leave idle compute further pixels of a line, see `_packed`
    holds_weights: an array keeps depth x columns weights, a *fold*, and all pixels stream through it before the next
    """

    units: Size
    depth: Size
    channels: Size
    tiles: Annotated[tuple[Tile, ...], Field(min_length=1)] = ALL_TILES
    skips_padding: Share = 0.5
    product_share: Share = 0.25
    buffer_bytes: Annotated[int, Field(ge=0, lt=2**31)] = 0
    copies_windows: bool = True
    copies_to_memory: bool = False
    pixels_fill_vectors: bool = True
    shares_work: bool = False
    holds_weights: bool = False
    packs_pixels: bool = False
    compares_places: bool = False
    stores_tables: bool = False
    channels_alone: bool = False
    adds_up: bool = False

    @property
    def streams(self) -> bool:
        """Whether the device processes one pixel at a time."""
        return all(rows == 1 for rows, _, _ in self.tiles)

    def described(self, arrays: LayerArrays) -> LayerArrays:
        """Return layers with the bytes that this device loads and writes."""
        found = arrays if self.copies_windows else arrays.without_copies()
        found = found.without_copying() if self.copies_to_memory or not self.copies_windows else found
        found = found.with_products(self.product_share)
        found = found.with_channels_alone() if self.channels_alone else found
        found = found if self.stores_tables else found.without_tables()
        if not self.buffer_bytes:
            return found
        again = (times_loaded(arrays, self.buffer_bytes) - 1.0) * arrays.in_bytes
        return replace(found, moved_bytes=found.moved_bytes + again)

    def waves(self, arrays: LayerArrays) -> Floats:
        """Return how often all units are filled, (layers, tiles); with folds, of which each streams all pixels."""
        rows, columns = self._matrix(arrays)
        waves = []
        for own_rows, own_columns, together in self.tiles:
            tiles = arrays.groups * np.ceil(rows / own_rows) * np.ceil(columns / own_columns)
            tiles = tiles * (_packed(arrays, self.depth, own_columns) if self.packs_pixels else 1.0)
            parts = arrays.groups * arrays.rows / (own_rows * own_columns)
            waves.append(np.where(arrays.channelwise, parts, tiles) / (self.units * together))
        shares = np.stack(waves, axis=1) * _whole_vectors(arrays)[:, None]
        if self.holds_weights:
            folds = shares / arrays.rows[:, None] * self._depth_steps(arrays)[:, None]
            return np.where(arrays.channelwise[:, None], shares, folds)
        return np.where(arrays.channelwise[:, None], shares, np.ceil(shares))

    def turns(self, arrays: LayerArrays) -> Floats:
        """Return the depth steps of one tile, or the pixels that a fold streams, (layers,)."""
        on_map = work_on_map(arrays) ** self.skips_padding
        # Copied windows contain their padding.
        on_map = np.where(arrays.multiplies_windows & self.copies_windows, 1.0, on_map)
        own = arrays.taps * on_map + _RUN * arrays.runs / (arrays.groups * arrays.rows)
        own = own + (arrays.scattered_rows if self.compares_places else 0.0)
        steps = arrays.rows if self.holds_weights else self._depth_steps(arrays)
        return np.where(arrays.channelwise, own / self.depth, steps * on_map)

    def _matrix(self, arrays: LayerArrays) -> tuple[Floats, Floats]:
        """Return the rows and columns of each group's product, as tiles cover them."""
        by_pixels = self.copies_windows and self.pixels_fill_vectors and not self.holds_weights
        swapped = arrays.multiplies_windows & by_pixels
        return np.where(swapped, arrays.columns, arrays.rows), np.where(swapped, arrays.rows, arrays.columns)

    def _depth_steps(self, arrays: LayerArrays) -> Floats:
        channels = arrays.group_channels
        few = (channels < self.channels) & self.streams
        padded = arrays.taps * np.where(few, channels, np.ceil(channels / self.channels) * self.channels)
        return np.asarray(np.ceil(padded / self.depth))

    def padded_work(self, arrays: LayerArrays) -> Floats:
        """Return the logarithm of work done, padding included, over useful work, (layers, tiles)."""
        area = np.array([rows * columns * together * self.units for rows, columns, together in self.tiles])
        done = self.waves(arrays) * area * (self.turns(arrays) * self.depth)[:, None]
        return np.asarray(np.log(done / arrays.macs[:, None]))


def _packed(arrays: LayerArrays, depth: int, columns: int) -> Floats:
    """Return the time of layers whose pixels fill the columns of an array over that of one pixel after another.

    A block of pixels of a line reads all that their windows span, with weights of zero in between, if one pixel fills
    less than the array. Windows with gaps or of three axes, and those of groups, are read row by row.
    """
    sizes, channels = arrays.sizes, arrays.group_channels
    is_line = (sizes["in_width"] == 1) & (sizes["kernel_width"] == 1)
    along, stride, count = (
        np.where(is_line, sizes[f"{name}_height"], sizes[f"{name}_width"]) for name in ("kernel", "stride", "out")
    )
    lines = arrays.taps / along
    count = np.where((arrays.taps > 1) & (channels * arrays.columns < depth * columns), count, 1.0)

    def steps(pixels: float) -> Floats:
        deep = np.ceil(lines * (along + (pixels - 1.0) * stride) * channels / depth)
        return np.where(pixels <= count, deep * np.ceil(pixels * arrays.columns / columns) / pixels, np.inf)

    by_row = lines * np.ceil(along * channels / depth) * np.ceil(arrays.columns / columns)
    is_whole = (sizes["dilation_height"] == 1) & (sizes["dilation_width"] == 1) & (arrays.groups == 1)
    is_whole &= np.array([name.startswith("mac/conv/dense") and "-3d" not in name for name in arrays.operators])
    alone = arrays.channelwise | (arrays.groups == sizes["in_channels"])
    fastest = np.where(is_whole, np.min([steps(pixels) for pixels in _PIXELS], axis=0), by_row)
    return np.where(alone & (arrays.groups > 1), 1.0, fastest / steps(1.0))


def _whole_vectors(arrays: LayerArrays) -> Floats:
    """Return the channels of whole vectors over those of each layer: it also computes the empty part of the last one.

    This holds for windows over bytes that keep channels apart; the ratio of all other layers is 1.
    """
    own = arrays.channelwise & (arrays.sizes["element_bytes"] == 1) & (arrays.taps > 1)
    return np.where(own, np.ceil(arrays.groups / _VECTOR_BYTES) * _VECTOR_BYTES / arrays.groups, 1.0)
