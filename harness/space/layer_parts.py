"""The operators of layers in the form in which exporters and quantisers write them, on floats or on integers."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from onnx import TensorProto, helper

from harness.network.zoo.network_parts import NetworkParts
from harness.space.configuration import PACKED_BLOCK
from harness.space.data_movement import (
    GRID,
    ORDERS,
    PAIRED,
    ROWS,
    Elementwise,
    Joining,
    Mover,
    Picking,
    Resizing,
    Rowwise,
)

_SCALE = 1 / 16
_LRN_CHANNELS = 5
_NUMBER = 0.5


class LayerParts(NetworkParts):
    """Parts whose layers pass floats to each other."""

    @classmethod
    def within(cls, parts: NetworkParts) -> Self:
        """Return parts that are added to those of another network."""
        return cls(parts.nodes, parts.inputs, parts.outputs, parts.weights)

    def stored(self, name: str, tensor: str) -> str:  # noqa: ARG002 - the signature of the other class
        """Return a tensor as a layer writes it."""
        return tensor

    def taken(self, name: str, tensor: str) -> str:  # noqa: ARG002 - the signature of the other class
        """Return a tensor as a layer reads it."""
        return tensor

    def integer_weight(self, name: str, shape: Sequence[int], kind: int) -> str:
        """Add a weight of integers without values."""
        self.weights.append(TensorProto(name=name, dims=shape, data_type=kind, data_location=TensorProto.EXTERNAL))
        return name

    def dynamic_product(self, name: str, source: str, shape: Sequence[int], kind: int, **window: Any) -> str:
        """Add a product whose input is quantised first, a convolution if it has a window.

        `shape` and `kind`, an element type, are those of its weights.
        """
        op, bias = ("ConvInteger", (1, shape[0], *(1,) * (len(shape) - 2))) if window else ("MatMulInteger", shape[1:])
        read, scale, zero = self.nodes_of("DynamicQuantizeLinear", f"{name}.quantise", [source], 3)
        middle = 0 if kind == TensorProto.INT8 else 1 << 7
        weight_zero = self.numbers(f"{name}.weight_zero", middle, helper.tensor_dtype_to_np_dtype(kind).type)
        operands = [read, self.integer_weight(f"{name}.weight", shape, kind), zero, weight_zero]
        integers = self.node(op, name, operands, **window)
        product = self.node("Cast", f"{name}.float", [integers], to=TensorProto.FLOAT)
        scales = self.node("Mul", f"{name}.scales", [scale, self.scalar(f"{name}.weight_scale", _SCALE)])
        scaled = self.node("Mul", f"{name}.scaled", [product, scales])
        return self.node("Add", f"{name}.add", [scaled, self.weight(f"{name}.bias", bias)])

    def packed_product(self, name: str, source: str, shape: Sequence[int]) -> str:
        """Add a product of matrices with weights of this shape, blocks of four bits which are multiplied as bytes."""
        depth, columns = shape
        blocks = depth // PACKED_BLOCK
        weight = self.integer_weight(f"{name}.weight", (columns, blocks, PACKED_BLOCK // 2), TensorProto.UINT8)
        inputs = [source, weight, self.weight(f"{name}.scale", (columns, blocks))]
        sizes = {"K": depth, "N": columns, "bits": 4, "block_size": PACKED_BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", name, inputs, domain="com.microsoft", **sizes)


class IntegerWeightParts(LayerParts):
    """Parts whose layers pass floats, and whose weights are signed bytes that a DequantizeLinear makes floats."""

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight of integers and the DequantizeLinear before its reader, or a bias of floats with one axis."""
        if len(shape) == 1:
            return super().weight(name, shape)
        return self._read(name, shape, TensorProto.INT8, _SCALE)

    def _read(self, name: str, shape: Sequence[int], bits: int, scale: float) -> str:
        middle = 1 << 7 if bits == TensorProto.UINT8 else 0
        zero = self.numbers(f"{name}.zero", middle, helper.tensor_dtype_to_np_dtype(bits).type)
        inputs = [self.integer_weight(name, shape, bits), self.scalar(f"{name}.scale", scale), zero]
        return self.node("DequantizeLinear", f"{name}.read", inputs)


class IntegerParts(IntegerWeightParts):
    """Parts whose layers pass unsigned bytes: a QuantizeLinear follows each, and DequantizeLinears precede it."""

    _weights = TensorProto.INT8

    def stored(self, name: str, tensor: str) -> str:
        """Add a QuantizeLinear after a layer."""
        return self._converted("QuantizeLinear", name, tensor)

    def taken(self, name: str, tensor: str) -> str:
        """Add a DequantizeLinear before a layer."""
        return self._converted("DequantizeLinear", name, tensor)

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight of integers, a bias if it has one axis, and the DequantizeLinear before its reader."""
        bits, scale = (self._weights, _SCALE) if len(shape) > 1 else (TensorProto.INT32, _SCALE**2)
        return self._read(name, shape, bits, scale)

    def _converted(self, op: str, name: str, tensor: str) -> str:
        zero = self.numbers(f"{name}.zero", 0, np.uint8)  # a Relu before it has no further effect
        return self.node(op, name, [tensor, self.scalar(f"{name}.scale", _SCALE), zero])


class UnsignedWeightParts(IntegerParts):
    """Parts whose layers pass unsigned bytes, and whose weights are unsigned, too."""

    _weights = TensorProto.UINT8


class IntegerActivationParts(IntegerParts):
    """Parts whose layers pass unsigned bytes, and whose weights are floats."""

    weight = LayerParts.weight


def mover_nodes(parts: NetworkParts, name: str, layer: Mover, sources: Sequence[str]) -> list[str]:
    """Add the operators of a layer, and return its results."""
    if isinstance(layer, Elementwise):
        return [_on_maps(parts, name, layer, sources)]
    if isinstance(layer, Rowwise):
        return [_on_rows(parts, name, layer, sources)]
    if isinstance(layer, Resizing) and layer.op == GRID:
        return [parts.node(GRID, name, sources, mode={"linear": "bilinear"}.get(layer.mode, layer.mode))]
    if isinstance(layer, Resizing):
        scales = parts.numbers(f"{name}.scales", (1, 1, layer.scale, layer.scale), np.float32)
        places = {"nearest": "asymmetric", "linear": "half_pixel"}[layer.mode]
        modes = {"mode": layer.mode, "coordinate_transformation_mode": places, "nearest_mode": "floor"}
        return [parts.node("Resize", name, [*sources, "", scales], **modes)]
    if isinstance(layer, Joining):
        if layer.op == "Concat":
            return [parts.node("Concat", name, sources, axis=layer.axis)]
        if layer.op == "Slice":
            bounds = {"from": 0, "to": layer.channels, "axis": layer.axis}
            return [
                parts.node(
                    "Slice", name, [*sources, *(parts.numbers(f"{name}.{key}", (at,)) for key, at in bounds.items())]
                )
            ]
        sizes = parts.numbers(f"{name}.sizes", (layer.channels,) * layer.parts)
        return parts.nodes_of("Split", name, [*sources, sizes], layer.parts, axis=layer.axis)
    if isinstance(layer, Picking):
        table, *added = sources
        places = parts.integers(f"{name}.places", layer.places)
        axis = {} if layer.op.endswith("ND") else {"axis": 0}
        reduction = {"reduction": "add"} if layer.adds else {}
        return [parts.node(layer.op, name, [table, places, *added], **axis, **reduction)]
    if layer.order:
        sources = [parts.node("Transpose", name, sources, perm=ORDERS[layer.order])]
    if layer.result == layer.moved:
        return list(sources)
    return [parts.node("Reshape", f"{name}.joined", [*sources, parts.numbers(f"{name}.shape", layer.result)])]


def _on_maps(parts: NetworkParts, name: str, layer: Elementwise, sources: Sequence[str]) -> str:
    if layer.op == "BatchNormalization":
        return parts.batch_normalisation(name, sources[0], layer.channels)
    if layer.op == "LRN":
        return parts.node(layer.op, name, sources, size=_LRN_CHANNELS)
    if layer.op == "PRelu" or (layer.op in PAIRED and layer.broadcast and layer.operands == 1):
        each = (layer.channels,) if layer.layout == ROWS else (layer.channels, 1, 1)
        return parts.node(layer.op, name, [*sources, parts.weight(f"{name}.each", each)])
    if layer.op in PAIRED and layer.operands == 1:
        return parts.node(layer.op, name, [*sources, parts.scalar(f"{name}.number", _NUMBER)])
    return parts.activation(layer.op, name, sources)


def _on_rows(parts: NetworkParts, name: str, layer: Rowwise, sources: Sequence[str]) -> str:
    if layer.residual:
        sources = [parts.node("Add", f"{name}.add", sources)]
    if layer.op == "LayerNormalization":
        weights = [parts.weight(f"{name}.{part}", (layer.columns,)) for part in ("weight", "bias")]
        return parts.node(layer.op, name, [*sources, *weights], axis=-1)
    if layer.op == "InstanceNormalization":
        return parts.node(layer.op, name, [*sources, *(parts.weight(f"{name}.{one}", (layer.rows,)) for one in "sb")])
    if layer.op in ("Softmax", "Hardmax"):
        return parts.node(layer.op, name, sources, axis=-1)
    if layer.op == "CumSum":
        return parts.node(layer.op, name, [*sources, parts.numbers(f"{name}.axis", layer.axis)])
    if layer.op == "Trilu":
        return parts.node(layer.op, name, sources, upper=0)
    if layer.op == "Mod":
        integers = parts.integers(f"{name}.integers", layer.result)
        rest = parts.node(layer.op, name, [integers, parts.numbers(f"{name}.divisor", layer.columns)])
        return parts.node("Cast", f"{name}.cast", [rest], to=TensorProto.FLOAT)
    if layer.op == "OneHot":
        given = parts.numbers(f"{name}.depth", layer.columns), parts.numbers(f"{name}.values", (0, 1), np.float32)
        return parts.node(layer.op, name, [parts.integers(f"{name}.places", layer.result[:-1]), *given], axis=-1)
    if layer.op.startswith("Reduce"):
        return parts.node(layer.op, name, sources, axes=[layer.axis], keepdims=1)
    if layer.op == "ArgMax":
        place = parts.node(layer.op, name, sources, axis=layer.axis, keepdims=1)
        return parts.node("Cast", f"{name}.cast", [place], to=TensorProto.FLOAT)
    if layer.op == "TopK":
        return parts.nodes_of(layer.op, name, [*sources, parts.numbers(f"{name}.kept", layer.result[-1:])], 2)[0]
    if layer.op == "Expand":
        return parts.node(layer.op, name, [*sources, parts.numbers(f"{name}.shape", layer.result)])
    return parts.activation(layer.op, name, sources)
