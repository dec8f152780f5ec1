"""Configurations: single layers with all their sizes, which a space holds and the predictor describes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.predictor.features.layer_features import LayerFeatures, Pair, channelwise, convolution, matrix_product

NO_ACTIVATION = "none"


@dataclass(frozen=True)
class Convolution:
    """A convolution with operators that a device may fuse into it; `size` is the input size, padded by `padding_of`."""

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

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features; raises UsageError if the groups do not divide the channels."""
        padding = padding_of(self.kernel, self.stride)
        kind = "dense" if self.groups == 1 else "depthwise" if self.groups == self.channels_in else "grouped"
        found = convolution(
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out,
            size=self.size,
            kernel=(self.kernel, self.kernel),
            stride=(self.stride, self.stride),
            padding=(padding, padding),
            groups=self.groups,
        )
        return replace(_named(f"mac/conv/{kind}/{_suffix(self.activation)}", found), extra_operands=int(self.residual))


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
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = matrix_product(rows=self.rows, depth=self.depth, columns=self.columns, batch=max(1, self.heads))
        kind = "activations" if self.heads else "weights"
        return _named(f"mac/product/{kind}/{_suffix(self.activation)}", found)


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
        group = "reduce" if self.op.startswith("Global") else "window"
        return channelwise(
            f"move/{group}/{self.op}",
            batch=self.batch,
            channels=self.channels,
            in_size=self.size,
            out_size=(edges[0], edges[1]),
            kernel=self.kernel,
            stride=self.stride,
        )


@dataclass(frozen=True)
class Elementwise:
    """An operator on each element of `operands` tensors of the same shape."""

    op: str
    operands: int
    batch: int
    channels: int
    size: Pair

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = channelwise(
            f"move/map/{self.op}", batch=self.batch, channels=self.channels, in_size=self.size, out_size=self.size
        )
        return replace(found, extra_operands=self.operands - 1)


@dataclass(frozen=True)
class Rowwise:
    """An operator along the last axis of (1, rows, columns)."""

    op: str
    rows: int
    columns: int

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        plane = (self.rows, 1)
        return channelwise(f"move/norm/{self.op}", batch=1, channels=self.columns, in_size=plane, out_size=plane)


Configuration = Convolution | Product | Pooling | Elementwise | Rowwise


def padding_of(kernel: int, stride: int) -> int:
    """Return the padding on every side: none if windows do not overlap, else as much as keeps the size at stride 1."""
    return 0 if kernel == stride else (kernel - 1) // 2


def _suffix(activation: str) -> str:
    return "plain" if activation == NO_ACTIVATION else activation


def _named(operator: str, layer: LayerFeatures) -> LayerFeatures:
    return replace(layer, operator=operator)
