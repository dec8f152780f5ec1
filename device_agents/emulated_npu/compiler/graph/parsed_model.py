"""An ONNX model as the compiler reads it: the nodes that compute, the types of all tensors, and constants."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from device_agents.emulated_npu.compiler.graph import constants
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant
from device_agents.emulated_npu.emulator_errors import InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import DataType

OLDEST_OPSET = 7
_SMALL_ELEMENTS = 1024  # what shapes and axes may depend on; larger initializers are types alone to shape inference
_DATA_TYPES = {int(helper.np_dtype_to_tensor_dtype(dtype)): kind for kind, dtype in NUMPY_TYPES.items()}
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"})
_NOT_INFERRED = frozenset({"GroupNormalization"})  # results have the type of the first input; onnx does not say so
_OF_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class ValueType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: DataType


@dataclass(frozen=True)
class OnnxNode:
    """One ONNX node, or several recognised as one operator; `names` lists all nodes that it stands for.

    An absent optional input or output has the name "".
    """

    op: str
    name: str
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the attribute's value, or the default if the node does not have it."""
        return self.attributes.get(name, default)

    def input(self, index: int) -> str:
        """Return the name of an input, "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(frozen=True)
class ParsedModel:
    """A model: `nodes` in topological order, without constant and unused nodes (`free` lists their names).

    `other_types` has the names of element types that the compiler does not support, by tensor.
    """

    nodes: tuple[OnnxNode, ...]
    types: Mapping[str, ValueType]
    other_types: Mapping[str, str]
    constants: Mapping[str, LazyConstant]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    free: tuple[str, ...]
    node_count: int

    @functools.cached_property
    def readers(self) -> Mapping[str, list[OnnxNode]]:
        """The nodes that read each tensor; a node that reads it twice is listed twice."""
        found: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    @functools.cached_property
    def producers(self) -> Mapping[str, OnnxNode]:
        """The node that writes each tensor."""
        return {name: node for node in self.nodes for name in node.outputs if name}


def unsupported(node: OnnxNode, why: str) -> UnsupportedOperator:
    """Return the error for a node that cannot be compiled."""
    step = "Export the network without it, or with fixed shapes and constant parameters"
    return UnsupportedOperator(f"Node {node.name[:80]!r} ({node.op}) cannot be compiled", why, step)


def untyped(tensor: str, element_type: str, node: OnnxNode | None) -> InvalidModel:
    """Return the error for a tensor without a type; `element_type` names its unsupported type, if it has one."""
    place = f" at node {node.name[:80]!r} ({node.op})" if node is not None else ""
    what = f"Tensor {tensor[:80]!r}{place} cannot be compiled"
    if element_type:
        known = ", ".join(sorted(kind.name.lower() for kind in DataType))
        return InvalidModel(what, f"Its element type {element_type} is not supported", f"Export with one of {known}")
    return InvalidModel(what, "Its shape is not known before the network runs", "Export with fixed shapes")


def parse_model(model: bytes | ModelProto, known_operators: frozenset[str]) -> ParsedModel:
    """Read a model.

    Raises UnsupportedOperator for a node that is neither constant nor one of `known_operators`, before anything else;
    InvalidModel if the model is not valid ONNX or has a shape that is unknown before it runs.
    """
    try:
        proto = onnx.load_model_from_string(model) if isinstance(model, bytes) else model
    except DecodeError as error:
        raise InvalidModel("The model is not ONNX", str(error)[:200]) from error
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST_OPSET:
        why = f"The oldest supported opset is {OLDEST_OPSET}"
        raise InvalidModel(f"The model has ONNX opset {opset}", why, "Convert it")
    names = _unique_names(proto.graph)
    _check_operators(proto.graph, names, known_operators)
    types, others = _types(proto)
    return _ModelReader(proto.graph, opset, types, others).source(names)


def _unique_names(graph: GraphProto) -> list[str]:
    names: list[str] = []
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}#{index}"
        taken.add(name)
        names.append(name)
    return names


def _check_operators(graph: GraphProto, names: Sequence[str], known: frozenset[str]) -> None:
    """Raise UnsupportedOperator for a node that is neither constant nor known."""
    constant = {tensor.name for tensor in graph.initializer}
    for node, name in zip(graph.node, names, strict=True):
        if _is_constant(node, constant):
            constant.update(node.output)
        elif node.op_type not in known or node.domain not in ("", "ai.onnx"):
            domain = f" of domain {node.domain[:40]}" if node.domain else ""
            why = f"The compiler does not support operator {node.op_type[:80]}{domain}"
            step = "Export the network with supported operators"
            raise UnsupportedOperator(f"Node {name[:80]!r} ({node.op_type[:80]}) is not supported", why, step)


def _is_constant(node: NodeProto, constant: Set[str]) -> bool:
    if node.op_type in _RANDOM or any(item.HasField("g") for item in node.attribute):
        return False
    return node.op_type in _OF_SHAPES or all(not name or name in constant for name in node.input)


def _types(proto: ModelProto) -> tuple[dict[str, ValueType], dict[str, str]]:
    """Return the types of all tensors with a fixed shape, and the names of unsupported element types by tensor."""
    try:
        inferred = shape_inference.infer_shapes(_without_weights(proto), strict_mode=True, data_prop=True).graph
    except (shape_inference.InferenceError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0][:300]
        raise InvalidModel("The model is not valid ONNX", why) from error
    types: dict[str, ValueType] = {}
    others = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        static = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        if static and tensor.elem_type in _DATA_TYPES:
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            types[value.name] = ValueType(shape, _DATA_TYPES[tensor.elem_type])
        others[value.name] = tensor.elem_type
    strange = {name: kind for name, kind in others.items() if kind and kind not in _DATA_TYPES}
    return types, {name: TensorProto.DataType.Name(kind).lower() for name, kind in strange.items()}


def _without_weights(proto: ModelProto) -> ModelProto:
    """Return the model without the data of large initializers, because shape inference copies the whole model."""
    light = ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = proto.graph.name or "network"
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(proto.graph, field))
    for node in graph.node:
        if node.op_type in _NOT_INFERRED:
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))
    for tensor in proto.graph.initializer:
        if np.prod(tensor.dims, dtype=np.int64) <= _SMALL_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            stub = TensorProto(name=tensor.name, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL)
            stub.dims.extend(tensor.dims)
            stub.external_data.add(key="location", value="weights")
            graph.initializer.append(stub)
    return light


class _ModelReader:
    """Visits the nodes once: describes the constants and keeps the other nodes."""

    def __init__(
        self, graph: GraphProto, opset: int, types: Mapping[str, ValueType], others: Mapping[str, str]
    ) -> None:
        self._graph, self._opset, self._types, self._others = graph, opset, dict(types), others
        self._constants: dict[str, LazyConstant] = {}
        self._nodes: list[OnnxNode] = []
        self._free: list[str] = []

    def source(self, names: Sequence[str]) -> ParsedModel:
        """Return the model; `names` are those of its nodes."""
        for tensor in self._graph.initializer:
            if tensor.data_type in _DATA_TYPES:
                self._set(constants.initializer(tensor, _DATA_TYPES[tensor.data_type]))
        for node, name in zip(self._graph.node, names, strict=True):
            if _is_constant(node, self._constants.keys()):
                self._fold(node)
                self._free.append(name)
                continue
            attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            self._nodes.append(OnnxNode(node.op_type, name, (name,), tuple(node.input), tuple(node.output), attributes))
        outputs = tuple(dict.fromkeys(value.name for value in self._graph.output))
        inputs = tuple(value.name for value in self._graph.input if value.name not in self._constants)
        for name in (*inputs, *outputs):
            if name not in self._types:
                user = next((node for node in self._nodes if name in (*node.inputs, *node.outputs)), None)
                raise untyped(name, self._others.get(name, ""), user)
        return ParsedModel(
            nodes=self._used(outputs),
            types=self._types,
            other_types=self._others,
            constants=self._constants,
            inputs=inputs,
            outputs=outputs,
            opset=self._opset,
            free=tuple(self._free),
            node_count=len(self._graph.node),
        )

    def _set(self, constant: LazyConstant) -> None:
        self._constants[constant.name] = constant
        self._types[constant.name] = ValueType(constant.shape, constant.dtype)

    def _used(self, outputs: Sequence[str]) -> tuple[OnnxNode, ...]:
        needed = set(outputs)
        kept: list[OnnxNode] = []
        for node in reversed(self._nodes):
            if needed.isdisjoint(node.outputs):
                self._free.append(node.name)
            else:
                needed.update(node.inputs)
                kept.append(node)
        return tuple(reversed(kept))

    def _fold(self, node: NodeProto) -> None:
        """Describe the constants that the node computes."""
        parents = [self._constants[name] for name in node.input if name and node.op_type not in _OF_SHAPES]
        for index, name in enumerate(node.output):
            if not name:
                continue
            if name not in self._types:
                kept = OnnxNode(node.op_type, node.name or node.op_type, (), (), (), {})
                raise untyped(name, self._others.get(name, ""), kept)
            kind = self._types[name]
            array = self._shape_value(node) if node.op_type in _OF_SHAPES else _constant_value(node)
            if array is not None:
                self._set(constants.known(name, np.asarray(array), kind.dtype))
            else:
                function = constants.evaluated_node(node, self._opset, index)
                self._set(constants.derived(name, kind.shape, kind.dtype, parents, function))

    def _shape_value(self, node: NodeProto) -> Any:
        if node.input[0] not in self._types:
            why = "It depends on the values of the network's inputs"
            raise InvalidModel(f"The shape of {node.input[0][:80]!r} is unknown", why, "Export with fixed shapes")
        shape = np.array(self._types[node.input[0]].shape, np.int64)
        span = {item.name: item.i for item in node.attribute}
        return shape.prod() if node.op_type == "Size" else shape[span.get("start", 0) : span.get("end")]


def _constant_value(node: NodeProto) -> Any:
    """Return the array of a Constant node with a dense value; None for other nodes."""
    if node.op_type != "Constant":
        return None
    for item in node.attribute:
        if item.name == "value":
            return numpy_helper.to_array(item.t)
        if item.name in ("value_float", "value_floats"):
            return np.asarray(helper.get_attribute_value(item), np.float32)
        if item.name in ("value_int", "value_ints"):
            return np.asarray(helper.get_attribute_value(item), np.int64)
    return None
