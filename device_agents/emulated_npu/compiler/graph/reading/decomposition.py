"""The decomposition of a node into nodes of other operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from device_agents.emulated_npu.compiler.graph.constants import FLOATS
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import ValueType
from device_agents.emulated_npu.emulator_errors import InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import DataType

_FLOAT, _INT = AttributeProto.FLOAT, AttributeProto.INT
DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
PARAMETERS = ("activation_alpha", "activation_beta", "activation_gamma")
"""The attributes of FusedGemm with the parameters of its activation."""
_ATTRIBUTE_TYPES: Mapping[str, int] = {
    **dict.fromkeys(("activation", "reduction", "mode", "padding_mode"), AttributeProto.STRING),
    **dict.fromkeys((*PARAMETERS, "alpha", "beta", "epsilon", "mask_filter_value", "scale", "softcap"), _FLOAT),
    "activation_params": AttributeProto.FLOATS,
    "qkv_hidden_sizes": AttributeProto.INTS,
    **dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB", "K", "N", "bits", "block_size", "axis"), _INT),
    **dict.fromkeys(("num_heads", "kv_num_heads", "unidirectional", "do_rotary", "local_window_size"), _INT),
    **dict.fromkeys(("interleaved", "rotary_interleaved", "rotary_embedding_dim", "smooth_softmax"), _INT),
}
_AXES_ARE_INPUTS = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "ReduceProd": 18}
"""The opset from which the axes of a reduction are an input."""


class Decomposition:
    """Collects the nodes into which `node` is decomposed; names of their own tensors begin with `name`.

    `types` has the types of the inputs of the node, and `value` returns the values of a small constant, or None.
    """

    def __init__(
        self,
        node: NodeProto,
        name: str,
        types: Mapping[str, ValueType],
        opset: int,
        value: Callable[[str], Array | None],
    ) -> None:
        self.node, self.types, self.opset, self.value = node, types, opset, value
        self.nodes: list[NodeProto] = []
        self._name = name

    def input(self, place: int) -> str:
        """Return the name of an input, "" if it is absent."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def required(self, place: int) -> str:
        """Return the name of an input; raises InvalidModel if it is absent."""
        name = self.input(place)
        if not name:
            raise self.invalid(f"It has no input {place}")
        return name

    def shape(self, place: int, *ranks: int) -> tuple[int, ...]:
        """Return the shape of an input, whose first two axes have elements.

        Raises InvalidModel if it has another number of axes than one of `ranks`, UnsupportedOperator if it has no
        elements.
        """
        shape = self.types[self.required(place)].shape
        if ranks and len(shape) not in ranks:
            raise self.invalid(f"Its input {place} has {len(shape)} axes")
        if 0 in shape[:2]:
            raise self.unsupported(f"Its input {place} has no elements")
        return shape

    def output(self, place: int) -> str:
        """Return the name of an output, "" if it is absent."""
        return self.node.output[place] if place < len(self.node.output) else ""

    @property
    def shown(self) -> str:
        """Name and operator of the node for messages."""
        return f"Node {self._name[:80]!r} ({self.node.op_type})"

    def invalid(self, why: str) -> InvalidModel:
        """Return the error for a node that is not one of its operator."""
        return InvalidModel(f"{self.shown} is not valid", why, "Export it with all operands and attributes")

    def unsupported(self, why: str) -> UnsupportedOperator:
        """Return the error for a node that the compiler has no nodes for."""
        return UnsupportedOperator(f"{self.shown} cannot be compiled", why, "Export the network with operators of ONNX")

    def attributes(self, *without: str) -> dict[str, Any]:
        """Return the attributes of the node, without some."""
        return {item.name: helper.get_attribute_value(item) for item in self.node.attribute if item.name not in without}

    def check_attributes(self) -> None:
        """Raise InvalidModel if an attribute has another type than that of its name."""
        for item in self.node.attribute:
            if item.type != _ATTRIBUTE_TYPES.get(item.name, item.type):
                wanted = AttributeProto.AttributeType.Name(_ATTRIBUTE_TYPES[item.name]).lower()
                raise self.invalid(f"Its attribute {item.name} is not of type {wanted}")

    def numbers(self, place: int, scale: str, zero_point: str, axis: int | None = None) -> str:
        """Add the conversion of an input to numbers; `axis` is that of a scale with several elements."""
        given = [self.required(place), scale, *filter(None, [zero_point])]
        return self._add(DEQUANTIZE, given, {} if axis is None else {"axis": axis})

    def operand(self, place: int, axis: int | None = None) -> str:
        """Add the conversion of an input whose scale and zero point follow it."""
        return self.numbers(place, self.required(place + 1), self.input(place + 2), axis)

    def compute(self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None) -> str:
        """Add an operator on numbers."""
        return self._add(op, inputs, attributes or {})

    def compute_several(self, op: str, inputs: Sequence[str], count: int) -> list[str]:
        """Add an operator with several results."""
        outputs = [f"{self._name}/{op}_{len(self.nodes)}_{place}" for place in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), outputs))
        return outputs

    def constant(self, value: Array) -> str:
        """Add a constant."""
        return self._add("Constant", [], {"value": numpy_helper.from_array(np.ascontiguousarray(value))})

    @property
    def number_type(self) -> np.dtype[Any]:
        """The type of the first input that has numbers, not integers."""
        kinds = (self.types[name].dtype for name in self.node.input if name)
        return NUMPY_TYPES[next((kind for kind in kinds if kind in FLOATS), DataType.FLOAT32)]

    def number(self, value: float) -> str:
        """Add a constant of the type of the inputs."""
        return self.constant(np.array(value, self.number_type))

    def integers(self, values: Any) -> str:
        """Add constant integers."""
        return self.constant(np.asarray(values, np.int64))

    def reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        """Add a Reshape."""
        return self.compute("Reshape", [tensor, self.integers(shape)])

    def transposed(self, tensor: str, order: Sequence[int]) -> str:
        """Add a Transpose."""
        return self.compute("Transpose", [tensor], {"perm": list(order)})

    def sliced(self, tensor: str, axis: int, start: int, stop: int) -> str:
        """Add a Slice of one axis."""
        return self.compute("Slice", [tensor, *(self.integers([number]) for number in (start, stop, axis))])

    def joined(self, tensors: Sequence[str], axis: int) -> str:
        """Add a Concat, if there are several tensors."""
        return self.compute("Concat", tensors, {"axis": axis}) if len(tensors) > 1 else tensors[0]

    def reduced(self, op: str, tensor: str, axis: int) -> str:
        """Add a reduction along one axis, which stays with one element."""
        if self.opset >= _AXES_ARE_INPUTS[op]:
            return self.compute(op, [tensor, self.integers([axis])], {"keepdims": 1})
        return self.compute(op, [tensor], {"axes": [axis], "keepdims": 1})

    def result(self, numbers: str, place: int) -> None:
        """Add the conversion to the node's output, whose scale and zero point are the input `place` and the next."""
        self.quantised(numbers, self.required(place), self.input(place + 1))

    def quantised(self, numbers: str, scale: str, zero_point: str) -> None:
        """Add the conversion to the node's output."""
        given = [numbers, scale, *filter(None, [zero_point])]
        self.nodes.append(helper.make_node(QUANTIZE, given, [self.node.output[0]]))

    def bound(self, numbers: str, place: int = 0) -> None:
        """Make numbers an output of the node, if it has this output."""
        if self.output(place):
            self.nodes.append(helper.make_node("Identity", [numbers], [self.output(place)]))

    def _add(self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        output = f"{self._name}/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output


Decompose = Callable[[Decomposition], None]
"""Adds the nodes into which the node of a body is decomposed."""
