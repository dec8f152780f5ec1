"""Configurations: single layers with all their sizes, which a space holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.network.layers import FEATURE_MAP
from harness.network.operator_kinds import GATES
from harness.space.data_movement import Mover
from harness.space.sized_layer import FLOAT_BYTES, Shape, SizedLayer

NO_ACTIVATION = "none"


@dataclass(frozen=True)
class Convolution(SizedLayer):
    """A convolution with operators that a device may fuse into it; `size` is the input size, padded by `padding_of`.

    `context` is where its input comes from, as in `context_of`. A signal has a size of one axis, a video of three.
    """

    batch: int
    channels_in: int
    channels_out: int
    size: Shape
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
    def weight_shape(self) -> Shape:
        """Return the shape of the weights."""
        return (self.channels_out, self.channels_in // self.groups, *self.each(self.kernel))

    @property
    def inputs(self) -> list[Shape]:
        """Return the shapes of the map, and of the other summand."""
        return [(self.batch, self.channels_in, *self.size), *([self.result] if self.residual else [])]

    @property
    def weights(self) -> list[Shape]:
        """Return the shape of the weights."""
        return [self.weight_shape]

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        span, padded = self.dilation * (self.kernel - 1) + 1, 2 * self.padding
        return (self.batch, self.channels_out, *((edge + padded - span) // self.stride + 1 for edge in self.size))

    @property
    def macs(self) -> int:
        """Return the multiply-adds, including padding."""
        return math.prod(self.result) * math.prod(self.weight_shape[1:])

    def each(self, value: int) -> Shape:
        """Return the same value for each axis of the map."""
        return (value,) * len(self.size)


@dataclass(frozen=True)
class Product(SizedLayer):
    """A matrix product (rows, depth) x (depth, columns) with a bias, or `heads` products of two activations."""

    op: str
    heads: int
    rows: int
    depth: int
    columns: int
    activation: str

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Return the shape of the right-hand side."""
        return (self.depth, self.columns)

    @property
    def inputs(self) -> list[Shape]:
        """Return the shapes of one or both sides."""
        if self.heads:
            return [(1, self.heads, self.rows, self.depth), (1, self.heads, *self.weight_shape)]
        return [(self.rows, self.depth) if self.op == "Gemm" else (1, self.rows, self.depth)]

    @property
    def weights(self) -> list[Shape]:
        """Return the shape of the weights, if the right-hand side is one."""
        return [] if self.heads else [self.weight_shape]

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        return (*self.inputs[0][:-1], self.columns)

    @property
    def macs(self) -> int:
        """Return the multiply-adds."""
        return math.prod(self.result) * self.depth


@dataclass(frozen=True)
class Recurrent(SizedLayer):
    """An LSTM or GRU over `steps`, of `depth` inputs and a state of `columns`, in one direction or both."""

    op: str
    steps: int
    depth: int
    columns: int
    directions: int

    @property
    def inputs(self) -> list[Shape]:
        """Return the shape of the inputs of all steps."""
        return [(self.steps, 1, self.depth)]

    @property
    def weights(self) -> list[Shape]:
        """Return the shapes of the weights of inputs and of the state."""
        rows = GATES[self.op] * self.columns
        return [(self.directions, rows, self.depth), (self.directions, rows, self.columns)]

    @property
    def biases(self) -> Shape:
        """Return the shape of the biases of inputs and of the state."""
        return (self.directions, 2 * GATES[self.op] * self.columns)

    @property
    def result(self) -> Shape:
        """Return the shape of the states of all steps."""
        return (self.steps, self.directions, 1, self.columns)

    @property
    def macs(self) -> int:
        """Return the multiply-adds of all steps."""
        return self.steps * sum(map(math.prod, self.weights))


@dataclass(frozen=True)
class Pooling(SizedLayer):
    """A pooling layer; the kernel of a global one is the whole plane. `context` is that of `Convolution`."""

    op: str
    batch: int
    channels: int
    size: Shape
    kernel: Shape
    stride: Shape
    context: str = FEATURE_MAP

    @property
    def inputs(self) -> list[Shape]:
        """Return the shape of the map."""
        return [(self.batch, self.channels, *self.size)]

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        padding = 0 if self.op.startswith("Global") else padding_of(self.kernel[0], self.stride[0])
        windows = zip(self.size, self.kernel, self.stride, strict=True)
        return (self.batch, self.channels, *((edge + 2 * padding - taps) // step + 1 for edge, taps, step in windows))

    @property
    def macs(self) -> int:
        """Return the elements of all windows."""
        return math.prod(self.result) * math.prod(self.kernel)


@dataclass(frozen=True)
class Transposed(SizedLayer):
    """A transposed convolution, which makes a map larger by its stride."""

    batch: int
    channels_in: int
    channels_out: int
    size: Shape
    kernel: int
    stride: int

    @property
    def padding(self) -> int:
        """Return the padding that makes the result as large as map times stride, or one pixel smaller or larger."""
        return (self.kernel - self.stride) // 2

    @property
    def inputs(self) -> list[Shape]:
        """Return the shape of the map."""
        return [(self.batch, self.channels_in, *self.size)]

    @property
    def weights(self) -> list[Shape]:
        """Return the shape of the weights."""
        return [(self.channels_in, self.channels_out, *(self.kernel,) * len(self.size))]

    @property
    def result(self) -> Shape:
        """Return the shape of the larger map."""
        more = self.kernel - self.stride - 2 * self.padding
        return (self.batch, self.channels_out, *(edge * self.stride + more for edge in self.size))

    @property
    def macs(self) -> int:
        """Return the multiply-adds: each pixel with all weights of its channel."""
        return self.batch * math.prod(self.size) * math.prod(self.weights[0])


FloatLayer = Convolution | Transposed | Product | Recurrent | Pooling | Mover
INT8, ACTIVATIONS, DYNAMIC, UNSIGNED, WEIGHTS = "int8", "activations", "dynamic", "dynamic-uint8", "weights"
UNSIGNED_WEIGHTS, PACKED_WEIGHTS, PACKED_BLOCK = "uint8-weights", "packed", 32
_WEIGHT_BITS = {WEIGHTS: 8 * FLOAT_BYTES, PACKED_WEIGHTS: 4}


@dataclass(frozen=True)
class Quantised:
    """A layer on integers, in one of seven forms that quantisers write.

    `INT8` puts it between DequantizeLinear and QuantizeLinear, also each of its weights. The others are for products
    with weights: `ACTIVATIONS` is the same with weights of floats, `UNSIGNED_WEIGHTS` with unsigned ones. `DYNAMIC` has
    a DynamicQuantizeLinear in front, and a product of integers whose result is scaled; with `UNSIGNED`, its weights are
    unsigned. With `WEIGHTS`, only weights are integers, and become floats as the layer runs.
    `PACKED_WEIGHTS` is for products of matrices, with weights of four bits in blocks of `PACKED_BLOCK` rows.
    """

    layer: FloatLayer
    precision: str

    @property
    def weights(self) -> list[Shape]:
        """Return the shapes of the weights that are multiplied."""
        return self.layer.weights

    @property
    def macs(self) -> int:
        """Return the multiply-adds."""
        return self.layer.macs

    @property
    def bytes(self) -> int:
        """Return the bytes of inputs, weights and results; weights that become floats count as floats."""
        weights = sum(map(math.prod, self.weights))
        passed = self.layer.bytes - FLOAT_BYTES * weights
        on_integers = self.precision in (INT8, ACTIVATIONS, UNSIGNED_WEIGHTS)  # the others pass floats to each other
        passed //= FLOAT_BYTES if on_integers else 1
        return passed + weights * _WEIGHT_BITS.get(self.precision, 8) // 8


Configuration = FloatLayer | Quantised


def padding_of(kernel: int, stride: int) -> int:
    """Return the padding on every side: none if windows do not overlap, else as much as keeps the size at stride 1."""
    return 0 if kernel == stride else (kernel - 1) // 2
