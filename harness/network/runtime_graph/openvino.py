"""Layers of OpenVINO, from the JSON that the agent makes of its runtime model."""

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network
from harness.network.runtime_graph.reported import NodeName, ReportedLayer, RuntimeGraph, node_indices, parse_report
from harness.strict_model import StrictModel


class _LayerWithLayout(ReportedLayer):
    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1)]
    layout: Annotated[str, Field(pattern=r"\A[A-Za-z0-9]{0,32}\z")]


class _ReportedGraph(StrictModel):
    layers: Annotated[tuple[_LayerWithLayout, ...], Field(max_length=100_000)]


def read_openvino(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups and the tensors kept in a blocked layout.

    OpenVINO does not name the nodes that it folds away. Such a node joins the group that reads its result; it stays a
    separate group if several groups read it, or none. Raises ProtocolError if the content is malformed or names
    unknown nodes.
    """
    report = parse_report(_ReportedGraph, content)
    layers = [(node_indices(names, layer.nodes), layer.layout) for layer in report.layers]
    sets = DisjointSets(node.index for node in network.nodes)
    for nodes, _ in layers:
        sets.join(nodes)
    _absorb_folded(network, sets, {index for nodes, _ in layers for index in nodes})
    groups = tuple(frozenset(group) for group in sets.groups())
    group_of = {index: group for group in groups for index in group}
    blocked = {index for nodes, layout in layers if not _is_plain(layout) for index in nodes}
    written = ((name, node.index) for node in network.nodes if node.index in blocked for name in node.outputs)
    read_outside = (name for name, index in written if network.is_read_outside(name, group_of[index]))
    return RuntimeGraph(groups, frozenset(read_outside), merges_maps=True)


def _absorb_folded(network: Network, sets: DisjointSets, named: Collection[int]) -> None:
    """Join folded nodes to their readers, last nodes first; nodes of several results fit no fusion pattern."""
    for node in reversed(network.nodes):
        results = node.results
        if node.index not in named and len(results) == 1 and results[0] not in network.outputs:
            readers = [reader.index for reader in network.readers(results[0])]
            if len({sets.find(reader) for reader in readers}) == 1:
                sets.join((readers[0], node.index))


def _is_plain(layout: str) -> bool:
    """Return whether the dimensions (a, b, c, …) lie in memory in their own order, none of them split."""
    return layout == "abcdefghijkl"[: len(layout)]
