"""Nodes that ONNX Runtime fused, from its optimised graph of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.network.assemble import EmittedNames
from harness.network.network import Network, Node
from harness.network.runtime_graph.reported import RuntimeGraph, unreadable

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_NCHWC = "com.microsoft.nchwc"
_NCHWC_SUFFIXES = ("_bn_nchwc", "_mul_nchwc", "_nchwc")
_BLOCKED_PREFIX = "reorder"
_RESIDUAL_INPUT = 3


def read_onnxruntime(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups and blocked tensors; raises ProtocolError if the content is not an optimised ONNX graph."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load_model_from_string(content).graph
        surviving, blocked = _surviving(network, names, graph)
    except (DecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise unreadable() from error
    return RuntimeGraph(_groups(network, surviving), frozenset(blocked))


def _surviving(network: Network, names: EmittedNames, graph: GraphProto) -> tuple[set[str], set[str]]:
    """Return the network's tensors that the runtime's graph still has (each ends a group), and the blocked ones."""
    surviving, blocked = set(network.outputs), set[str]()
    nodes = {node.index: node for node in network.nodes}
    for node in graph.node:
        known = [names.tensors[output] for output in node.output if output in names.tensors]
        surviving.update(known)
        if node.domain == _NCHWC:
            blocked.update(_end_of_blocked(network, names, node))
        elif not known and (index := names.nodes.get(node.name.partition("/")[0])) is not None:
            ends = _end_of_renamed(network, nodes[index], node)
            surviving.update(ends)
            if any(output.startswith(_BLOCKED_PREFIX) for output in node.output):
                blocked.update(ends)
    return surviving | blocked, blocked


def _end_of_blocked(network: Network, names: EmittedNames, node: NodeProto) -> list[str]:
    """Return the result of an operator in the blocked layout, an empty list if its name is unknown.

    ONNX Runtime's layout pass renames results. It names the operator after the result that it replaces, and then
    fuses a following residual add and activation into the operator.
    """
    suffix = next((suffix for suffix in _NCHWC_SUFFIXES if node.name.endswith(suffix)), None)
    result = names.tensors.get(node.name.removesuffix(suffix)) if suffix else None
    if result is None:
        return []
    activation = next((item.s.decode() for item in node.attribute if item.name == "activation"), "")
    if len(node.input) > _RESIDUAL_INPUT and node.input[_RESIDUAL_INPUT]:
        result = _next(network, result, {"Add", "Sum"}) or result
    if activation and network.producers[result].op != activation:
        result = _next(network, result, {activation}) or result
    return [result]


def _end_of_renamed(network: Network, first: Node, node: NodeProto) -> list[str]:
    """Return the network's results of an operator that kept its node's name but whose results were renamed."""
    if node.op_type == first.op:
        return list(first.results)
    if node.op_type == "QuickGelu":  # x * Sigmoid(x), named after the product
        product = first.outputs[0] if first.op == "Mul" else _next(network, first.outputs[0], {"Mul"})
        return [product] if product else []
    return []


def _next(network: Network, tensor: str, ops: set[str]) -> str | None:
    reader = next((node for node in network.readers(tensor) if node.op in ops), None)
    return reader.outputs[0] if reader else None


def _groups(network: Network, surviving: set[str]) -> tuple[frozenset[int], ...]:
    """Group each surviving result with everything before it that did not survive."""
    owner: dict[int, int] = {}
    for sink in network.nodes:
        waiting = [] if surviving.isdisjoint(sink.outputs) else [sink]
        while waiting:
            node = waiting.pop()
            if node.index not in owner:
                owner[node.index] = sink.index
                writers = (network.producers.get(tensor) for tensor in node.inputs if tensor not in surviving)
                waiting += filter(None, writers)
    groups: dict[int, set[int]] = {}
    for node in network.nodes:
        groups.setdefault(owner.get(node.index, node.index), set()).add(node.index)
    return tuple(map(frozenset, groups.values()))
