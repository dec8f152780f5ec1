"""Assemble ONNX models for a device: layers, whole networks and auxiliary operators, without their weights.

The builder makes all names in a model (`x0`, `t1`, `k2`, `w3`), so that no name of a file reaches a device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.network.network import FLOATS, ITEM_BYTES, Constant, Network, Node, TensorType
from harness.network.prepare import onnx_dtype

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

MAX_TRAVELLING_ELEMENTS = 1024
_FLOAT_WEIGHT_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "Einsum", "LSTM", "GRU", "RNN")
_INTEGER_WEIGHT_OPS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear")
WEIGHT_OPS = frozenset((*_FLOAT_WEIGHT_OPS, *_INTEGER_WEIGHT_OPS))
_INDEX_READERS = frozenset({"Gather", "GatherElements", "GatherND"})
_VIEWS = frozenset({"Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten"})
_IR_VERSION = 8


@dataclass(frozen=True)
class ArraySpec:
    """How the device generates one array; see `device_agents.arrays.make`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    seed: int
    distribution: str
    low: float = 0.0
    high: float = 1.0
    scale: float = 1.0

    @property
    def bytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def wire(self) -> dict[str, Any]:
        """Return the spec as it is sent."""
        return {**asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class EmittedNames:
    """The tensors, and the indices of the nodes, of the network by their names in an assembled model."""

    tensors: Mapping[str, str]
    nodes: Mapping[str, int]


@dataclass(frozen=True)
class AssembledModel:
    """A checked ONNX model without its weights, and the arrays that a device generates to run it."""

    content: bytes
    weights: tuple[ArraySpec, ...]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[TensorType, ...]
    names: EmittedNames

    @property
    def input_bytes(self) -> int:
        """Size of all inputs in bytes."""
        return sum(spec.bytes for spec in self.inputs)

    @property
    def output_bytes(self) -> int:
        """Size of all outputs in bytes."""
        return sum(kind.bytes for kind in self.outputs)

    @property
    def weight_bytes(self) -> int:
        """Size in bytes of the weights that the device generates."""
        return sum(spec.bytes for spec in self.weights)

    @property
    def digest(self) -> str:
        """Hash of the model, its weights and its inputs."""
        digest = hashlib.sha256(self.content)
        digest.update(repr((self.weights, self.inputs)).encode())
        return digest.hexdigest()[:16]


class ModelBuilder:
    """A model under construction; `build` checks it and leaves its weights out."""

    def __init__(self, opset: int, seed: int = 0) -> None:
        self.opset = opset
        self._seed = seed
        self._types: dict[str, TensorType] = {}
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._weights: list[ArraySpec] = []
        self._inputs: list[ArraySpec] = []
        self._constants: dict[tuple[int, str], str] = {}
        self._tensor_origin: dict[str, str] = {}
        self._node_origin: dict[str, int] = {}

    def type_of(self, name: str) -> TensorType:
        """Return the type of a tensor of this model."""
        return self._types[name]

    def input(self, kind: TensorType, index_bound: int | None = None) -> str:
        """Add an input of random values; integers are below `index_bound`, which is 2 by default."""
        name = f"x{len(self._inputs)}"
        self._types[name] = kind
        low, high, distribution = 0.1, 1.0, "uniform"
        if kind.dtype not in FLOATS:
            low, high, distribution = 0, index_bound or 2, "integers"
        self._inputs.append(ArraySpec(name, kind.dtype, kind.shape, 0, distribution, low, high))
        return name

    def operator(
        self, op: str, inputs: Sequence[str], output: TensorType, attributes: Mapping[str, Any] | None = None
    ) -> str:
        """Add an operator with one result of the given type; return the result's name."""
        from onnx import helper

        name = self._new_tensor(output)
        self._nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(self._nodes)}", **(attributes or {})))
        return name

    def weight(self, kind: TensorType, fan_in: int) -> str:
        """Add a weight that the device generates, normally distributed with the scale of He et al. 2015."""
        name = f"w{len(self._weights)}"
        self._types[name] = kind
        scale = math.sqrt(2 / max(1, fan_in))
        self._weights.append(ArraySpec(name, kind.dtype, kind.shape, self._next_seed(), "normal", scale=scale))
        return name

    def constant(self, values: Sequence[int], dtype: str = "int64") -> str:
        """Add a small one-dimensional constant that is sent with the model."""
        import numpy
        from onnx import numpy_helper

        name = f"k{len(self._initializers)}"
        array = numpy.array(values, dtype)
        self._types[name] = TensorType(dtype, array.shape)
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def subgraph(self, network: Network, nodes: Sequence[Node], bound: Mapping[str, str]) -> dict[str, str]:
        """Copy nodes of a network; `bound` maps the tensors that they read from outside to tensors of this model.

        Returns `bound` and, for every tensor that the nodes write, its name in this model.
        """
        names = dict(bound)
        for node in nodes:
            inputs = [self._bind_input(network, names, name) if name else "" for name in node.inputs]
            for name in node.results:
                names[name] = self._new_tensor(network.types[name])
                self._tensor_origin[names[name]] = name
            self._node_origin[f"n{len(self._nodes)}"] = node.index
            self._nodes.append(_copy(node, inputs, [names.get(name, "") for name in node.outputs], len(self._nodes)))
        return names

    def renew_weights(self) -> None:
        """Copy constants anew from here on, so that a second copy of a layer has weights of its own."""
        self._constants.clear()

    def build(self, outputs: Sequence[str]) -> AssembledModel:
        """Return the checked model; raises HarnessError, which means a bug in harness, if it is not valid ONNX."""
        import onnx

        model = self._model(outputs, external=False)
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            raise HarnessError("A model assembled for the device is not valid ONNX", why=str(error)[:500]) from error
        return AssembledModel(
            content=self._model(outputs, external=True).SerializeToString(deterministic=True),
            weights=tuple(self._weights),
            inputs=tuple(self._inputs),
            outputs=tuple(self._types[name] for name in outputs),
            names=EmittedNames(self._tensor_origin, self._node_origin),
        )

    def _model(self, outputs: Sequence[str], *, external: bool) -> ModelProto:
        from onnx import helper

        values = [self._value_info(spec.name) for spec in self._inputs]
        initializers = list(self._initializers)
        if external:
            initializers.extend(_external(spec) for spec in self._weights)
        else:
            values.extend(self._value_info(spec.name) for spec in self._weights)
        graph = helper.make_graph(
            self._nodes, "probe", values, [self._value_info(name) for name in outputs], initializers
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=_IR_VERSION)

    def _value_info(self, name: str) -> Any:
        from onnx import helper

        kind = self._types[name]
        return helper.make_tensor_value_info(name, onnx_dtype(kind.dtype), kind.shape)

    def _new_tensor(self, kind: TensorType) -> str:
        name = f"t{len(self._types)}"
        self._types[name] = kind
        return name

    def _next_seed(self) -> int:
        return self._seed * 100_003 + len(self._weights)

    def _bind_input(self, network: Network, names: Mapping[str, str], name: str) -> str:
        if name in names:
            return names[name]
        source = (id(network), name)
        if source not in self._constants:
            self._constants[source] = self._copy_constant(network, name, network.constants[name])
        return self._constants[source]

    def _copy_constant(self, network: Network, name: str, constant: Constant) -> str:
        from onnx import numpy_helper

        readers = network.readers(name)
        is_weight = all(reader.op in WEIGHT_OPS for reader in readers)
        learnt = is_weight or (constant.type.dtype in FLOATS and not any(_needs_values(reader) for reader in readers))
        if constant.value is not None and (constant.type.elements <= MAX_TRAVELLING_ELEMENTS or not learnt):
            copied = f"k{len(self._initializers)}"
            self._types[copied] = constant.type
            self._initializers.append(numpy_helper.from_array(constant.value, copied))
            return copied
        if is_weight and constant.type.dtype in FLOATS:
            return self.weight(constant.type, _fan_in(constant.type, readers))
        copied = f"w{len(self._weights)}"
        self._types[copied] = constant.type
        # Positive values are valid for any constant: a scale, a variance, a divisor.
        spread = ("uniform", 0.5, 1.5) if constant.type.dtype in FLOATS else ("integers", 0, 2)
        self._weights.append(ArraySpec(copied, constant.type.dtype, constant.type.shape, self._next_seed(), *spread))
        return copied


def assemble_network(network: Network, seed: int = 0) -> AssembledModel:
    """Return a whole network as one model."""
    builder = ModelBuilder(network.opset, seed)
    bound = {name: builder.input(network.types[name], index_bound(network, name)) for name in network.inputs}
    names = builder.subgraph(network, network.nodes, bound)
    return builder.build([names[name] for name in network.outputs if name in names and name not in bound])


def index_bound(network: Network, tensor: str) -> int | None:
    """Return the bound below which a tensor's integers must lie; None if the tensor is not used as indices."""
    bounds: list[int | None] = []
    for node in network.readers(tensor):
        if node.op in _INDEX_READERS and node.inputs[1] == tensor:
            axis = next((item.i for item in node.proto.attribute if item.name == "axis"), 0)
            shape = network.types[node.inputs[0]].shape
            bounds.append(min(shape) if node.op == "GatherND" else shape[axis])
        elif node.op in _VIEWS:
            bounds.append(index_bound(network, node.outputs[0]))
    return min((bound for bound in bounds if bound is not None), default=None)


def _needs_values(reader: Node) -> bool:
    """Return whether a node needs real values, such as variances or scales, to give finite results."""
    return "Normalization" in reader.op or "Linear" in reader.op or reader.op in ("Resize", "Upsample", "Range")


def _fan_in(kind: TensorType, readers: Sequence[Node]) -> int:
    if len(kind.shape) < 2:
        return kind.elements
    convolution = any(reader.op.startswith("Conv") for reader in readers)
    return math.prod(kind.shape[1:]) if convolution else kind.shape[-2]


def _copy(node: Node, inputs: Sequence[str], outputs: Sequence[str], position: int) -> NodeProto:
    from onnx import NodeProto

    copy = NodeProto()
    copy.op_type = node.op
    copy.name = f"n{position}"
    copy.input.extend(inputs)
    copy.output.extend(outputs)
    copy.attribute.extend(node.proto.attribute)
    for attribute in copy.attribute:  # free text of the file stays on the host
        attribute.ClearField("doc_string")
        if attribute.HasField("t"):
            attribute.t.ClearField("name")
            attribute.t.ClearField("doc_string")
    return copy


def _external(spec: ArraySpec) -> TensorProto:
    from onnx import TensorProto

    tensor = TensorProto(name=spec.name, data_type=onnx_dtype(spec.dtype), data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(spec.shape)
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(spec.bytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor
