"""Configurations of layers that move or combine elements without a product of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.predictor.features.data_movement_classes import INTERPOLATE, along_columns, class_of_mover
from harness.predictor.features.layer_features import LayerFeatures, Pair, channelwise

BROADCAST = "channel"
"""The second operand is one value for each channel, as in a squeeze-and-excitation block."""
PAIRED = ("Add", "Mul", "Sub", "Div")
ORDERS = {
    "matrix": (0, 2, 1),
    "channels_last": (0, 2, 3, 1),
    "channels_first": (0, 3, 1, 2),
    "heads": (0, 2, 1, 3),
    "reversed": (0, 3, 2, 1),
    "shuffle": (0, 2, 1, 3, 4),
    "qkv": (2, 0, 3, 1, 4),
}
"""Orders of axes: of a matrix, of maps with channels last or first, of heads of attention, of shuffled groups, of
queries, keys and values that one product computes."""
MAP, ROWS = "map", "rows"
"""Layouts: maps (batch, channels, height, width), which convolutions write, and rows (batch, pixels, channels)."""


@dataclass(frozen=True)
class Elementwise:
    """An operator on each element of one tensor, or of two: the second has one value per channel if `broadcast`."""

    op: str
    operands: int
    batch: int
    channels: int
    size: Pair
    broadcast: bool = False
    layout: str = MAP

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs."""
        whole = _shape(self.layout, self.batch, self.channels, self.size)
        if self.broadcast:
            return [whole, (1, 1, self.channels) if self.layout == ROWS else (*whole[:2], 1, 1)]
        return [whole] * self.operands

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        found = _on_plane(class_of_mover([self.op]), self.layout, self.batch, self.channels, self.size)
        whole, *others = map(math.prod, self.shapes)
        is_broadcast = self.op == "PRelu" or any(elements < whole for elements in others)  # not on a single pixel
        run = self.channels if self.layout == ROWS else math.prod(self.size)
        return replace(found, extra_operands=others.count(whole), run=run if is_broadcast else 0)


@dataclass(frozen=True)
class Rowwise:
    """An operator on (1, rows, columns) along an axis: 2, or for ReduceMean 1 or 2.

    `residual` adds two inputs first. Softmax is on (1, 1, rows, columns), as one head of attention.
    """

    op: str
    rows: int
    columns: int
    axis: int = 2
    residual: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs."""
        return [(*self._outer, self.rows, self.columns)] * (1 + self.residual)

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        if self.op == "ReduceMean":
            return (1, 1, self.columns) if self.axis == 1 else (1, self.rows, 1)
        return (*self._outer, self.rows, self.columns)

    @property
    def _outer(self) -> tuple[int, ...]:
        return (1, 1) if self.op == "Softmax" else (1,)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        name, plane = class_of_mover(["Add", self.op] if self.residual else [self.op]), (self.rows, 1)
        if self.op != "ReduceMean":
            found = channelwise(name, batch=1, channels=self.columns, in_size=plane, out_size=plane)
            return replace(found, extra_operands=int(self.residual), run=self.columns)
        *rest, channels = self.result
        name = along_columns(name) if self.axis == 1 else name
        window, result = (self.rows if self.axis == 1 else self.columns, 1), (math.prod(rest), 1)
        source = (self.rows * self.columns // channels, 1)
        found = channelwise(name, batch=1, channels=channels, in_size=source, out_size=result, kernel=window)
        return replace(found, run=self.columns)


@dataclass(frozen=True)
class Resizing:
    """A map made larger by a whole factor: each pixel repeated (nearest), or interpolated (linear)."""

    batch: int
    channels: int
    size: Pair
    scale: int
    mode: str

    @property
    def out_size(self) -> Pair:
        """Return height and width of the result."""
        return (self.size[0] * self.scale, self.size[1] * self.scale)

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        name = class_of_mover(["Resize" if self.mode == "nearest" else INTERPOLATE])
        found = _on_plane(name, MAP, self.batch, self.channels, self.out_size)
        return replace(found, run=1)


@dataclass(frozen=True)
class Joining:
    """`parts` tensors of as many channels joined to one (Concat), or one divided into them (Split), or the first one.

    If only the first one is kept, it is a Slice.
    """

    op: str
    parts: int
    batch: int
    channels: int
    size: Pair
    layout: str = MAP

    @property
    def axis(self) -> int:
        """Return the axis of the channels."""
        return 2 if self.layout == ROWS else 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs."""
        channels, count = (self.channels, self.parts) if self.op == "Concat" else (self.channels * self.parts, 1)
        return [_shape(self.layout, self.batch, channels, self.size)] * count

    @property
    def results(self) -> list[tuple[int, ...]]:
        """Return the shapes of the results."""
        channels, count = (self.channels * self.parts, 1) if self.op == "Concat" else (self.channels, self.parts)
        count = 1 if self.op == "Slice" else count
        return [_shape(self.layout, self.batch, channels, self.size)] * count

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        name = class_of_mover([self.op])
        if self.op == "Slice":
            found = _on_plane(name, self.layout, self.batch, self.channels, self.size)
            return replace(found, run=self.shapes[0][-1])
        found = _on_plane(name, self.layout, self.batch, self.channels * self.parts, self.size)
        return replace(found, run=self.channels * (1 if self.layout == ROWS else math.prod(self.size)))


@dataclass(frozen=True)
class Permutation:
    """A tensor with its axes in a different order, one of `ORDERS`; or, with none, flattened.

    Heads become the columns of one matrix, and shuffled groups one map, as in networks. A map is flattened after its
    channels, a matrix (1, rows, columns) loses its first axis.
    """

    shape: tuple[int, ...]
    order: str

    @property
    def moved(self) -> tuple[int, ...]:
        """Return the shape with the axes in their order."""
        return tuple(self.shape[axis] for axis in ORDERS[self.order]) if self.order else self.shape

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        batch, *rest = self.moved
        if self.order == "heads":
            return (batch, rest[0], math.prod(rest[1:]))
        if self.order == "shuffle":
            return (batch, math.prod(rest[:2]), *rest[2:])
        if not self.order:
            return (batch, rest[0], math.prod(rest[1:])) if len(rest) > 2 else tuple(rest)
        return self.moved

    @property
    def features(self) -> LayerFeatures:
        """Return the predictor's features."""
        *rest, columns = self.shape
        plane = (math.prod(rest), 1)
        moved = "Permute" if self.order in ("reversed", "qkv") else "Transpose"
        name = class_of_mover([moved if self.order else "Reshape"])
        found = channelwise(name, batch=1, channels=columns, in_size=plane, out_size=plane)
        kept = {"heads": self.shape[-1], "qkv": self.shape[-1], "shuffle": math.prod(self.shape[-2:])}
        return replace(found, run=kept.get(self.order, 1) if self.order else 0)


def _shape(layout: str, batch: int, channels: int, size: Pair) -> tuple[int, ...]:
    return (batch, math.prod(size), channels) if layout == ROWS else (batch, channels, *size)


def _on_plane(operator: str, layout: str, batch: int, channels: int, size: Pair) -> LayerFeatures:
    """Return the features of an operator on a map, or on rows, whose batch counts as rows."""
    if layout == ROWS:
        batch, size = 1, (batch * math.prod(size), 1)
    return channelwise(operator, batch=batch, channels=channels, in_size=size, out_size=size)


Mover = Elementwise | Rowwise | Resizing | Joining | Permutation
