"""The parts of a network under construction: operators in the form in which exporters write them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from harness.network.network import Network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import ModelFile

IR_VERSION = 8
_AXES_READ, _WHOLE_GELU = 18, 20
"""The opsets from which reductions read their axes, and Gelu is one operator."""
_GATES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "Swish": ("Sigmoid", {}),
    "GatedHardSwish": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
}
"""Activations that exporters write as a product of a tensor and a function of it."""
GELUS = ("Gelu", "HalvedGelu", "TanhGelu")
"""The orders in which exporters write the operators of a Gelu."""
_WHOLE = "WholeGelu"
EVERY_GELU = (*GELUS, _WHOLE)
"""These, and Gelu as one operator; `NetworkParts.can` says whether an opset has it."""


@dataclass
class NetworkParts:
    """The parts of a graph under construction; inputs, weights and scalars have the type `dtype`, numpy's name."""

    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    dtype: str = "float32"
    opset: int = 17

    @property
    def element(self) -> int:
        """The number that ONNX gives to the type."""
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add an input of the network."""
        self.inputs.append(helper.make_tensor_value_info(name, self.element, shape))
        return name

    def integers(self, name: str, shape: Sequence[int]) -> str:
        """Add an input of integers."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight without values."""
        external = TensorProto.EXTERNAL
        self.weights.append(TensorProto(name=name, dims=shape, data_type=self.element, data_location=external))
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a constant of one number."""
        self.weights.append(numpy_helper.from_array(np.array(value, self.dtype), name))
        return name

    def numbers(self, name: str, values: Sequence[float] | float, kind: type = np.int64) -> str:
        """Add a constant of several numbers, or of one without axes."""
        self.weights.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an operator of one result, and return that."""
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}.output"], name, **attributes))
        return f"{name}.output"

    def nodes_of(self, op: str, name: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:
        """Add an operator of several results, and return them."""
        names = [f"{name}.output{number}" for number in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name, **attributes))
        return names

    def batch_normalisation(self, name: str, tensor: str, channels: int) -> str:
        """Add a BatchNormalization with its own weights, and return its result."""
        scales = [self.weight(f"{name}.{part}", (channels,)) for part in ("scale", "bias", "mean", "variance")]
        return self.node("BatchNormalization", name, [tensor, *scales])

    def activation(self, kind: str, name: str, sources: Sequence[str]) -> str:
        """Add an activation, or any operator with no attributes of its own; return its result.

        `Relu6` is a Clip, `WholeGelu` the operator of opset 20; see `_GATES` and `_gelu` for others.
        """
        if kind == _WHOLE:
            return self.node("Gelu", name, sources)
        if kind == "Relu6":
            bounds = [self.scalar(f"{name}.min", 0.0), self.scalar(f"{name}.max", 6.0)]
            return self.node("Clip", name, [*sources, *bounds])
        if kind in _GATES:
            gate, attributes = _GATES[kind]
            return self.node("Mul", f"{name}.mul", [sources[0], self.node(gate, name, sources, **attributes)])
        if kind in GELUS:
            return self._gelu(kind, name, sources[0])
        return self.node(kind, name, sources)

    def _gelu(self, kind: str, name: str, tensor: str) -> str:
        """Add x * (1 + erf(x / sqrt(2))) * 0.5, or x * (0.5 * (1 + curve)) as newer exporters do; see `GELUS`."""
        if kind == "TanhGelu":
            cube = self._with("Mul", f"{name}.cubic", self._with("Pow", f"{name}.cube", tensor, 3.0), 0.044715)
            inner = self.node("Add", f"{name}.inner", [tensor, cube])
            scaled = self._with("Mul", f"{name}.scaled", inner, math.sqrt(2 / math.pi))
            curve = self.node("Tanh", f"{name}.tanh", [scaled])
        else:
            curve = self.node("Erf", f"{name}.erf", [self._with("Div", f"{name}.div", tensor, math.sqrt(2.0))])
        curve = self._with("Add", f"{name}.add", curve, 1.0)
        if kind == "Gelu":
            return self._with("Mul", f"{name}.half", self.node("Mul", f"{name}.mul", [tensor, curve]), 0.5)
        return self.node("Mul", f"{name}.mul", [tensor, self._with("Mul", f"{name}.half", curve, 0.5)])

    def layer_normalisation(self, name: str, tensor: str, columns: int) -> str:
        """Add the operators that exporters before opset 17 write for a LayerNormalization, and return their result."""
        mean = self.mean(f"{name}.mean", tensor, (-1,))
        apart = self.node("Sub", f"{name}.apart", [tensor, mean])
        square = self._with("Pow", f"{name}.square", apart, 2.0)
        variance = self.mean(f"{name}.variance", square, (-1,))
        spread = self.node("Sqrt", f"{name}.spread", [self._with("Add", f"{name}.least", variance, 1e-5)])
        result = self.node("Div", f"{name}.div", [apart, spread])
        for op in ("Mul", "Add"):
            result = self.node(op, f"{name}.{op}", [result, self.weight(f"{name}.{op}.value", (columns,))])
        return result

    def mean(self, name: str, tensor: str, axes: Sequence[int]) -> str:
        """Add a mean over axes, which are an attribute or an input by the opset; return its result."""
        if self.opset < _AXES_READ:
            return self.node("ReduceMean", name, [tensor], axes=axes)
        return self.node("ReduceMean", name, [tensor, self.numbers(f"{name}.axes", axes)])

    def can(self, activation: str) -> bool:
        """Return whether the opset has an activation."""
        return activation != _WHOLE or self.opset >= _WHOLE_GELU

    def network(self, name: str) -> Network:
        """Return the network of all parts."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)
        others = sorted({node.domain for node in self.nodes} - {""})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in others)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        return prepare(ModelFile(name, model, digest), {})

    def _with(self, op: str, name: str, tensor: str, value: float) -> str:
        return self.node(op, name, [tensor, self.scalar(f"{name}.value", value)])
