"""Configurations of layers that move or combine elements without a product of matrices."""

import math
from dataclasses import dataclass

from harness.network.layers import FEATURE_MAP
from harness.space.sized_layer import Shape, SizedLayer

Pair = tuple[int, int]
"""Height and width."""

BROADCAST, NUMBER, WEIGHT = "channel", "number", "weight"
"""The second operand is one value for each channel, as in a squeeze-and-excitation block; or a constant: one number, or
one for each channel."""
PAIRED = ("Add", "Mul", "Sub", "Div")
ORDERS = {
    "matrix": (0, 2, 1),
    "channels_last": (0, 2, 3, 1),
    "channels_first": (0, 3, 1, 2),
    "heads": (0, 2, 1, 3),
    "reversed": (0, 3, 2, 1),
    "shuffle": (0, 2, 1, 3, 4),
    "qkv": (2, 0, 3, 1, 4),
    "pixels": (0, 1, 4, 2, 5, 3),
    "patches": (0, 1, 3, 5, 2, 4),
}
"""Orders of axes: matrices, maps with channels last or first, heads of attention, shuffled groups, queries, keys and
values that one product computes, channels that become pixels, pixels that become channels."""
ALONG_AXES = ("ReduceMean", "ReduceMax", "ArgMax", "Expand", "CumSum")
"""Operators that make an axis of a matrix one element long, repeat one of one element, or add up along it."""
_OF_INTEGERS = ("Mod", "OneHot")
"""Operators that read integers, which an input gives."""
GRID = "GridSample"
MOST_KEPT = 16
"""The elements of each row that a TopK keeps."""
MAP, ROWS = "map", "rows"
"""Layouts: maps (batch, channels, height, width), which convolutions write, and rows (batch, pixels, channels)."""


@dataclass(frozen=True)
class Elementwise(SizedLayer):
    """An operator on each element of one tensor, or of two: the second has one value per channel if `broadcast`.

    With one operand, an operator of `PAIRED` reads a constant: a value per channel if `broadcast`, else one number.
    """

    op: str
    operands: int
    batch: int
    channels: int
    size: Pair
    broadcast: bool = False
    layout: str = MAP

    @property
    def inputs(self) -> list[Shape]:
        """Return the shapes of the inputs."""
        whole = _shape(self.layout, self.batch, self.channels, self.size)
        if self.broadcast and self.operands > 1:
            return [whole, (1, 1, self.channels) if self.layout == ROWS else (*whole[:2], 1, 1)]
        return [whole] * self.operands

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        return self.inputs[0]


@dataclass(frozen=True)
class Rowwise(SizedLayer):
    """An operator on (1, rows, columns) along an axis: 2, or for those of `ALONG_AXES` 1 or 2.

    `residual` adds two inputs first. Softmax is on (1, 1, rows, columns), as one head of attention. OneHot reads rows.
    """

    op: str
    rows: int
    columns: int
    axis: int = 2
    residual: bool = False

    @property
    def inputs(self) -> list[Shape]:
        """Return the shapes of the inputs."""
        if self.op in _OF_INTEGERS:
            return []
        return [self._line if self.op == "Expand" else self._whole] * (1 + self.residual)

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        if self.op == "TopK":
            return (1, self.rows, min(self.columns, MOST_KEPT))
        return self._line if self.op.startswith(("Reduce", "Arg")) else self._whole

    @property
    def _whole(self) -> Shape:
        return (*((1, 1) if self.op == "Softmax" else (1,)), self.rows, self.columns)

    @property
    def _line(self) -> Shape:
        return (1, 1, self.columns) if self.axis == 1 else (1, self.rows, 1)


@dataclass(frozen=True)
class Resizing(SizedLayer):
    """A map made larger by a whole factor: each pixel repeated (nearest), or interpolated (linear).

    `context` is where the map comes from, as in `context_of`. A GridSample reads each pixel at a place that its second
    input gives.
    """

    op: str
    batch: int
    channels: int
    size: Pair
    scale: int
    mode: str
    context: str = FEATURE_MAP

    @property
    def inputs(self) -> list[Shape]:
        """Return the shape of the map, and of the places of pixels."""
        map_shape = (self.batch, self.channels, *self.size)
        return [map_shape, (self.batch, *self.result[2:], 2)] if self.op == GRID else [map_shape]

    @property
    def result(self) -> Shape:
        """Return the shape of the larger map."""
        return (self.batch, self.channels, *(edge * self.scale for edge in self.size))


@dataclass(frozen=True)
class Joining(SizedLayer):
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
    def inputs(self) -> list[Shape]:
        """Return the shapes of the inputs."""
        channels, count = (self.channels, self.parts) if self.op == "Concat" else (self.channels * self.parts, 1)
        return [_shape(self.layout, self.batch, channels, self.size)] * count

    @property
    def result(self) -> Shape:
        """Return the shape of the first result."""
        channels = self.channels * self.parts if self.op == "Concat" else self.channels
        return _shape(self.layout, self.batch, channels, self.size)

    @property
    def results(self) -> list[Shape]:
        """Return the shapes of the results."""
        return [self.result] * (self.parts if self.op == "Split" else 1)


@dataclass(frozen=True)
class Permutation(SizedLayer):
    """A tensor with its axes in a different order, one of `ORDERS`; or, with none, flattened.

    Heads become the columns of one matrix, and shuffled groups, pixels and patches one map, as in networks. A map is
    flattened after its channels, a matrix (1, rows, columns) loses its first axis.
    """

    shape: Shape
    order: str

    @property
    def inputs(self) -> list[Shape]:
        """Return the shape of the tensor."""
        return [self.shape]

    @property
    def moved(self) -> Shape:
        """Return the shape with the axes in their order."""
        return tuple(self.shape[axis] for axis in ORDERS[self.order]) if self.order else self.shape

    @property
    def result(self) -> Shape:
        """Return the shape of the result."""
        batch, *rest = self.moved
        if self.order == "heads":
            return (batch, rest[0], math.prod(rest[1:]))
        if self.order == "shuffle":
            return (batch, math.prod(rest[:2]), *rest[2:])
        if self.order == "pixels":
            return (batch, rest[0], math.prod(rest[1:3]), math.prod(rest[3:]))
        if self.order == "patches":
            return (batch, math.prod(rest[:3]), *rest[3:])
        if not self.order:
            return (batch, rest[0], math.prod(rest[1:])) if len(rest) > 2 else tuple(rest)
        return self.moved


@dataclass(frozen=True)
class Picking(SizedLayer):
    """`rows` rows of a table of `table` rows, or as many elements of each column, at places that an input gives.

    A Gather reads them. A Scatter writes as many, or with `adds` adds them to those in the table.
    """

    op: str
    table: int
    rows: int
    columns: int
    adds: bool = False

    @property
    def inputs(self) -> list[Shape]:
        """Return the shapes of the table, and of what is written to it."""
        return [(self.table, self.columns), *([self._picked] if self.is_scatter else [])]

    @property
    def places(self) -> Shape:
        """Return the shape of the integers that give the places."""
        if self.op.endswith("Elements"):
            return self._picked
        return (self.rows, 1) if self.op.endswith("ND") else (self.rows,)

    @property
    def result(self) -> Shape:
        """Return the shape of what is read, or of the new table."""
        return self.inputs[0] if self.is_scatter else self._picked

    @property
    def is_scatter(self) -> bool:
        """Whether the layer writes to the places."""
        return self.op.startswith("Scatter")

    @property
    def _picked(self) -> Shape:
        return (self.rows, self.columns)


def _shape(layout: str, batch: int, channels: int, size: Pair) -> Shape:
    return (batch, math.prod(size), channels) if layout == ROWS else (batch, channels, *size)


Mover = Elementwise | Rowwise | Resizing | Joining | Permutation | Picking
