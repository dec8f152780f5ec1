"""The parts of a network of layers, on floats, or on integers in the form in which quantisers write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from onnx import TensorProto

from harness.network.zoo.network_parts import NetworkParts

_SCALE = 1 / 16


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

    def integer_weight(self, name: str, shape: Sequence[int], kind: int = TensorProto.INT8) -> str:
        """Add a weight of integers without values."""
        self.weights.append(TensorProto(name=name, dims=shape, data_type=kind, data_location=TensorProto.EXTERNAL))
        return name

    def dynamic_product(self, name: str, source: str, shape: Sequence[int], **window: Any) -> str:
        """Add a product with weights of this shape, a convolution if it has a window; its input is quantised first."""
        op, bias = ("ConvInteger", (1, shape[0], *(1,) * (len(shape) - 2))) if window else ("MatMulInteger", shape[1:])
        read, scale, zero = self.nodes_of("DynamicQuantizeLinear", f"{name}.quantise", [source], 3)
        operands = [read, self.integer_weight(f"{name}.weight", shape), zero]
        integers = self.node(op, name, [*operands, self.numbers(f"{name}.weight_zero", 0, np.int8)], **window)
        product = self.node("Cast", f"{name}.float", [integers], to=TensorProto.FLOAT)
        scales = self.node("Mul", f"{name}.scales", [scale, self.scalar(f"{name}.weight_scale", _SCALE)])
        scaled = self.node("Mul", f"{name}.scaled", [product, scales])
        return self.node("Add", f"{name}.add", [scaled, self.weight(f"{name}.bias", bias)])


class IntegerParts(LayerParts):
    """Parts whose layers pass unsigned bytes: a QuantizeLinear is behind each, and DequantizeLinears in front."""

    def stored(self, name: str, tensor: str) -> str:
        """Add a QuantizeLinear behind a layer."""
        return self._converted("QuantizeLinear", name, tensor)

    def taken(self, name: str, tensor: str) -> str:
        """Add a DequantizeLinear in front of a layer."""
        return self._converted("DequantizeLinear", name, tensor)

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight of integers, a bias if it has one axis, and the DequantizeLinear in front of its reader."""
        bits, kind = (TensorProto.INT8, np.int8) if len(shape) > 1 else (TensorProto.INT32, np.int32)
        zero = self.numbers(f"{name}.zero", 0, kind)
        scale = self.scalar(f"{name}.scale", _SCALE if len(shape) > 1 else _SCALE**2)
        inputs = [self.integer_weight(name, shape, bits), scale, zero]
        return self.node("DequantizeLinear", f"{name}.read", inputs)

    def _converted(self, op: str, name: str, tensor: str) -> str:
        zero = self.numbers(f"{name}.zero", 0, np.uint8)  # a Relu in front of it computes nothing more
        return self.node(op, name, [tensor, self.scalar(f"{name}.scale", _SCALE), zero])
