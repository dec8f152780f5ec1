"""Operator blocks of a space file; each maps the points of a unit cube to layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.space.axes import DEPTHWISE, Axis, Choices, Groups, Sizes, choices_of
from harness.space.configuration import (
    ACTIVATIONS,
    INT8,
    NO_ACTIVATION,
    PACKED_BLOCK,
    PACKED_WEIGHTS,
    WEIGHTS,
    Configuration,
    Convolution,
    FloatLayer,
    Pooling,
    Product,
    Quantised,
    Recurrent,
    Transposed,
    padding_of,
)
from harness.space.data_movement import (
    ALONG_AXES,
    BROADCAST,
    MAP,
    NUMBER,
    ORDERS,
    PAIRED,
    ROWS,
    WEIGHT,
    Elementwise,
    Joining,
    Permutation,
    Picking,
    Resizing,
    Rowwise,
)
from harness.strict_model import StrictModel

_ONE = Choices((1,))
_PLAIN = Choices((NO_ACTIVATION,))
_NEVER = Choices((False,))
_MAPS = Choices((MAP,))
_ON_MAPS = ("BatchNormalization", "LRN")
_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
_AS_ONE_LAYER = frozenset(
    {"Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "MaxPool", "AveragePool", "GlobalAveragePool"}
)
_MOVED = frozenset({"Concat", "Split", "Slice", "Resize", "Transpose", "Reshape"})
_AS_SEVERAL = frozenset({"Gelu", "HardSigmoid", "LayerNormalization"})
_ON_INTEGERS = _PRODUCTS | _AS_ONE_LAYER | _MOVED | _AS_SEVERAL
"""Operators that may be on integers: ONNX Runtime executes them as one layer, or quantised networks often have them."""

_Paired = Literal["Add", "Mul", "Sub", "Div"]
_Curve = Literal["Sigmoid", "Tanh", "Swish", "HardSwish", "HardSigmoid", "Gelu", "Exp", "Log", "Erf", "Sin", "Sqrt"]
_Rectifier = Literal["Relu", "LeakyRelu", "PRelu", "Elu", "Softplus"]
_OnRows = Literal["Softmax", "Hardmax", "LayerNormalization", "InstanceNormalization"]
Activations = Annotated[Choices, choices_of(NO_ACTIVATION, "Relu", "Relu6", "Sigmoid", "Tanh", "Swish", "HardSwish")]
Flags = Annotated[Choices, choices_of(True, False)]
Context = Literal["map", "chip", "outside"]
"""Where inputs come from: another convolution, an operator that keeps no layout of maps, or outside."""
Layouts = Annotated[Choices, choices_of(MAP, ROWS)]


class Block(StrictModel):
    """The base of all blocks; `share` is the weight of the block among the others of the space.

    `precision` is float32, or one of `Quantised`.
    """

    share: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    precision: Literal[
        "float32", "int8", "uint8-weights", "activations", "dynamic", "dynamic-uint8", "weights", "packed"
    ] = "float32"

    @functools.cached_property
    def axes(self) -> Mapping[str, Axis]:
        """Return the axes that the block sets, by name."""
        found = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: axis for name, axis in found if hasattr(axis, "at")}

    @property
    def count(self) -> int:
        """Return the number of combinations of values; some of them may be invalid."""
        return math.prod(axis.count for axis in self.axes.values())

    @model_validator(mode="after")
    def _is_one_on_integers(self) -> Self:
        """Refuse layers on integers that are not in `_ON_INTEGERS`, and what devices execute as several operators."""
        if self.precision == "float32":
            return self
        op = getattr(self, "op", "")
        if op not in _ON_INTEGERS:
            raise ValueError(f"precision of {op} may only be float32")
        if self.precision != INT8 and not isinstance(self, ConvolutionBlock | ProductBlock):
            raise ValueError(f"precision may be {self.precision} only for products")
        if self.precision == PACKED_WEIGHTS and isinstance(self, ConvolutionBlock):
            raise ValueError("precision may be packed only for MatMul and Gemm")
        if self.precision == ACTIVATIONS and op == "MatMul":
            raise ValueError("precision may be activations only for Conv and Gemm")
        for one in ("batch_norm",) if self.precision == WEIGHTS else ("batch_norm", "residual"):
            if getattr(self, one, _NEVER) != _NEVER:
                raise ValueError(f"a layer whose precision is {self.precision} has no {one}")
        return self

    def at(self, point: Sequence[float]) -> Configuration | None:
        """Return the layer at a point of the unit cube over `axes`; None if its sizes do not fit together."""
        pairs = zip(self.axes.items(), point, strict=True)
        values = {name: axis.at(position) for (name, axis), position in pairs}
        if "size" in values:  # height and width; a plane without a width is square, a video without frames is a cube
            edge = values["size"]
            sizes = (values.pop("frames", edge), edge, values.pop("width", edge))
            values["size"] = {1: sizes[1:2], 2: sizes[1:], 3: sizes}[getattr(self, "dimensions", 2)]
        layer = self._layer(values)
        return layer if layer is None or self.precision == "float32" else Quantised(layer, self.precision)

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        raise NotImplementedError


class ConvolutionBlock(Block):
    """Convolutions; a depthwise one ignores `channels_out`, and has `multiplier` outputs for each input channel."""

    op: Literal["Conv"]
    channels_in: Sizes
    channels_out: Sizes
    size: Sizes
    width: Sizes | None = None
    batch: Sizes = _ONE
    kernel: Sizes = _ONE
    stride: Sizes = _ONE
    dilation: Sizes = _ONE
    groups: Groups = _ONE
    multiplier: Sizes = _ONE
    activation: Activations = _PLAIN
    batch_norm: Flags = _NEVER
    residual: Flags = _NEVER
    context: Context = "map"
    frames: Sizes | None = None
    dimensions: Literal[1, 2, 3] = 2

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        multiplier = values.pop("multiplier")
        if values["groups"] == DEPTHWISE:
            values["groups"] = values["channels_in"]
            values["channels_out"] = values["channels_in"] * multiplier
        groups = values["groups"]
        fits = values["channels_in"] % groups == values["channels_out"] % groups == 0 and _window_fits(values)
        return Convolution(**values, context=self.context) if fits else None


class TransposedBlock(Block):
    """Transposed convolutions, which make maps larger by their stride."""

    op: Literal["ConvTranspose"]
    channels_in: Sizes
    channels_out: Sizes
    size: Sizes
    width: Sizes | None = None
    batch: Sizes = _ONE
    kernel: Sizes
    stride: Sizes
    frames: Sizes | None = None
    dimensions: Literal[1, 2, 3] = 2

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Transposed(**values) if values["kernel"] >= values["stride"] else None


class ProductBlock(Block):
    """Matrix products with a weight and a bias, or `heads` products of two activations, as in attention."""

    op: Literal["MatMul", "Gemm"]
    rows: Sizes
    depth: Sizes
    columns: Sizes
    heads: Sizes | None = None
    activation: Activations = _PLAIN

    @model_validator(mode="after")
    def _heads_are_for_matmul(self) -> ProductBlock:
        if self.op == "Gemm" and self.heads is not None:
            raise ValueError("Gemm has no heads; use MatMul")
        if self.precision not in ("float32", INT8) and self.heads is not None:
            raise ValueError(f"a product with heads has no weights, so its precision is not {self.precision}")
        return self

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        if self.precision == PACKED_WEIGHTS and values["depth"] % PACKED_BLOCK:
            return None
        return Product(**{"op": self.op, "heads": 0, **values})


class RecurrentBlock(Block):
    """Recurrent layers, which multiply their state at each step."""

    op: Literal["LSTM", "GRU"]
    steps: Sizes
    depth: Sizes
    columns: Sizes
    directions: Annotated[Choices, choices_of(1, 2)] = _ONE

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Recurrent(op=self.op, **values)


class _PlaneBlock(Block):
    """The base of blocks of layers that read planes; a plane is square if `width` is not given."""

    channels: Sizes
    size: Sizes
    width: Sizes | None = None
    batch: Sizes = _ONE


class PoolingBlock(_PlaneBlock):
    """Pooling layers with a window."""

    op: Literal["MaxPool", "AveragePool"]
    kernel: Sizes
    stride: Sizes = _ONE
    context: Context = "map"
    frames: Sizes | None = None
    dimensions: Literal[1, 2, 3] = 2

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        windows = {name: (values[name],) * self.dimensions for name in ("kernel", "stride")}
        return Pooling(op=self.op, **{**values, **windows}, context=self.context) if _window_fits(values) else None


class GlobalPoolingBlock(_PlaneBlock):
    """Pooling layers over the whole plane."""

    op: Literal["GlobalAveragePool", "GlobalMaxPool"]
    context: Context = "map"

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Pooling(op=self.op, kernel=values["size"], stride=(1, 1), **values, context=self.context)


class ElementwiseBlock(_PlaneBlock):
    """Operators on each element of one tensor, or of two: of the same shape, one value per channel, or constant."""

    op: Literal[_Paired, _Curve, _Rectifier, "BatchNormalization", "LRN"]
    operand: Annotated[Choices, choices_of("map", BROADCAST, NUMBER, WEIGHT)] = Choices(("map",))
    layout: Layouts = _MAPS

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ElementwiseBlock:
        if self.op not in PAIRED and self.operand.values != ("map",):
            raise ValueError(f"{self.op} has no second operand")
        if self.op in _ON_MAPS and ROWS in self.layout.values:
            raise ValueError(f"{self.op} reads maps, not rows")
        return self

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        operand = values.pop("operand")
        operands = 2 if self.op in PAIRED and operand not in (NUMBER, WEIGHT) else 1
        return Elementwise(self.op, operands, **values, broadcast=operand in (BROADCAST, WEIGHT))


class ResizingBlock(_PlaneBlock):
    """Maps made larger by whole factors, or read at places that an input gives."""

    op: Literal["Resize", "GridSample"]
    scale: Sizes
    mode: Annotated[Choices, choices_of("nearest", "linear")] = Choices(("nearest", "linear"))
    context: Context = "map"

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Resizing(self.op, **values, context=self.context)


class JoiningBlock(_PlaneBlock):
    """Several tensors of as many channels joined to one, one divided into several, or the first of these."""

    op: Literal["Concat", "Split", "Slice"]
    parts: Sizes = Choices((2,))
    layout: Layouts = _MAPS

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Joining(op=self.op, **values)


class PermutationBlock(Block):
    """Tensors with their axes in a different order, or flattened: maps after their channels, matrices to two axes.

    A matrix has `rows` and `columns`; heads divide the columns, a shuffle divides `rows`, its channels, by `parts`.
    `parts` x `parts` channels become pixels, or pixels a patch.
    """

    op: Literal["Transpose", "Reshape"]
    rows: Sizes
    columns: Sizes
    parts: Sizes = Choices((2,))
    order: Annotated[Choices, choices_of(*ORDERS)] = Choices(tuple(ORDERS))
    layout: Layouts = _MAPS

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        rows, columns, parts = (values[name] for name in ("rows", "columns", "parts"))
        order = values["order"] if self.op == "Transpose" else ""
        edge = max(1, math.isqrt(columns))
        if order in ("heads", "reversed", "shuffle", "qkv") and (rows if order == "shuffle" else columns) % parts:
            return None
        if not order and values["layout"] == ROWS:
            return Permutation((1, rows, columns), order)
        if (order == "pixels" and rows % parts**2) or (order == "patches" and edge % parts):
            return None
        shapes = {
            "matrix": (1, rows, columns),
            "heads": (1, parts, rows, columns // parts),
            "reversed": (1, rows, parts, columns // parts),
            "qkv": (1, rows, 3, parts, columns // parts),
            "channels_first": (1, edge, edge, rows),
            "shuffle": (1, parts, rows // parts, edge, edge),
            "pixels": (1, rows // parts**2, parts, parts, edge, edge),
            "patches": (1, rows, edge // parts, parts, edge // parts, parts),
        }
        return Permutation(shapes.get(order, (1, rows, edge, edge)), order)


class PickingBlock(Block):
    """Rows of a table, or single elements, at places that an input gives."""

    op: Literal["Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements"]
    table: Sizes
    rows: Sizes
    columns: Sizes
    adds: Flags = _NEVER

    @model_validator(mode="after")
    def _fits_the_operator(self) -> PickingBlock:
        if True in self.adds.values and not self.op.startswith("Scatter"):
            raise ValueError(f"{self.op} adds nothing")
        return self

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Picking(self.op, **values)


class RowwiseBlock(Block):
    """Operators along an axis of matrices: the last one, or for those of `ALONG_AXES` any of 1 and 2."""

    op: Literal[_OnRows, "ReduceMean", "ReduceMax", "ArgMax", "Expand", "TopK", "CumSum", "Trilu", "Mod", "OneHot"]
    rows: Sizes
    columns: Sizes
    axis: Sizes = Choices((2,))
    residual: Flags = _NEVER

    @model_validator(mode="after")
    def _fits_the_operator(self) -> RowwiseBlock:
        if self.op != "LayerNormalization" and True in self.residual.values:
            raise ValueError(f"{self.op} has no residual")
        allowed = (1, 2) if self.op in ALONG_AXES else (2,)
        if not isinstance(self.axis, Choices) or not set(self.axis.values) <= set(allowed):
            raise ValueError(f"axis of {self.op} must be {' or '.join(map(str, allowed))}")
        return self

    def _layer(self, values: dict[str, Any]) -> FloatLayer | None:
        return Rowwise(self.op, **values)


def _window_fits(values: Mapping[str, Any]) -> bool:
    """Return whether a window, as wide as its dilation makes it, lies within the padded plane."""
    kernel, apart = values["kernel"], values.get("dilation", 1)
    padded = min(values["size"]) + 2 * padding_of(kernel, values["stride"]) * apart
    return bool(padded > (kernel - 1) * apart)


AnyBlock = Annotated[
    ConvolutionBlock
    | TransposedBlock
    | ProductBlock
    | RecurrentBlock
    | PoolingBlock
    | GlobalPoolingBlock
    | ElementwiseBlock
    | ResizingBlock
    | JoiningBlock
    | PermutationBlock
    | PickingBlock
    | RowwiseBlock,
    Field(discriminator="op"),
]
