"""Assemble ONNX models for a device: layers, whole networks and auxiliary operators, without their weights.

The builder makes all names in a model (`x0`, `t1`, `k2`, `w3`), so that no name of a file reaches a device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.array_types import Array
from harness.errors import HarnessError
from harness.network.effort import products_of
from harness.network.input_integers import MASK_INTEGERS, integer_range
from harness.network.learnt_weights import INTEGER_RANGE, checkable, is_weight, needs_values
from harness.network.network import BYTES, FLOATS, Network, Node, TensorType, bytes_of
from harness.network.node_inference import onnx_dtype, opset_imports, value_info

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

MAX_TRAVELLING_ELEMENTS = 1024
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
        return bytes_of(self.dtype, math.prod(self.shape))

    def wire(self) -> dict[str, Any]:
        """Return the spec as it is sent."""
        return {**vars(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class EmittedNames:
    """The tensors and constants, and the indices of the nodes, of a network by their names in an assembled model."""

    tensors: Mapping[str, str]
    nodes: Mapping[str, int]
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AssembledModel:
    """A checked ONNX model without its weights, and the arrays that a device generates to run it.

    `products` are the multiply-adds of each node.
    """

    content: bytes
    weights: tuple[ArraySpec, ...]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[TensorType, ...]
    names: EmittedNames
    products: tuple[int, ...]

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

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._types: dict[str, TensorType] = {}
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._weights: list[ArraySpec] = []
        self._inputs: list[ArraySpec] = []
        self._constants: dict[tuple[int, str], str] = {}
        self._tensor_origin: dict[str, str] = {}
        self._node_origin: dict[str, int] = {}
        self._constant_origin: dict[str, str] = {}
        self._domains: dict[str, int] = {}
        self._replaceable: list[str] = []

    def type_of(self, name: str) -> TensorType:
        """Return the type of a tensor of this model."""
        return self._types[name]

    def input(self, kind: TensorType, integers: tuple[int, int] | None = None) -> str:
        """Add an input of random values; `integers` are the least, and the first above all, by default of a mask."""
        name = f"x{len(self._inputs)}"
        self._types[name] = kind
        # Quantised numbers have the whole range: a MaxPool branches on each.
        limits = integers or (INTEGER_RANGE[kind.dtype] if kind.dtype in BYTES else MASK_INTEGERS)
        spread = ("uniform", 0.1, 1.0) if kind.dtype in FLOATS else ("integers", *limits)
        self._inputs.append(ArraySpec(name, kind.dtype, kind.shape, 0, *spread))
        return name

    def operator(self, op: str, inputs: Sequence[str], output: TensorType, **attributes: Any) -> str:
        """Add an operator with one result of the given type; return the result's name."""
        from onnx import helper

        name = self._new_tensor(output)
        self._nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(self._nodes)}", **attributes))
        return name

    def convolution(self, tensor: str, channels: int, kernel: Sequence[int], **attributes: Any) -> str:
        """Add a convolution that keeps the spatial sizes, with its own weight; return its result."""
        read = self._types[tensor]
        shape = (channels, read.shape[1], *kernel)
        weight = self.weight(TensorType(read.dtype, shape), math.prod(shape[1:]))
        return self.operator("Conv", [tensor, weight], read.resized(1, channels), kernel_shape=kernel, **attributes)

    def weight(self, kind: TensorType, fan_in: int) -> str:
        """Add a weight that the device generates, normally distributed with the scale of He et al. 2015."""
        return self._generated(kind, "normal", scale=math.sqrt(2 / max(1, fan_in)))

    def integers(self, kind: TensorType, low: int, high: int) -> str:
        """Add a constant of uniformly distributed integers from `low` to below `high` that the device generates."""
        return self._generated(kind, "integers", low=low, high=high)

    def _generated(self, kind: TensorType, distribution: str, **parameters: float) -> str:
        seed = len(self._weights)
        name = f"w{seed}"
        self._types[name] = kind
        self._weights.append(ArraySpec(name, kind.dtype, kind.shape, seed, distribution, **parameters))
        return name

    def constant(self, values: Sequence[int]) -> str:
        """Add a small one-dimensional constant of type int64 that is sent with the model."""
        return self._sent(np.array(values, "int64"))

    def scalar(self, value: float, dtype: str) -> str:
        """Add a constant of rank 0 that is sent with the model."""
        return self._sent(np.array(value, dtype))

    def _sent(self, value: Array) -> str:
        from onnx import numpy_helper

        name = f"k{len(self._initializers)}"
        self._types[name] = TensorType(str(value.dtype), value.shape)
        self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def subgraph(self, network: Network, nodes: Sequence[Node], bound: Mapping[str, str]) -> dict[str, str]:
        """Copy nodes of a network; `bound` maps the tensors that they read from outside to tensors of this model.

        Returns `bound` and, for every tensor that the nodes write, its name in this model.
        """
        names = dict(bound)
        self._domains.update(network.domains)
        for node in nodes:
            inputs = [self._bind_input(network, names, name) if name else "" for name in node.inputs]
            for name in node.results:
                names[name] = self._new_tensor(network.types[name])
                self._tensor_origin[names[name]] = name
            self._node_origin[f"n{len(self._nodes)}"] = node.index
            outputs = [names.get(name, "") for name in node.outputs]
            self._nodes.append(copy_node(node, f"n{len(self._nodes)}", inputs, outputs))
        return names

    def renew_weights(self) -> None:
        """Copy constants again from here on, so that a second copy of a layer has its own weights."""
        self._constants.clear()

    def build(self, outputs: Sequence[str]) -> AssembledModel:
        """Return the checked model; raises HarnessError, which means a bug in harness, if it is not valid ONNX."""
        import onnx

        model = self._model(outputs, external=False)
        try:
            with checkable(model, model.graph.node):
                _check(model)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            raise HarnessError("A model assembled for the device is not valid ONNX", why=str(error)[:500]) from error
        return AssembledModel(
            content=self._model(outputs, external=True).SerializeToString(deterministic=True),
            weights=tuple(self._weights),
            inputs=tuple(self._inputs),
            outputs=tuple(self._types[name] for name in outputs),
            names=EmittedNames(self._tensor_origin, self._node_origin, self._constant_origin),
            products=tuple(map(self._products, self._nodes)),
        )

    def _products(self, node: NodeProto) -> int:
        written = next(name for name in node.output if name)
        read = [self._types[name] for name in node.input if name]
        return products_of(node.op_type, node.attribute, read, self._types[written])

    def _model(self, outputs: Sequence[str], *, external: bool) -> ModelProto:
        from onnx import helper

        initializers = [*self._initializers, *(map(_external, self._weights) if external else ())]
        listed = [spec.name for spec in (self._inputs if external else (*self._inputs, *self._weights))]
        inputs = self._values(dict.fromkeys((*listed, *self._replaceable)))
        graph = helper.make_graph(self._nodes, "probe", inputs, self._values(outputs), initializers)
        imports = opset_imports({"": self.opset, **self._domains})
        return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)

    def _values(self, names: Iterable[str]) -> list[ValueInfoProto]:
        return [value_info(name, self._types[name]) for name in names]

    def _new_tensor(self, kind: TensorType) -> str:
        name = f"t{len(self._types)}"
        self._types[name] = kind
        return name

    def _bind_input(self, network: Network, names: Mapping[str, str], name: str) -> str:
        if name in names:
            return names[name]
        source = (id(network), name)
        if source not in self._constants:
            self._constants[source] = self._copy_constant(network, name)
            self._replaceable += [self._constants[source]] if network.constants[name].replaceable else []
            self._constant_origin[self._constants[source]] = name
        return self._constants[source]

    def _copy_constant(self, network: Network, name: str) -> str:
        constant, readers = network.constants[name], network.readers(name)
        kind, is_float = constant.type, constant.type.dtype in FLOATS
        weight = is_weight(readers, name, kind)
        learnt = weight or (is_float and not any(needs_values(reader) for reader in readers))
        if constant.value is not None and (kind.elements <= MAX_TRAVELLING_ELEMENTS or not learnt):
            return self._sent(constant.value)
        if weight and is_float:
            return self.weight(kind, _fan_in(kind, readers))
        if weight and kind.dtype in INTEGER_RANGE:
            return self.integers(kind, *INTEGER_RANGE[kind.dtype])
        # Positive values are valid for any constant: a scale, a variance, a divisor.
        if is_float:
            return self._generated(kind, "uniform", low=0.5, high=1.5)
        return self._generated(kind, "integers", low=0, high=2)


def assemble_network(network: Network) -> AssembledModel:
    """Return a whole network as one model, without nodes that a rewrite left out."""
    builder = ModelBuilder(network.opset)
    bound = {name: builder.input(network.types[name], integer_range(network, name)) for name in network.inputs}
    nodes = [node for node in network.nodes if any(network.is_read_outside(name, ()) for name in node.results)]
    names = builder.subgraph(network, nodes, bound)
    return builder.build([names[name] for name in network.outputs if name in names and name not in bound])


def _fan_in(kind: TensorType, readers: Sequence[Node]) -> int:
    if len(kind.shape) < 2:
        return kind.elements
    convolution = any(reader.op.startswith("Conv") for reader in readers)
    return math.prod(kind.shape[1:]) if convolution else kind.shape[-2]


def copy_node(node: Node, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
    """Return a node of the file with other names and without free text."""
    from onnx import NodeProto

    copy = NodeProto(op_type=node.op, domain=node.domain, name=name, input=inputs, output=outputs)
    copy.attribute.extend(node.proto.attribute)
    for attribute in copy.attribute:  # free text of the file stays on the host
        attribute.ClearField("doc_string")
        if attribute.HasField("t"):
            attribute.t.ClearField("name")
            attribute.t.ClearField("doc_string")
    return copy


def _check(model: ModelProto) -> None:
    """Check a model and its types; types of operators that ONNX defines by functions may be beyond its inference."""
    import onnx
    from onnx import defs

    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.shape_inference.InferenceError:
        version = model.opset_import[0].version
        plain = [node.op_type for node in model.graph.node if not node.domain]
        known = (defs.get_schema(op, version, "") for op in plain if defs.has(op, version, ""))
        if not any(schema.has_function for schema in known):  # type: ignore[attr-defined]
            raise
        onnx.checker.check_model(model)


def _external(spec: ArraySpec) -> TensorProto:
    from onnx import TensorProto

    tensor = TensorProto(name=spec.name, data_type=onnx_dtype(spec.dtype), data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(spec.shape)
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(spec.bytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor
