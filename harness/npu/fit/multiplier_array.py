"""Arrays of multipliers: how many operations layers take on them, idle multipliers included."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays

Packing = Literal["none", "row"]
"""What fills the rows of the array: input channels, or rows of the window, one at a time where it has padding."""
SIDES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Numbers of rows and columns that are tried."""


@dataclass(frozen=True, order=True)
class MultiplierArray:
    """An array of multipliers that reduces over its rows and computes one output channel per column.

    Channels that do not fill it leave multipliers idle, so latency has steps in the numbers of channels. An array of
    1 x 1 has no steps.
    """

    rows: int = 1
    columns: int = 1
    packing: Packing = "none"

    @property
    def multipliers(self) -> int:
        """Multiply-adds in a cycle."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}" + (", rows of the window" if self.packing == "row" else "")

    def operations(self, layers: LayerArrays) -> Floats:
        """Return multiply-adds with those of idle multipliers, (layers,); a product of matrices fills the array."""
        height, width = layers.sizes["kernel_height"], layers.sizes["kernel_width"]
        channels = layers.group_channels
        if self.packing == "row":
            line = height * np.ceil(width * channels / self.rows)
            whole = np.ceil(height * width * channels / self.rows)
            depth = line - _without_padding(layers) * (line - whole)
        else:
            depth = height * width * np.ceil(channels / self.rows)
        cycles = layers.groups * layers.rows * np.ceil(layers.columns / self.columns) * depth
        return np.asarray(cycles * self.multipliers)

    def after_first(self, layers: LayerArrays) -> Floats:
        """Return the share of a layer after its first round of columns, (layers,)."""
        return np.asarray(1 - 1 / np.ceil(layers.columns / self.columns))


def _without_padding(layers: LayerArrays) -> Floats:
    """Return the share of the outputs of a line whose windows have no padding to the left or right, (layers,)."""
    size, outputs, kernel, stride = (
        layers.sizes[name] for name in ("in_width", "out_width", "kernel_width", "stride_width")
    )
    reach = (layers.sizes["dilation_width"] * (kernel - 1)) + 1
    before = np.maximum(0, np.floor(((outputs - 1) * stride + reach - size) / 2))
    low, high = np.ceil(before / stride), np.minimum(outputs, np.floor((size + before - reach) / stride) + 1)
    return np.asarray(np.maximum(0, high - low) / outputs)


NO_STEPS = MultiplierArray()


def candidates() -> tuple[MultiplierArray, ...]:
    """Return the arrays that are tried, that without steps first."""
    sides = itertools.product(SIDES, SIDES, get_args(Packing))
    # With one row, or one multiplier in all, the packings are equal.
    return tuple(
        MultiplierArray(rows, columns, packing) for rows, columns, packing in sides if packing == "none" or rows > 1
    )
