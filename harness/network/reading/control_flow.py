"""Nodes and the subgraphs of If, Loop and Scan: domains, what they read, and copies whose names clash with nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, OperatorSetIdProto

SEPARATOR = "/"
_AXES_AS_INPUT = 13
"""Operator set from which Unsqueeze reads its axes as an input."""


def domain_of(message: NodeProto | FunctionProto | OperatorSetIdProto) -> str:
    """Return the domain of an operator, a function or an operator set, with one name for that of ONNX."""
    return "" if message.domain == "ai.onnx" else str(message.domain)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def tensors_read(graph: GraphProto) -> Iterator[str]:
    """Yield every tensor that the nodes of a graph, or of its subgraphs, read; graph outputs count as read."""
    for node in graph.node:
        yield from node.input
        for inner in subgraphs(node):
            yield from tensors_read(inner)
    yield from (value.name for value in graph.output)


def captured(node: NodeProto) -> list[str]:
    """Return the tensors that the subgraphs of a node read from outside, each once."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        found.update((name, None) for name in tensors_read(graph) if name and name not in own)
    return list(found)


def renamed(graph: GraphProto, label: str, weights: str = "") -> GraphProto:
    """Return a copy of a branch or body in which every name that it defines starts with `label`.

    Those of its initializers start with `weights` if given: iterations of a loop share them.
    """
    own = {each.name for each in graph.input} | {name for node in graph.node for name in node.output if name}
    names = {name: f"{label}{SEPARATOR}{name}" for name in own}
    names.update((tensor.name, f"{weights or label}{SEPARATOR}{tensor.name}") for tensor in graph.initializer)
    return _renamed(graph, names, label)


def stacking(parts: Sequence[str], result: str, axes: str, opset: int) -> Iterator[NodeProto]:
    """Yield nodes that join equal tensors along a new first axis. `axes` is the name of a constant `[0]`."""
    from onnx import helper

    rows = [f"{result}{SEPARATOR}{at}" for at in range(len(parts))]
    for part, row in zip(parts, rows, strict=True):
        if opset < _AXES_AS_INPUT:
            yield helper.make_node("Unsqueeze", [part], [row], axes=[0])
        else:
            yield helper.make_node("Unsqueeze", [part, axes], [row])
    yield helper.make_node("Concat", rows, [result], axis=0)


def _renamed(graph: GraphProto, names: Mapping[str, str], label: str) -> GraphProto:
    copy = type(graph)()
    copy.CopyFrom(graph)
    for tensor in copy.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*copy.input, *copy.output):
        value.name = names.get(value.name, value.name)
    for node in copy.node:
        node.name = f"{label}{SEPARATOR}{node.name}" if node.name else ""
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for inner in subgraphs(node):
            shadowed = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
            shadowed.update(name for each in inner.node for name in each.output)
            visible = {name: new for name, new in names.items() if name not in shadowed}
            inner.CopyFrom(_renamed(inner, visible, label))
    return copy
