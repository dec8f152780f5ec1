"""Reads an ONNX model: folds constants, replaces nodes by the functions that define them, and infers types."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from device_agents.emulated_npu.compiler.graph import constants
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant
from device_agents.emulated_npu.compiler.graph.reading import (
    attention,
    fused,
    packed_weights,
    quantised,
    sampled,
    scattered,
)
from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decompose, Decomposition
from device_agents.emulated_npu.compiler.graph.reading.functions import Functions
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import (
    RUNTIME,
    OnnxNode,
    ParsedModel,
    ValueType,
    shown,
    untyped,
)
from device_agents.emulated_npu.compiler.graph.reading.type_inference import (
    CONSTANT_TYPES,
    SMALL_ELEMENTS,
    add_node_types,
    model_types,
    opsets_of,
    schema_of,
)
from device_agents.emulated_npu.emulator_errors import InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import Array

OLDEST_OPSET = 7
_DEFAULT_DOMAIN = ("", "ai.onnx")
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"})
_OF_SHAPES = frozenset({"Shape", "Size"})
_STATISTICS = frozenset(
    {
        *("BatchNormalization", "LayerNormalization", "SimplifiedLayerNormalization", "MaxPool"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""Operators with results beside the first that exporters often name although nothing reads them."""
_DEEPEST = 16
"""The most functions and branches inside each other."""
_MOST_NODES = 20_000
"""The maximum number of nodes after decomposition: a small file can have functions that call each other very often."""
IsWhole = Callable[[NodeProto], bool]
"""Returns whether a node is compiled as it is; other nodes are replaced by the functions that define them."""
_DECOMPOSITIONS: Mapping[tuple[str, str], Decompose] = {
    **quantised.DECOMPOSITIONS,
    ("", "GridSample"): sampled.grid_sample,
    **{
        (RUNTIME, operator): decompose
        for several in (fused.DECOMPOSITIONS, attention.DECOMPOSITIONS, packed_weights.DECOMPOSITIONS)
        for operator, decompose in several.items()
    },
}


def parse_model(model: bytes | ModelProto, is_whole: IsWhole) -> ParsedModel:
    """Read a model.

    Raises UnsupportedOperator for a node that is neither constant nor compiled nor defined by a function, before
    anything else; InvalidModel if the model is not valid ONNX or has a shape that is unknown before it runs.
    """
    try:
        proto = onnx.load_model_from_string(model) if isinstance(model, bytes) else model
    except DecodeError as error:
        raise InvalidModel("The model is not ONNX", str(error)[:200]) from error
    opsets = opsets_of(proto.opset_import)
    opset = opsets.get("", 0)
    if opset < OLDEST_OPSET:
        why = f"The oldest supported opset is {OLDEST_OPSET}"
        raise InvalidModel(f"The model has ONNX opset {opset}", why, "Convert it")
    names = _unique_names(proto.graph)
    functions = Functions(proto.functions, opsets)
    _check_operators(proto.graph, names, lambda node: _is_known(node, is_whole, functions))
    return _ModelReader(proto, opsets, is_whole, functions).source(names)


def _read_names(graph: GraphProto) -> set[str]:
    """Return the names that nodes of a graph and of its branches read, and those of its results."""
    found = {value.name for value in graph.output}
    for node in graph.node:
        found.update(node.input)
        for item in node.attribute:
            if item.HasField("g"):
                found |= _read_names(item.g)
    return found


def _without_unread(node: NodeProto, read: Collection[str]) -> NodeProto:
    """Return a node without the results that nothing reads, other than the first."""
    found = NodeProto()
    found.CopyFrom(node)
    found.output[1:] = [name if name in read else "" for name in node.output[1:]]
    return found


def _is_known(node: NodeProto, is_whole: IsWhole, functions: Functions) -> bool:
    node = quantised.standard(node)
    return is_whole(node) or _is_decomposed(node) or functions.defines(node)


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


def _check_operators(graph: GraphProto, names: Sequence[str], is_known: IsWhole) -> None:
    """Raise UnsupportedOperator for a node that is neither constant nor known."""
    constant = {tensor.name for tensor in graph.initializer}
    for node, name in zip(graph.node, names, strict=True):
        if _is_constant(node, constant):
            constant.update(node.output)
        elif not is_known(node) and not _is_resolved(node, constant):
            raise _unknown(OnnxNode(node.op_type, name, (), (), (), {}), node.domain)


def _unknown(node: OnnxNode, domain: str) -> UnsupportedOperator:
    place = f" of domain {domain[:40]}" if domain else ""
    why = f"The compiler does not support operator {node.op[:80]}{place}"
    step = "Export the network with operators of ONNX; docs/emulator.md lists what is supported"
    if domain.startswith(RUNTIME):
        step = f"If ONNX Runtime optimised this file, use the original file; otherwise {step[0].lower()}{step[1:]}"
    return UnsupportedOperator(f"Node {shown(node)} is not supported", why, step)


def _is_constant(node: NodeProto, constant: Mapping[str, Any] | set[str]) -> bool:
    if node.op_type in _RANDOM or any(item.HasField("g") for item in node.attribute):
        return False
    return node.op_type in _OF_SHAPES or all(not name or name in constant for name in node.input)


def _is_resolved(node: NodeProto, constant: Mapping[str, Any] | set[str]) -> bool:
    """Return whether the node is an If whose condition is constant."""
    return node.op_type == "If" and node.domain in _DEFAULT_DOMAIN and all(name in constant for name in node.input)


class _ModelReader:
    """Visits the nodes once: describes the constants and keeps the other nodes."""

    def __init__(self, proto: ModelProto, opsets: Mapping[str, int], is_whole: IsWhole, functions: Functions) -> None:
        self._graph, self._opsets, self._is_whole, self._functions = proto.graph, opsets, is_whole, functions
        self._types = model_types(proto)
        self._constants: dict[str, LazyConstant] = {}
        self._nodes: list[OnnxNode] = []
        self._free: list[str] = []
        self._origins: dict[str, str] = {}
        self._values: dict[str, Array | None] = {}
        self._of_large: set[str] = set()

    def source(self, names: Sequence[str]) -> ParsedModel:
        """Return the model; `names` are those of its nodes."""
        self._add_initializers(self._graph)
        read = _read_names(self._graph)
        for node, name in zip(self._graph.node, names, strict=True):
            self._visit(_without_unread(node, read) if node.op_type in _STATISTICS else node, name)
        outputs = tuple(dict.fromkeys(value.name for value in self._graph.output))
        inputs = tuple(value.name for value in self._graph.input if value.name not in self._constants)
        for name in (*inputs, *outputs):
            if name not in self._types.known:
                user = next((node for node in self._nodes if name in (*node.inputs, *node.outputs)), None)
                raise untyped(name, self._types.others.get(name, ""), user)
        return ParsedModel(
            nodes=self._used(outputs),
            types=self._types.known,
            other_types=self._types.others,
            constants=self._constants,
            inputs=inputs,
            outputs=outputs,
            opset=self._opsets[""],
            free=tuple(self._free),
            node_count=len(self._graph.node),
            origins=self._origins,
        )

    def _add_initializers(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.data_type in CONSTANT_TYPES:
                self._set(constants.initializer(tensor, CONSTANT_TYPES[tensor.data_type]))

    def _visit(self, node: NodeProto, name: str, part_of: str = "", depth: int = 0) -> None:
        """Fold a node, keep it, or visit the nodes that replace it."""
        node = quantised.standard(node)
        kept = OnnxNode(node.op_type, name, (name,), tuple(node.input), tuple(node.output), {}, part_of)
        decompose = _decomposition_of(node, self._constants, self._types.known)
        if decompose is None and _is_constant(node, self._constants):
            self._add_types(node)
            self._fold(node, kept)
            self._free.append(name)
        elif _is_resolved(node, self._constants):
            self._visit_all(self._branch(node, kept), kept, depth)
        elif decompose is not None:
            self._check_typed(kept)
            self._visit_all(self._decomposed(decompose, node, name), kept, depth)
        elif self._is_whole(node):
            self._add_types(node)
            attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            self._nodes.append(OnnxNode(kept.op, name, kept.names, kept.inputs, kept.outputs, attributes, part_of))
        elif self._functions.defines(node):
            self._check_typed(kept)
            self._visit_all(self._functions.body(node, self._types.known, name), kept, depth)
        else:
            raise _unknown(kept, node.domain)

    def _visit_all(self, nodes: Sequence[NodeProto], whole: OnnxNode, depth: int) -> None:
        """Visit the nodes that replace a node; `origins` has the node of the model that they belong to."""
        if depth >= _DEEPEST or len(self._origins) + len(nodes) > _MOST_NODES:
            why = f"Its functions are more than {_DEEPEST} deep, or make more than {_MOST_NODES:,} nodes"
            raise InvalidModel(f"Node {shown(whole)} cannot be compiled", why, "Export the network without functions")
        if not nodes:
            self._free.append(whole.name)
        origin = self._origins.get(whole.name, whole.name)
        for place, node in enumerate(nodes):
            name = f"{whole.name}/{node.op_type}_{place}"
            self._origins[name] = origin
            self._visit(node, name, whole.part_of or whole.op, depth + 1)

    def _decomposed(self, decompose: Decompose, node: NodeProto, name: str) -> list[NodeProto]:
        """Return the nodes that replace a node; names of their own tensors begin with `name`.

        Raises InvalidModel if the node lacks an operand or has a wrong attribute, UnsupportedOperator if no nodes of
        ONNX have its results.
        """
        found = Decomposition(node, name, self._types.known, self._opsets[""], self._value)
        found.check_attributes()
        decompose(found)
        return found.nodes

    def _check_typed(self, node: OnnxNode) -> None:
        for name in node.inputs:
            if name and name not in self._types.known:
                raise untyped(name, self._types.others.get(name, ""), node)

    def _branch(self, node: NodeProto, whole: OnnxNode) -> list[NodeProto]:
        """Return the nodes of the branch that an If with a known condition takes."""
        condition = self._value(node.input[0])
        if condition is None:
            raise _unknown(whole, node.domain)
        wanted = "then_branch" if condition.reshape(-1)[:1].any() else "else_branch"
        graph = next((item.g for item in node.attribute if item.name == wanted), GraphProto())
        self._add_initializers(graph)
        passed = zip((value.name for value in graph.output), node.output, strict=False)
        return [*graph.node, *(helper.make_node("Identity", [inner], [outer]) for inner, outer in passed if outer)]

    def _add_types(self, node: NodeProto) -> None:
        """Infer the types of outputs that inference of the whole model has left open."""
        if all(not name or name in self._types.known for name in node.output):
            return
        values = {name: self._value(name) for name in node.input if name}
        present = {name: value for name, value in values.items() if value is not None}
        add_node_types(node, self._opsets, self._types, present)

    def _value(self, tensor: str) -> Array | None:
        """Return the values of a small constant that follows from small ones, None for all other tensors."""
        constant = self._constants.get(tensor)
        if constant is None or tensor in self._of_large:
            return None
        if tensor not in self._values:
            value = self._values[tensor] = constants.value_of(constant)
            if value is not None:
                kept = constants.known(tensor, value, constant.dtype)
                self._constants[tensor] = replace(kept, quantised=constant.quantised)
        return self._values[tensor]

    def _set(self, constant: LazyConstant) -> None:
        if math.prod(constant.shape) > SMALL_ELEMENTS:
            self._of_large.add(constant.name)
        self._constants[constant.name] = constant
        self._types.known[constant.name] = ValueType(constant.shape, constant.dtype)

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

    def _fold(self, node: NodeProto, kept: OnnxNode) -> None:
        """Describe the constants that the node computes; those inside functions are computed immediately."""
        parents = [self._constants[name] for name in node.input if name and node.op_type not in _OF_SHAPES]
        for index, name in enumerate(node.output):
            if not name:
                continue
            if name not in self._types.known:
                raise untyped(name, self._types.others.get(name, ""), kept)
            kind = self._types.known[name]
            array = self._shape_value(node, kept) if node.op_type in _OF_SHAPES else _constant_value(node)
            if array is not None:
                self._set(constants.known(name, np.asarray(array), kind.dtype))
            else:
                if not self._of_large.isdisjoint(parent.name for parent in parents):
                    self._of_large.add(name)
                converted = quantised.evaluated(node, kind.dtype)
                opset = self._opsets[""] if schema_of(node, self._opsets) else onnx.defs.onnx_opset_version()
                function = converted or constants.evaluated_node(node, opset, index)
                found = constants.derived(name, kind.shape, kind.dtype, parents, function)
                self._set(quantised.with_origin(found, node, parents))
            if kept.part_of:
                self._value(name)

    def _shape_value(self, node: NodeProto, kept: OnnxNode) -> Any:
        self._check_typed(kept)
        shape = np.array(self._types.known[node.input[0]].shape, np.int64)
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


def _is_decomposed(node: NodeProto) -> bool:
    """Return whether a node can be decomposed; one on maps with channels last cannot."""
    by_rows = any(item.name == "channels_last" and item.i for item in node.attribute)
    return (node.domain, node.op_type) in _DECOMPOSITIONS and not by_rows


def _decomposition_of(node: NodeProto, constants: Collection[str], types: Mapping[str, ValueType]) -> Decompose | None:
    """Return the function that adds the decomposition of a node, or None for a node that needs none."""
    if quantised.has_computed_zero(node, constants, types):
        return quantised.moved_product
    if not node.domain and node.op_type in scattered.DECOMPOSITIONS:
        return scattered.DECOMPOSITIONS[node.op_type] if scattered.is_computed(node, constants) else None
    return _DECOMPOSITIONS[node.domain, node.op_type] if _is_decomposed(node) else None
