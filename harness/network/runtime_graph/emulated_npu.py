"""Layers, free nodes and chains of the emulated NPU, from the JSON that its agent reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network, Node
from harness.network.runtime_graph.reported import (
    NodeName,
    Reported,
    ReportedLayer,
    RuntimeGraph,
    node_indices,
    parse_report,
    unreadable,
)

_PICTURE_RANK = 4


class _ReportedGraph(Reported):
    layers: Annotated[tuple[ReportedLayer, ...], Field(max_length=100_000)]
    free_nodes: Annotated[tuple[NodeName, ...], Field(max_length=100_000)]
    chains: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]


def read_npu(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups, feature maps (as blocked tensors), chains and views.

    Layers that share a node form one group. A free node joins the group that reads or writes its result if that group
    then still has one result; otherwise it is a group of its own. Raises ProtocolError if the content is malformed,
    names unknown nodes, leaves nodes out, or contradicts itself.
    """
    report = _parsed(content)
    working = [node_indices(names, layer.nodes) for layer in report.layers]
    free = node_indices(names, report.free_nodes)
    _check(network, working, free)
    groups = _Groups(network, [group for group in working if group], free)
    groups.absorb_into_readers()
    groups.absorb_into_producers()
    feature_maps = frozenset(name for name, kind in network.types.items() if len(kind.shape) == _PICTURE_RANK)
    return replace(_chains(names, report), groups=groups.all(), blocked=feature_maps)


def read_npu_chains(names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read chains and views alone; the model may hold nodes that are not the network's.

    Such nodes are left out, and so are chains of nothing else. Raises ProtocolError if the content is malformed or
    contradicts itself.
    """
    return _chains(names, _parsed(content))


def _chains(names: EmittedNames, report: _ReportedGraph) -> RuntimeGraph:
    chains = [[name for layer in chain for name in report.layers[layer].nodes] for chain in report.chains]
    found = [frozenset(names.nodes[name] for name in chain if name in names.nodes) for chain in chains]
    views = frozenset(names.nodes[name] for name in report.free_nodes if name in names.nodes)
    return RuntimeGraph((), frozenset(), tuple(chain for chain in found if chain), views)


def _parsed(content: bytes) -> _ReportedGraph:
    report = parse_report(_ReportedGraph, content)
    chained = [index for chain in report.chains for index in chain]
    if len(chained) != len(set(chained)) or any(index >= len(report.layers) for index in chained):
        raise unreadable("Its chains share layers or have layers that it does not list")
    return report


def _check(network: Network, working: Sequence[frozenset[int]], free: frozenset[int]) -> None:
    executed = frozenset().union(*working)
    missing = {node.index for node in network.nodes} - executed - free
    if missing:
        raise unreadable(f"It leaves {len(missing)} of {len(network.nodes)} nodes out")
    if executed & free:
        raise unreadable("A node is both executed and free")


class _Groups:
    """Nodes executed as one. The views in `_waiting` belong to no layer yet."""

    def __init__(self, network: Network, working: Iterable[frozenset[int]], free: frozenset[int]) -> None:
        self._network = network
        self._views = [node for node in network.nodes if node.index in free]
        self._waiting = set(free)
        self._sets = DisjointSets(node.index for node in network.nodes)
        for group in working:
            self._sets.join(group)

    def absorb_into_readers(self) -> None:
        """Join each view to its readers if these are in one group of layers; last views first, for views of views."""
        for view in reversed(self._views):
            readers = self._readers(view)
            groups = {self._sets.find(reader.index) for reader in readers}
            executed = self._waiting.isdisjoint(reader.index for reader in readers)
            if len(groups) == 1 and executed and not self._writes_output(view):
                self._absorb(view, readers[0])

    def absorb_into_producers(self) -> None:
        """Join each view that is the only reader of a result to the layers that write it; first views first."""
        for view in self._views:
            read = self._network.activations(view)
            producer = self._network.producers.get(read[0]) if len(read) == 1 else None
            if view.index in self._waiting and producer is not None and producer.index not in self._waiting:
                alone = all(reader.index == view.index for reader in self._readers(producer))
                if alone and not self._writes_output(producer):
                    self._absorb(view, producer)

    def all(self) -> tuple[frozenset[int], ...]:
        """Return the groups in the order of their first nodes."""
        return tuple(frozenset(group) for group in self._sets.groups())

    def _writes_output(self, node: Node) -> bool:
        return any(name in self._network.outputs for name in node.outputs)

    def _readers(self, node: Node) -> list[Node]:
        return [reader for name in node.results for reader in self._network.readers(name)]

    def _absorb(self, view: Node, neighbour: Node) -> None:
        """Join a view to a neighbour's group, except views of several results: no fusion pattern can hold these."""
        if len(view.results) == 1:
            self._sets.join((neighbour.index, view.index))
            self._waiting.discard(view.index)
