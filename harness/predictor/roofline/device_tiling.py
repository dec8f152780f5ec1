"""DeviceTiling in latency: work is done in whole tiles, and tiles in whole waves over the units of a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.predictor.features.layer_arrays import Floats, LayerArrays

WIDTHS = (32, 64, 128, 256)
_LARGEST_TILE = 32768
Tile = tuple[int, int, int]
"""Rows and columns of an output tile, and how many tiles a unit works on at a time."""
ALL_TILES: tuple[Tile, ...] = tuple(
    (rows, columns, together)
    for together in (1, 2)
    for rows in WIDTHS
    for columns in WIDTHS
    if rows * columns <= _LARGEST_TILE
)


@dataclass(frozen=True)
class DeviceTiling:
    """Where a device's latency steps up, found from its data.

    units: parallel units that share the tiles of a layer
    depth: how many products of a sum are taken at a time
    channels: what input channels are padded to
    tiles: output tiles that its kernels use
    """

    units: int
    depth: int
    channels: int
    tiles: tuple[Tile, ...] = ALL_TILES

    def waves(self, work: LayerArrays) -> Floats:
        """How often all units are filled, (layers, tiles)."""
        waves = [_tiles(work, rows, columns) / (self.units * together) for rows, columns, together in self.tiles]
        return np.ceil(np.stack(waves, axis=1))

    def turns(self, work: LayerArrays) -> Floats:
        """Depth steps of one tile, (layers,)."""
        padded = work.taps * np.ceil(work.group_channels / self.channels) * self.channels
        return np.ceil(padded / self.depth)

    def padded_work(self, work: LayerArrays) -> Floats:
        """Logarithm of the work done over the work asked for, (layers, tiles)."""
        area = np.array([rows * columns * together * self.units for rows, columns, together in self.tiles])
        done = self.waves(work) * area * (self.turns(work) * self.depth)[:, None]
        return np.asarray(np.log(done / work.macs[:, None]))


def _tiles(work: LayerArrays, rows: int, columns: int) -> Floats:
    return np.asarray(work.groups * np.ceil(work.rows / rows) * np.ceil(work.columns / columns))
