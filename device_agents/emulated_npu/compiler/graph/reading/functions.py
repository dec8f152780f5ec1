"""Operators that ONNX defines by functions: a node is replaced by the nodes of its function.

Functions come from the definitions of operators in the onnx package, and from the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TypeProto,
    checker,
    helper,
    inliner,
)

from device_agents.emulated_npu.compiler.graph.reading.parsed_model import ValueType
from device_agents.emulated_npu.compiler.graph.reading.type_inference import schema_of, type_proto
from device_agents.emulated_npu.emulator_errors import InvalidModel

_DOMAIN = "onnx.function"
"""The domain of ONNX's functions while they are inlined."""


class Functions:
    """The functions that a model may use: its own, and those of ONNX in the opsets that it imports."""

    def __init__(self, own: Sequence[FunctionProto], opsets: Mapping[str, int]) -> None:
        self._own = {(function.domain, function.name): function for function in own}
        self._opsets = opsets

    def defines(self, node: NodeProto) -> bool:
        """Return whether a function defines the operator of the node."""
        if (node.domain, node.op_type) in self._own:
            return True
        schema = schema_of(node, self._opsets)
        return schema is not None and any(_versions(schema, self._opsets[schema.domain]))

    def body(self, node: NodeProto, types: Mapping[str, ValueType], prefix: str) -> list[NodeProto]:
        """Return the nodes that replace a node; the names of their own tensors begin with `prefix`.

        Requires: the types of all inputs of the node. Some functions depend on them.
        Raises InvalidModel if the node does not fit its function.
        """
        graph = helper.make_graph(
            [node],
            "function",
            [helper.make_value_info(name, type_proto(types[name])) for name in dict.fromkeys(node.input) if name],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        alone = helper.make_model(graph, opset_imports=self._imports())
        try:
            self._add_function(alone, node, types)
            inlined = inliner.inline_local_functions(alone)
        except (RuntimeError, ValueError, checker.ValidationError) as error:
            what = f"Node {node.name[:80]!r} ({node.op_type[:80]}) does not fit the function that defines it"
            raise InvalidModel(what, str(error).strip()[:200]) from error
        outer = {name for name in (*node.input, *node.output) if name}
        for each in inlined.graph.node:
            _rename(each, outer, prefix)
        return list(inlined.graph.node)

    def _imports(self) -> list[OperatorSetIdProto]:
        return [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]

    def _add_function(self, alone: ModelProto, node: NodeProto, types: Mapping[str, ValueType]) -> None:
        """Add the function of the only node of a model to the model."""
        if (node.domain, node.op_type) in self._own:
            alone.functions.append(self._own[node.domain, node.op_type])  # its calls of others are expanded later
            return
        (called,) = alone.graph.node
        schema = schema_of(node, self._opsets)
        if schema is None:
            raise ValueError(f"operator {node.op_type[:80]} has no function")
        given = {attribute.name for attribute in called.attribute}
        defaults = [item.default_value for item in schema.attributes.values() if item.name not in given]
        called.attribute.extend(value for value in defaults if value.name)
        function = _of_schema(schema, called, types, self._opsets[schema.domain])
        # ONNX has one function for each range of opsets in which the operators of its body are the same.
        del function.opset_import[:]
        function.opset_import.extend(self._imports())
        function.domain = called.domain = _DOMAIN
        function.name = called.op_type
        alone.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
        alone.functions.append(function)


def _of_schema(schema: Any, node: NodeProto, types: Mapping[str, ValueType], opset: int) -> FunctionProto:
    """Return the function of an operator in an opset; it may depend on attributes and types of the node."""
    function = FunctionProto()
    fixed, dependent = _versions(schema, opset)
    if fixed:
        function.ParseFromString(schema.get_function_with_opset_version(max(fixed)))
        return function
    inputs = [type_proto(types[name]) if name else TypeProto() for name in node.input]
    content = [kind.SerializeToString() for kind in inputs]
    found = schema.get_context_dependent_function_with_opset_version(max(dependent), node.SerializeToString(), content)
    function.ParseFromString(found)
    return function


def _versions(schema: Any, opset: int) -> tuple[list[int], list[int]]:
    """Return the opsets, up to the given one, for which an operator has functions: fixed ones, and dependent ones.

    The stubs of the onnx package do not list these members of `OpSchema`.
    """
    several = (schema.function_opset_versions, schema.context_dependent_function_opset_versions)
    fixed, dependent = ([version for version in versions if version <= opset] for versions in several)
    return fixed, dependent


def _rename(node: NodeProto, outer: set[str], prefix: str) -> None:
    """Add the prefix to all tensors of a node, and of the graphs in it, except those of `outer`."""

    def renamed(name: str) -> str:
        return name if not name or name in outer else f"{prefix}/{name}"

    node.input[:] = [renamed(name) for name in node.input]
    node.output[:] = [renamed(name) for name in node.output]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            _rename_graph(graph, outer, prefix)


def _rename_graph(graph: GraphProto, outer: set[str], prefix: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if value.name not in outer:
            value.name = f"{prefix}/{value.name}"
    for node in graph.node:
        _rename(node, outer, prefix)
