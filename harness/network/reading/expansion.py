"""How large a model becomes when its functions are expanded, counted before any is: nodes, and bytes.

The counts are upper bounds. They include subgraphs and the names that replace those of a function's parameters. They
also include attributes that a function refers to by name: each becomes a copy of what the call gives, perhaps a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from harness.errors import InvalidNetwork, UnsupportedNetwork
from harness.network.reading.control_flow import all_nodes, domain_of, subgraphs

MAX_NODES = 200_000
MAX_ADDED_BYTES = 64 << 20
"""The most bytes by which a model may grow when its functions are expanded."""
_MOST_SHOWN = 10**12

_Callee = tuple[str, str, str]


def check_expansion(name: str, model: ModelProto) -> None:
    """Raise UnsupportedNetwork if a model has, or its functions expand to, too many nodes or bytes.

    Raises InvalidNetwork for functions that call themselves or exist twice.
    """
    if not model.functions:
        if any(True for _ in itertools.islice(all_nodes(model.graph.node), MAX_NODES, None)):
            raise UnsupportedNetwork(f"{name} has more than {MAX_NODES:,} nodes")
        return
    try:
        size = _Expansion(name, model.functions).graph(model.graph)
    except RecursionError as error:
        raise UnsupportedNetwork(f"The functions of {name} are nested too deeply") from error
    if size.nodes > MAX_NODES:
        raise UnsupportedNetwork(f"{name} expands to {_shown(size.nodes)} nodes", why=f"The limit is {MAX_NODES:,}")
    limit = model.ByteSize() + MAX_ADDED_BYTES
    if size.bytes > limit:
        raise UnsupportedNetwork(f"{name} expands to {_shown(size.bytes)} bytes", why=f"The limit is {limit:,}")


@dataclass
class _Size:
    """What nodes expand to.

    `references` counts attributes that are copies of those of the call, `mentions` the names of tensors.
    """

    nodes: int = 0
    bytes: int = 0
    references: int = 0
    mentions: int = 0

    def add(self, other: _Size, times: int = 1) -> None:
        self.nodes += other.nodes * times
        self.bytes += other.bytes * times
        self.references += other.references * times
        self.mentions += other.mentions * times


class _Expansion:
    def __init__(self, name: str, functions: Iterable[FunctionProto]) -> None:
        self._name = name
        self._functions: dict[_Callee, FunctionProto] = {}
        self._sizes: dict[_Callee, _Size] = {}
        self._calling: set[_Callee] = set()
        for function in functions:
            callee = (domain_of(function), function.name, function.overload)
            if callee in self._functions:
                raise self._invalid(f"Function {function.name[:80]!r} is defined twice")
            self._functions[callee] = function

    def graph(self, graph: GraphProto) -> _Size:
        """The size of a graph once its nodes are expanded."""
        size = self._nodes(graph.node)
        size.bytes += graph.ByteSize() - sum(node.ByteSize() for node in graph.node)
        return size

    def _nodes(self, nodes: Iterable[NodeProto]) -> _Size:
        size = _Size()
        for node in nodes:
            size.add(self._node(node))
        return size

    def _node(self, node: NodeProto) -> _Size:
        given = _Size(0, node.ByteSize(), sum(1 for each in node.attribute if each.ref_attr_name))
        for graph in subgraphs(node):
            given.bytes -= graph.ByteSize()
            given.add(self.graph(graph))
        callee = (domain_of(node), node.op_type, node.overload)
        names = (*node.input, *node.output)
        if callee not in self._functions:
            given.nodes += 1
            given.mentions += len(names)
            return given
        body = self._function(callee)
        longest = max((len(name.encode()) for name in names), default=0)
        size = _Size(body.nodes, body.bytes + body.mentions * longest, 0, body.mentions)
        size.add(given, body.references)
        return size

    def _function(self, callee: _Callee) -> _Size:
        if callee in self._calling:
            raise self._invalid(f"Function {callee[1][:80]!r} calls itself")
        if callee not in self._sizes:
            self._calling.add(callee)
            function = self._functions[callee]
            size = self._nodes(function.node)
            defaults = _Size()
            for attribute in function.attribute_proto:  # a call may omit it
                defaults.bytes += attribute.ByteSize()
                for graph in (attribute.g, *attribute.graphs):
                    defaults.add(self.graph(graph))
            size.add(defaults, size.references)
            self._sizes[callee] = size
            self._calling.remove(callee)
        return self._sizes[callee]

    def _invalid(self, why: str) -> InvalidNetwork:
        return InvalidNetwork(f"{self._name} is not valid ONNX", why=why)


def _shown(count: int) -> str:
    return f"{count:,}" if count < _MOST_SHOWN else f"more than {_MOST_SHOWN:,}"
