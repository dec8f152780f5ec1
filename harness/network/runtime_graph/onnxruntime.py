"""Nodes that ONNX Runtime executes as one, from its optimised graph of a network.

The runtime derives the names of what it makes from the names that it was given: `t17_nchwc`, `n44_token_1` or
`InsertedPrecisionFreeCast_t50` mean tensor t17, node n44 and tensor t50, independent of the pass that made them. Where
one of its operators ends follows from the data flow: it also computes the nodes that no other operator represents.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network, Node
from harness.network.operator_kinds import ACTIVATIONS
from harness.network.runtime_graph.reported import RuntimeGraph, unreadable

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_NCHWC = "com.microsoft.nchwc"
_GIVEN_NAME = re.compile(r"(?<![A-Za-z0-9])[kntw][0-9]+(?![A-Za-z0-9])")
_UNSIGNED_ZERO_POINT = "qdq_s8_to_u8"
_CONVERSIONS = frozenset({"Cast", "Transpose", "ReorderInput", "ReorderOutput"})
"""Operators that the runtime inserts to convert a tensor between layouts or types."""
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_GATES = frozenset({"Sigmoid", "HardSigmoid"})
_COMBINATIONS = frozenset({"Add", "Sum", "Mul"})


def read_onnxruntime(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups and blocked tensors; raises ProtocolError if the content is not an optimised ONNX graph."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load_model_from_string(content).graph
        found = _Executed(network, names, graph)
        unsigned_pairs = _has_made_unsigned(graph)
    except (DecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise unreadable() from error
    return RuntimeGraph(_groups(network, found), found.blocked, unsigned_pairs=unsigned_pairs)


def _has_made_unsigned(graph: GraphProto) -> bool:
    """Return whether the runtime has zero points that it made for pairs which it turned from `int8` into `uint8`."""
    return any(one.name.startswith(_UNSIGNED_ZERO_POINT) for one in graph.initializer)


class _Executed:
    """The tensors of a network at which the runtime's operators end, and those that it keeps in its own layout."""

    def __init__(self, network: Network, names: EmittedNames, graph: GraphProto) -> None:
        self._network = network
        self._names = names
        self._nodes = {node.index: node for node in network.nodes}
        self._written = {name for node in graph.node for name in node.output} | {one.name for one in graph.input}
        executed = [node for node in graph.node if not self._is_conversion(node)]
        self._known = {one.index for node in executed for one in self._stands_for(node)}
        self.together = [self._ends_of(node) for node in executed]
        self.blocked, reshaped = self._blocked(graph)
        # A tensor that is still there is between two operators, even if a conversion writes it.
        there = (name for node in graph.node for name in self._kept(node))
        self.ends = frozenset({*network.outputs, *there, *itertools.chain(*self.together), *self.blocked}) - reshaped

    def _is_conversion(self, node: NodeProto) -> bool:
        return node.op_type in _CONVERSIONS and all(one.op != node.op_type for one in self._stands_for(node))

    def _stands_for(self, node: NodeProto) -> list[Node]:
        """Return the network nodes that write the results of a node of the runtime, or after which it is named."""
        written = [tensor for name in node.output if (tensor := self._tensor(name))]
        writers = (self._network.producers.get(tensor) for tensor in written)
        return [one for one in writers if one is not None] or list(self._named(" ".join((node.name, *node.output))))

    def _tensor(self, name: str) -> str | None:
        """Return the tensor of the network after which a tensor of the runtime is named."""
        if name in self._names.tensors:
            return self._names.tensors[name]
        found = (self._names.tensors.get(part) for part in _GIVEN_NAME.findall(name))
        return next(filter(None, found), None)

    def _named(self, name: str) -> Iterator[Node]:
        for part in _GIVEN_NAME.findall(name):
            if part in self._names.nodes:
                yield self._nodes[self._names.nodes[part]]
                break
            if (tensor := self._names.tensors.get(part)) in self._network.producers:
                yield self._network.producers[tensor]
                break

    def _kept(self, node: NodeProto) -> list[str]:
        """Return the tensors of the network that a node of the runtime writes under their own names."""
        return [self._names.tensors[name] for name in node.output if name in self._names.tensors]

    def _ends_of(self, node: NodeProto) -> list[str]:
        if kept := self._kept(node):
            return kept
        found = self._stands_for(node)
        is_kept = any(self._tensor(name) for name in node.output) or any(one.op == node.op_type for one in found)
        if not node.domain and not is_kept:  # the runtime put several operators in place of one; the last one ends it
            return []
        read = {self._names.constants.get(part) for name in node.input for part in _GIVEN_NAME.findall(name)}
        sums = len([name for name in node.input if name in self._written]) > 1
        return [self._end_behind(name, read | set(one.inputs), sums) for one in found for name in one.results]

    def _end_behind(self, tensor: str, read: Set[str | None], sums: bool) -> str:
        """Return the last tensor that an operator computes which the runtime names after an earlier result.

        The operator may also apply activations, sums and products with what it has `read`, and, if it `sums`, a
        residual add.
        """
        while tensor not in self._network.outputs:
            readers = self._network.readers(tensor)
            if product := self._gated(tensor, readers):
                tensor = product
                continue
            if len(readers) != 1 or readers[0].index in self._known:
                break
            others = set(readers[0].inputs) - {tensor}
            combines = readers[0].op in _COMBINATIONS and bool(others) and (sums or others <= read)
            if not combines and readers[0].op not in (*ACTIVATIONS, "QuantizeLinear"):
                break
            tensor = readers[0].outputs[0]
        return tensor

    def _gated(self, tensor: str, readers: Sequence[Node]) -> str | None:
        """Return the product of a tensor with its own sigmoid if nothing else reads either: Swish or HardSwish."""
        gates = [one for one in readers if one.op in _GATES]
        products = [one for one in readers if one.op == "Mul"]
        if len(readers) != 2 or len(gates) != 1 or len(products) != 1:
            return None
        (gate,), (product,) = gates, products
        alone = [one.index for one in self._network.readers(gate.outputs[0])] == [product.index]
        if not alone or set(product.inputs) != {tensor, gate.outputs[0]} or gate.outputs[0] in self._network.outputs:
            return None
        return None if {gate.index, product.index} & self._known else product.outputs[0]

    def _blocked(self, graph: GraphProto) -> tuple[frozenset[str], frozenset[str]]:
        """Follow the runtime's own layouts from the operators that write them to those that convert them back.

        Also return the tensors that the runtime reshapes in such a layout: what converts them back moves what the
        next operator would have moved, so both are one layer.
        """
        inside: set[str] = set()
        blocked: set[str] = set()
        reshaped: set[str] = set()
        for node in graph.node:
            plain = node.op_type in _CONVERSIONS and node.op_type != "Cast"
            last = any(item.name == "channels_last" and item.i for item in node.attribute)
            own = node.domain == _NCHWC or last or node.op_type.startswith("Nhwc")
            renamed = not self._kept(node)
            if not plain and (own or (renamed and not inside.isdisjoint(node.input))):
                inside.update(node.output)
                (reshaped if node.op_type in _RESHAPES else blocked).update(self._ends_of(node))
        return frozenset(blocked), frozenset(reshaped)


def _groups(network: Network, executed: _Executed) -> tuple[frozenset[int], ...]:
    """Group the node that writes each end with everything before it that writes none, and all ends of one operator."""
    sets = DisjointSets(node.index for node in network.nodes)
    owned: set[int] = set()
    for sink in network.nodes:
        waiting = [] if executed.ends.isdisjoint(sink.outputs) else [sink]
        while waiting:
            node = waiting.pop()
            if node.index not in owned:
                owned.add(node.index)
                sets.join((sink.index, node.index))
                writers = (network.producers.get(tensor) for tensor in node.inputs if tensor not in executed.ends)
                waiting += filter(None, writers)
    for ends in executed.together:
        sets.join([network.producers[end].index for end in ends])
    return tuple(map(frozenset, sets.groups()))
