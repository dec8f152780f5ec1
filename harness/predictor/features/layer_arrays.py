"""Layers as columns of numbers: the quantities that every part of the predictor computes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.predictor.features.layer_features import LayerFeatures, code_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Variant = tuple[str, int, int, int, int]
"""Operator, kernel and stride: layers that may run different code."""

_SIZES = (
    "batch", "in_channels", "out_channels", "in_height", "in_width", "out_height", "out_width",
    "kernel_height", "kernel_width", "stride_height", "stride_width", "groups", "extra_operands", "element_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class LayerArrays:
    """Layers by column; every array has one entry per layer.

    `operators` are the classes that name the layers' code, `paths` their finest ones.
    `sizes` holds the columns of `_SIZES`; `rows`, `columns`, `depth` and `groups` are the matrix products that
    the layer comes to: `groups` products of (rows, depth) and (depth, columns).
    """

    operators: tuple[str, ...]
    paths: tuple[str, ...]
    variants: tuple[Variant, ...]
    sizes: dict[str, Floats]
    rows: Floats
    columns: Floats
    macs: Floats
    in_bytes: Floats
    out_bytes: Floats
    weight_bytes: Floats
    moved_bytes: Floats

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def groups(self) -> Floats:
        """Independent matrix products."""
        return self.sizes["groups"]

    @property
    def taps(self) -> Floats:
        """Positions of the kernel."""
        return self.sizes["kernel_height"] * self.sizes["kernel_width"]

    @property
    def group_channels(self) -> Floats:
        """Input channels of a group."""
        return self.sizes["in_channels"] / self.sizes["groups"]

    def take(self, index: Ints) -> LayerArrays:
        """The layers at these positions."""
        return LayerArrays(
            tuple(self.operators[place] for place in index),
            tuple(self.paths[place] for place in index),
            tuple(self.variants[place] for place in index),
            {name: column[index] for name, column in self.sizes.items()},
            self.rows[index],
            self.columns[index],
            self.macs[index],
            self.in_bytes[index],
            self.out_bytes[index],
            self.weight_bytes[index],
            self.moved_bytes[index],
        )


def layer_arrays(layers: Sequence[LayerFeatures]) -> LayerArrays:
    """The columns of some layers."""
    table = np.array([_sizes(layer) for layer in layers], dtype=np.float64).reshape(len(layers), len(_SIZES))

    def column(name: str) -> Floats:
        return np.array([getattr(layer, name) for layer in layers], dtype=np.float64)

    return LayerArrays(
        operators=tuple(code_of(layer.operator) for layer in layers),
        paths=tuple(layer.operator for layer in layers),
        variants=tuple((layer.operator, *layer.kernel, *layer.stride) for layer in layers),
        sizes={name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(_SIZES)},
        rows=column("rows"),
        columns=column("columns"),
        macs=column("macs"),
        in_bytes=column("in_bytes"),
        out_bytes=column("out_bytes"),
        weight_bytes=column("weight_bytes"),
        moved_bytes=column("moved_bytes"),
    )


def _sizes(layer: LayerFeatures) -> tuple[int, ...]:
    return (
        layer.batch, layer.in_channels, layer.out_channels, *layer.in_size, *layer.out_size,
        *layer.kernel, *layer.stride, layer.groups, layer.extra_operands, layer.element_bytes,
    )  # fmt: skip


def index_of(work: LayerArrays, operator: str) -> Ints:
    """Positions of an operator's layers."""
    return np.flatnonzero(np.array(work.operators) == operator)
