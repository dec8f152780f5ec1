"""Layers as arrays: the sizes that every part of the predictor computes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.predictor.features.data_movement_classes import COMBINE, PICKED, SCATTERED
from harness.predictor.features.layer_features import (
    MULTIPLIED,
    WIDEST,
    LayerFeatures,
    code_of,
    multiplies_windows,
    unfolds,
)
from harness.predictor.features.offset_names import offset_names

_PLAIN = (
    *("batch", "in_channels", "out_channels", "groups", "extra_operands", "element_bytes", "run", "maps", "warm"),
    *("result_elements", "parts", "is_channelwise"),
)
_PAIRS = {"in": "in_size", "out": "out_size", "kernel": "kernel", "stride": "stride", "dilation": "dilation"}
_DERIVED = (
    *("rows", "columns", "macs", "in_bytes", "out_bytes", "weight_bytes", "moved_bytes", "unfolded_bytes"),
    *("copy_macs",),
)


@dataclass(frozen=True)
class LayerArrays:
    """Layers by column; every array has one entry per layer.

    `operators` are the classes that name the layers' code, `paths` their finest ones, and `names` those of
    `offset_names`. `sizes` holds the plain sizes of `LayerFeatures` by name, and its pairs as for instance `in_height`
    and `in_width`. `rows`, `columns` and `groups` describe the layer as `groups` matrix products of (rows, depth) and
    (depth, columns).
    """

    operators: tuple[str, ...]
    paths: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    sizes: dict[str, Floats]
    rows: Floats
    columns: Floats
    macs: Floats
    in_bytes: Floats
    out_bytes: Floats
    weight_bytes: Floats
    moved_bytes: Floats
    unfolded_bytes: Floats
    copy_macs: Floats

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def groups(self) -> Floats:
        """Independent matrix products."""
        return self.sizes["groups"]

    @property
    def channelwise(self) -> Mask:
        """Whether each output channel reads only one input channel: depthwise, pooling, element-wise."""
        return np.asarray(self.sizes["is_channelwise"] > 0)

    @property
    def taps(self) -> Floats:
        """Positions of the kernel."""
        return self.sizes["kernel_height"] * self.sizes["kernel_width"]

    @property
    def runs(self) -> Floats:
        """Runs of elements without a jump in memory."""
        elements = self.rows * self.sizes["out_channels"]
        return np.asarray(elements / np.where(self.sizes["run"] > 0, self.sizes["run"], elements))

    @property
    def group_channels(self) -> Floats:
        """Input channels of a group."""
        return self.sizes["in_channels"] / self.sizes["groups"]

    @property
    def sums_products(self) -> Mask:
        """Whether a layer sums its product into a result of another size, as a transposed convolution does."""
        return np.asarray(self.sizes["result_elements"] > 0)

    @property
    def scattered_rows(self) -> Floats:
        """Rows of a scatter's table for each element that it adds, or for each that begins a row that it writes.

        The input counts them twice. 0 for other layers.
        """
        whole = np.where([COMBINE in path for path in self.paths], 1.0, np.maximum(self.sizes["run"], 1.0))
        scatters = [path.startswith(SCATTERED) for path in self.paths]
        return np.where(scatters, self.sizes["in_height"] / whole / 2.0, 0.0)

    @property
    def table_bytes(self) -> Floats:
        """Bytes of computed tables that rows are picked from, which the input counts beside the rows; 0 elsewhere."""
        return np.where([path.startswith(PICKED) for path in self.paths], self.in_bytes - self.out_bytes, 0.0)

    @property
    def copies(self) -> Mask:
        """Whether the layer is a convolution whose windows a runtime copies before a product."""
        return np.array([unfolds(name) for name in self.operators], dtype=bool)

    @property
    def multiplies_windows(self) -> Mask:
        """Whether the layer is a convolution that is a product of matrices for each group, see `multiplies_windows`."""
        return np.array([multiplies_windows(name) for name in self.operators], dtype=bool)

    def without_copies(self) -> LayerArrays:
        """Return the layers as on a device that reads the windows of all convolutions in place."""
        moved_bytes = self.in_bytes + self.weight_bytes + self.out_bytes * (1.0 + self.sizes["extra_operands"])
        return replace(self, moved_bytes=moved_bytes)

    def without_tables(self) -> LayerArrays:
        """Return the layers as on a device that finds the rows of a table where the layer before wrote it."""
        table_bytes = self.table_bytes
        return replace(self, in_bytes=self.in_bytes - table_bytes, moved_bytes=self.moved_bytes - table_bytes)

    def without_copying(self) -> LayerArrays:
        """Return the layers as on a device whose cores copy no windows, and compute depthwise layers by channels."""
        alone = (self.groups == self.sizes["in_channels"]) & (self.groups == self.sizes["out_channels"])
        sizes = self.sizes | {"is_channelwise": alone.astype(np.float64)}
        return replace(self, sizes=sizes, copy_macs=np.zeros(len(self)))

    @property
    def multiplied(self) -> Mask:
        """Whether the layer is a depthwise convolution that runtimes compute as a product for each channel."""
        return np.array([name == f"mac/conv/{MULTIPLIED}" for name in self.operators], dtype=bool)

    def with_channels_alone(self) -> LayerArrays:
        """Return the layers as on a device that computes each output of a depthwise convolution by itself."""
        alone, outputs = self.multiplied, self.sizes["out_channels"]
        described = {"is_channelwise": np.ones(len(self)), "groups": outputs, "in_channels": outputs}
        return replace(
            self,
            sizes=self.sizes | {name: np.where(alone, size, self.sizes[name]) for name, size in described.items()},
            columns=np.where(alone, 1.0, self.columns),
            moved_bytes=np.where(alone, self.without_copies().moved_bytes, self.moved_bytes),
            copy_macs=np.where(alone, 0.0, self.copy_macs),
        )

    def padding(self, axis: str) -> Floats:
        """Return the padding at the beginning of the axis "height" or "width": half of what the sizes need at least."""
        size, taps, apart = (self.sizes[f"{name}_{axis}"] for name in ("in", "kernel", "dilation"))
        spanned = (self.sizes[f"out_{axis}"] - 1) * self.sizes[f"stride_{axis}"] + (taps - 1) * apart + 1
        return np.asarray(np.maximum(spanned - size, 0.0) // 2)

    def with_products(self, share: float) -> LayerArrays:
        """Return the layers as on a device that writes this share of what a product has beyond the result."""
        result_bytes = self.sizes["result_elements"] * self.sizes["element_bytes"]
        less = (1.0 - share) * np.where(self.sums_products, self.out_bytes - result_bytes, 0.0)
        moved_bytes = self.moved_bytes - less * (1.0 + self.sizes["extra_operands"])
        return replace(self, out_bytes=self.out_bytes - less, moved_bytes=moved_bytes)

    def take(self, index: Ints) -> LayerArrays:
        """Return the layers at these positions."""
        return LayerArrays(
            tuple(self.operators[at] for at in index),
            tuple(self.paths[at] for at in index),
            tuple(self.names[at] for at in index),
            {name: column[index] for name, column in self.sizes.items()},
            *(getattr(self, name)[index] for name in _DERIVED),
        )


def layer_arrays(layers: Sequence[LayerFeatures]) -> LayerArrays:
    """Return the arrays of some layers."""

    def column(name: str) -> Floats:
        return np.array([getattr(layer, name) for layer in layers], dtype=np.float64)

    sizes = {name: column(name) for name in _PLAIN}
    for name, pair in _PAIRS.items():
        sizes[f"{name}_height"], sizes[f"{name}_width"] = column(pair).reshape(-1, 2).T.copy()
    return LayerArrays(
        tuple(code_of(layer.operator) for layer in layers),
        tuple(layer.operator for layer in layers),
        tuple(offset_names(layer) for layer in layers),
        sizes,
        *(column(name) for name in _DERIVED),
    )


def filled_vectors(channels: Floats) -> Floats:
    """Return the largest power of two that divides a number of channels, at most `WIDEST`: how they fill vectors."""
    whole = channels.astype(np.int64)
    return np.asarray(np.minimum(whole & -whole, WIDEST), dtype=np.float64)


def index_of(layers: LayerArrays, operator: str) -> Ints:
    """Return the positions of an operator's layers."""
    return np.flatnonzero(np.array(layers.operators) == operator)
