"""Configurations: single layers with all their sizes, which a space holds and the predictor describes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.network.layers import FEATURE_MAP
from harness.predictor.features.layer_features import (
    INTEGER,
    LayerFeatures,
    Pair,
    channelwise,
    convolution,
    matrix_product,
    unfolding,
)
from harness.predictor.features.mover_classes import class_of_mover
from harness.space.movers import Elementwise, Mover

NO_ACTIVATION = "none"


@dataclass(frozen=True)
class Convolution:
    """A convolution with operators that a device may fuse into it; `size` is the input size, padded by `padding_of`.

    `context` is where its input comes from, as in `context_of`. One of one dimension has a height alone.
    """

    batch: int
    channels_in: int
    channels_out: int
    size: Pair
    kernel: int
    stride: int
    groups: int
    activation: str
    batch_norm: bool
    residual: bool
    dilation: int = 1
    context: str = FEATURE_MAP
    dimensions: int = 2

    @property
    def padding(self) -> int:
        """Return the padding on every side."""
        return padding_of(self.kernel, self.stride) * self.dilation

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the weights."""
        return (self.channels_out, self.channels_in // self.groups, *(self.kernel,) * self.dimensions)

    def shape(self, channels: int, size: Pair) -> tuple[int, ...]:
        """Return the shape of a tensor that the layer reads or writes."""
        return (self.batch, channels, *size[: self.dimensions])

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features; raises UsageError if the groups do not divide the channels."""

        def pair(value: int, otherwise: int) -> Pair:
            return (value, value if self.dimensions > 1 else otherwise)

        kind = "dense" if self.groups == 1 else "depthwise" if self.groups == self.channels_in else "grouped"
        found = convolution(
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out,
            size=pair(self.size[0], 1) if self.dimensions == 1 else self.size,
            kernel=pair(self.kernel, 1),
            stride=pair(self.stride, 1),
            padding=pair(self.padding, 0),
            groups=self.groups,
            dilation=pair(self.dilation, 1),
        )
        reads_map = self.context == FEATURE_MAP and self.dimensions == 2
        named, operands = _named(f"mac/conv/{kind}/{_suffix(self.activation)}", found), int(self.residual)
        return replace(named, extra_operands=operands, maps=int(reads_map) + operands)


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
        named = _named(f"mac/product/{kind}/{_suffix(self.activation)}", found)
        if not self.heads:
            return named
        read = -(-found.weight_elements // (max(1, self.heads) * self.rows * self.columns))
        return replace(named, weight_elements=0, extra_operands=read)


@dataclass(frozen=True)
class Pooling:
    """A pooling layer; the kernel of a global one is the whole plane."""

    op: str
    batch: int
    channels: int
    size: Pair
    kernel: Pair
    stride: Pair

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        paddings = (0, 0) if self.op.startswith("Global") else (padding_of(self.kernel[0], self.stride[0]),) * 2
        edges = [
            (edge + 2 * pad - taps) // step + 1
            for edge, pad, taps, step in zip(self.size, paddings, self.kernel, self.stride, strict=True)
        ]
        return channelwise(
            class_of_mover([self.op]),
            batch=self.batch,
            channels=self.channels,
            in_size=self.size,
            out_size=(edges[0], edges[1]),
            kernel=self.kernel,
            stride=self.stride,
        )


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution, which makes a map larger by its stride."""

    batch: int
    channels_in: int
    channels_out: int
    size: Pair
    kernel: int
    stride: int

    @property
    def padding(self) -> int:
        """Return the padding that makes the result as large as map times stride, or one pixel smaller or larger."""
        return (self.kernel - self.stride) // 2

    @property
    def out_size(self) -> Pair:
        """Return the size of the result."""
        more = self.kernel - self.stride - 2 * self.padding
        return self.size[0] * self.stride + more, self.size[1] * self.stride + more

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features: all taps of each input pixel, as if they were channels."""
        return LayerFeatures(
            operator="mac/conv/transposed/plain",
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out * self.kernel**2,
            in_size=self.size,
            out_size=self.size,
            weight_elements=self.channels_in * self.channels_out * self.kernel**2,
            result_elements=self.batch * self.channels_out * math.prod(self.out_size),
        )


FloatLayer = Convolution | Transposed | Product | Pooling | Mover
INT8, DYNAMIC = "int8", "dynamic"


@dataclass(frozen=True)
class Quantised:
    """A layer on 8-bit integers, in one of two forms that quantisers write.

    `INT8` puts it between DequantizeLinear and QuantizeLinear, also each of its weights. `DYNAMIC` is for products with
    weights: a DynamicQuantizeLinear in front, and a product of integers whose result is scaled.
    """

    layer: FloatLayer
    precision: str

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features, of a dynamic layer those of its product."""
        found = self.layer.features
        root, group, kind, name = found.operator.split("/")
        if (group, self.precision) == ("conv", DYNAMIC):
            kind += INTEGER
        elif group not in ("copy", "view"):
            kind += f"{unfolding(kind, found.in_channels, found.out_channels) if group == 'conv' else ''}-int8"
        name = name if root == "mac" or group == "view" else f"{name}-int8"
        run = self.layer.channels if isinstance(self.layer, Elementwise) and found.run else found.run
        return replace(found, operator=f"{root}/{group}/{kind}/{name}", element_bytes=1, run=run)


Configuration = FloatLayer | Quantised


def padding_of(kernel: int, stride: int) -> int:
    """Return the padding on every side: none if windows do not overlap, else as much as keeps the size at stride 1."""
    return 0 if kernel == stride else (kernel - 1) // 2


def _suffix(activation: str) -> str:
    return {NO_ACTIVATION: "plain", "Relu6": "Relu"}.get(activation, activation)


def _named(operator: str, layer: LayerFeatures) -> LayerFeatures:
    return replace(layer, operator=operator)
