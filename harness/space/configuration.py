"""Configurations: single layers with all their sizes, which a space holds and the predictor describes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.network.layers import FEATURE_MAP
from harness.network.operator_kinds import GATES
from harness.predictor.features.data_movement_classes import class_of_mover
from harness.predictor.features.layer_features import (
    DEQUANTISED,
    FLOAT_WEIGHTS,
    INTEGER,
    PACKED,
    LayerFeatures,
    axes_suffix,
    channelwise,
    convolution,
    matrix_product,
    plane_of,
    recurrent,
    unfolding,
)
from harness.space.data_movement import Elementwise, Mover

NO_ACTIVATION = "none"
_MAP_AXES = 2


@dataclass(frozen=True)
class Convolution:
    """A convolution with operators that a device may fuse into it; `size` is the input size, padded by `padding_of`.

    `context` is where its input comes from, as in `context_of`. A signal has a size of one axis, a video of three.
    """

    batch: int
    channels_in: int
    channels_out: int
    size: tuple[int, ...]
    kernel: int
    stride: int
    groups: int
    activation: str
    batch_norm: bool
    residual: bool
    dilation: int = 1
    context: str = FEATURE_MAP

    @property
    def padding(self) -> int:
        """Return the padding on every side."""
        return padding_of(self.kernel, self.stride) * self.dilation

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the weights."""
        return (self.channels_out, self.channels_in // self.groups, *self.each(self.kernel))

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        span, padded = self.dilation * (self.kernel - 1) + 1, 2 * self.padding
        return (self.batch, self.channels_out, *((edge + padded - span) // self.stride + 1 for edge in self.size))

    def each(self, value: int) -> tuple[int, ...]:
        """Return the same value for each axis of the map."""
        return (value,) * len(self.size)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features; raises UsageError if the groups do not divide the channels."""
        kind = "dense" if self.groups == 1 else "depthwise" if self.groups == self.channels_in else "grouped"
        kind += axes_suffix(len(self.size))
        found = convolution(
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out,
            size=self.size,
            kernel=self.each(self.kernel),
            stride=self.each(self.stride),
            padding=self.each(self.padding),
            groups=self.groups,
            dilation=self.each(self.dilation),
        )
        operands = int(self.residual)
        maps = int(self.context == FEATURE_MAP) + operands if len(self.size) == _MAP_AXES else 0
        operator = f"mac/conv/{kind}/{_suffix(self.activation)}"
        return replace(found, operator=operator, extra_operands=operands, maps=maps)


@dataclass(frozen=True)
class Product:
    """A matrix product (rows, depth) x (depth, columns) with a bias, or `heads` products of two activations."""

    op: str
    heads: int
    rows: int
    depth: int
    columns: int
    activation: str

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Return the shape of the weights."""
        return (self.depth, self.columns)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = matrix_product(rows=self.rows, depth=self.depth, columns=self.columns, batch=max(1, self.heads))
        kind = "activations" if self.heads else "weights"
        named = replace(found, operator=f"mac/product/{kind}/{_suffix(self.activation)}")
        if not self.heads:
            return named
        read = -(-found.weight_elements // (max(1, self.heads) * self.rows * self.columns))
        return replace(named, weight_elements=0, extra_operands=read)


@dataclass(frozen=True)
class Recurrent:
    """An LSTM or GRU over `steps`, of `depth` inputs and a state of `columns`, in one direction or both."""

    op: str
    steps: int
    depth: int
    columns: int
    directions: int

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the weights of inputs, of the state, and of both biases."""
        rows = GATES[self.op] * self.columns
        return (self.directions, rows, self.depth), (self.directions, rows, self.columns), (self.directions, 2 * rows)

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the states of all steps."""
        return (self.steps, self.directions, 1, self.columns)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        sizes = {"inputs": self.depth, "state": self.columns, "columns": GATES[self.op] * self.columns}
        return recurrent(self.op, steps=self.steps, batch=1, directions=self.directions, **sizes)


@dataclass(frozen=True)
class Pooling:
    """A pooling layer; the kernel of a global one is the whole plane."""

    op: str
    batch: int
    channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        padding = 0 if self.op.startswith("Global") else padding_of(self.kernel[0], self.stride[0])
        windows = zip(self.size, self.kernel, self.stride, strict=True)
        return (self.batch, self.channels, *((edge + 2 * padding - taps) // step + 1 for edge, taps, step in windows))

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        return channelwise(
            class_of_mover([self.op], axes=len(self.size)),
            batch=self.batch,
            channels=self.channels,
            in_size=plane_of(self.size),
            out_size=plane_of(self.result[2:]),
            kernel=plane_of(self.kernel),
            stride=plane_of(self.stride),
        )


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution, which makes a map larger by its stride."""

    batch: int
    channels_in: int
    channels_out: int
    size: tuple[int, ...]
    kernel: int
    stride: int

    @property
    def padding(self) -> int:
        """Return the padding that makes the result as large as map times stride, or one pixel smaller or larger."""
        return (self.kernel - self.stride) // 2

    @property
    def out_size(self) -> tuple[int, ...]:
        """Return the size of the result."""
        more = self.kernel - self.stride - 2 * self.padding
        return tuple(edge * self.stride + more for edge in self.size)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features: all taps of each input pixel, as if they were channels."""
        taps = self.kernel ** len(self.size)
        return LayerFeatures(
            operator=f"mac/conv/transposed{axes_suffix(len(self.size))}/plain",
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out * taps,
            in_size=plane_of(self.size),
            out_size=plane_of(self.size),
            weight_elements=self.channels_in * self.channels_out * taps,
            result_elements=self.batch * self.channels_out * math.prod(self.out_size),
        )


FloatLayer = Convolution | Transposed | Product | Recurrent | Pooling | Mover
INT8, ACTIVATIONS, DYNAMIC, UNSIGNED, WEIGHTS = "int8", "activations", "dynamic", "dynamic-uint8", "weights"
PACKED_WEIGHTS, PACKED_BLOCK = "packed", 32


@dataclass(frozen=True)
class Quantised:
    """A layer on integers, in one of six forms that quantisers write.

    `INT8` puts it between DequantizeLinear and QuantizeLinear, also each of its weights. The others are for products
    with weights: `ACTIVATIONS` is the same with weights of floats. `DYNAMIC` has a DynamicQuantizeLinear in front, and
    a product of integers whose result is scaled; with `UNSIGNED`, its weights are unsigned. With `WEIGHTS`, only
    weights are integers, and become floats as the layer runs.
    `PACKED_WEIGHTS` is for products of matrices, with weights of four bits in blocks of `PACKED_BLOCK` rows.
    """

    layer: FloatLayer
    precision: str

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features, of a dynamic layer those of its product."""
        found = self.layer.features
        root, group, kind, name = found.operator.split("/")
        if suffix := {WEIGHTS: DEQUANTISED, PACKED_WEIGHTS: PACKED}.get(self.precision):
            return replace(found, operator=f"{root}/{group}/{kind}{suffix}/{name}")
        suffix = {UNSIGNED: "-unsigned", ACTIVATIONS: FLOAT_WEIGHTS}.get(self.precision, "")
        if group == "conv" and self.precision in (DYNAMIC, UNSIGNED):
            kind += INTEGER + suffix
        elif group not in ("copy", "view"):
            kind += unfolding(kind, found.in_channels, found.out_channels) if group == "conv" else ""
            kind += f"{suffix}-int8"
        name = name if root == "mac" or group == "view" else f"{name}-int8"
        run = self.layer.channels if isinstance(self.layer, Elementwise) and found.run else found.run
        return replace(found, operator=f"{root}/{group}/{kind}/{name}", element_bytes=1, run=run)


Configuration = FloatLayer | Quantised


def padding_of(kernel: int, stride: int) -> int:
    """Return the padding on every side: none if windows do not overlap, else as much as keeps the size at stride 1."""
    return 0 if kernel == stride else (kernel - 1) // 2


def _suffix(activation: str) -> str:
    return {NO_ACTIVATION: "plain", "Relu6": "Relu"}.get(activation, activation)
