"""Nodes that ONNX Runtime executes as one, from its optimised graph of a network.

The runtime derives the names of what it makes from the names that it was given: `t17_nchwc`, `n44_token_1` or
`InsertedPrecisionFreeCast_t50` stand for tensor t17, node n44 and tensor t50, whatever the pass that made them. Where
one of its operators ends follows from the data flow: it also computes what no other operator stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.network.assemble import EmittedNames
from harness.network.network import Network, Node
from harness.network.runtime_graph.reported import RuntimeGraph, unreadable

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_NCHWC = "com.microsoft.nchwc"
_GIVEN_NAME = re.compile(r"(?<![A-Za-z0-9])[nt][0-9]+(?![A-Za-z0-9])")
_CONVERSIONS = frozenset({"Cast", "Transpose", "ReorderInput", "ReorderOutput"})
"""Operators that the runtime inserts to convert a tensor between layouts or types."""
_ACTIVATIONS = frozenset(
    ["Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "PRelu", "QuantizeLinear"]
)
_COMBINATIONS = frozenset({"Add", "Sum", "Mul"})


def read_onnxruntime(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups and blocked tensors; raises ProtocolError if the content is not an optimised ONNX graph."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load_model_from_string(content).graph
        found = _Executed(network, names, graph)
    except (DecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise unreadable() from error
    return RuntimeGraph(_groups(network, found.ends | set(network.outputs)), frozenset(found.blocked))


class _Executed:
    """The tensors of a network at which the runtime's operators end, and those that it keeps in a layout of its own."""

    def __init__(self, network: Network, names: EmittedNames, graph: GraphProto) -> None:
        self._network = network
        self._names = names
        self._nodes = {node.index: node for node in network.nodes}
        self._written = {name for node in graph.node for name in node.output} | {one.name for one in graph.input}
        executed = [node for node in graph.node if not self._is_conversion(node)]
        self._known = {one.index for node in executed for one in self._stands_for(node)}
        self.ends: set[str] = set()
        self.blocked: set[str] = set()
        owners: dict[str, str] = {}
        for node in executed:
            for end in self._ends_of(node):
                # A sum that follows two operators belongs to the later one, which reads the result of the other.
                self.ends.discard(owners.pop(end, ""))
                owners[end] = node.name
                self.ends.add(end)
        self._find_blocked(graph)

    def _is_conversion(self, node: NodeProto) -> bool:
        return node.op_type in _CONVERSIONS and all(one.op != node.op_type for one in self._stands_for(node))

    def _stands_for(self, node: NodeProto) -> list[Node]:
        """Return the nodes of the network that write what a node of the runtime writes, or after which it is named."""
        written = [tensor for name in node.output if (tensor := self._tensor(name))]
        writers = (self._network.producers.get(tensor) for tensor in written)
        return [one for one in writers if one is not None] or list(self._named(node.name))

    def _tensor(self, name: str) -> str | None:
        """Return the tensor of the network that a tensor of the runtime has the name of."""
        if name in self._names.tensors:
            return self._names.tensors[name]
        found = (self._names.tensors.get(part) for part in _GIVEN_NAME.findall(name))
        return next(filter(None, found), None)

    def _named(self, name: str) -> Iterator[Node]:
        for part in _GIVEN_NAME.findall(name)[:1]:
            if part in self._names.nodes:
                yield self._nodes[self._names.nodes[part]]
            elif (tensor := self._names.tensors.get(part)) in self._network.producers:
                yield self._network.producers[tensor]

    def _ends_of(self, node: NodeProto) -> list[str]:
        kept = [self._names.tensors[name] for name in node.output if name in self._names.tensors]
        if kept:
            return kept
        sums = len([name for name in node.input if name in self._written]) > 1
        return [self._end_behind(one, name, sums) for one in self._stands_for(node) for name in one.results]

    def _end_behind(self, first: Node, tensor: str, sums: bool) -> str:
        """Return the last tensor that an operator computes which the runtime names after the node `first`.

        The operator may also apply activations, the product with its own operand, and, if it `sums`, a residual add.
        """
        read = set(first.inputs)
        while tensor not in self._network.outputs:
            readers = self._network.readers(tensor)
            if len(readers) != 1 or readers[0].index in self._known:
                break
            others = set(self._network.activations(readers[0])) - {tensor}
            combines = readers[0].op in _COMBINATIONS and (sums or (bool(others) and others <= read))
            if not combines and readers[0].op not in _ACTIVATIONS:
                break
            tensor = readers[0].outputs[0]
        return tensor

    def _find_blocked(self, graph: GraphProto) -> None:
        """Follow the runtime's own layouts from the operators that write them to those that convert them back."""
        inside: set[str] = set()
        for node in graph.node:
            plain = node.op_type in _CONVERSIONS and node.op_type != "Cast"
            last = any(item.name == "channels_last" and item.i for item in node.attribute)
            own = node.domain == _NCHWC or last or node.op_type.startswith("Nhwc")
            renamed = not any(name in self._names.tensors for name in node.output)
            if plain or not (own or (renamed and not inside.isdisjoint(node.input))):
                continue
            inside.update(node.output)
            self.blocked.update(self._ends_of(node))
            self.ends |= self.blocked


def _groups(network: Network, ends: set[str]) -> tuple[frozenset[int], ...]:
    """Group the node that writes each of these tensors with everything before it that writes none of them."""
    owner: dict[int, int] = {}
    for sink in network.nodes:
        waiting = [] if ends.isdisjoint(sink.outputs) else [sink]
        while waiting:
            node = waiting.pop()
            if node.index not in owner:
                owner[node.index] = sink.index
                writers = (network.producers.get(tensor) for tensor in node.inputs if tensor not in ends)
                waiting += filter(None, writers)
    groups: dict[int, set[int]] = {}
    for node in network.nodes:
        groups.setdefault(owner.get(node.index, node.index), set()).add(node.index)
    return tuple(map(frozenset, groups.values()))
