"""Layers, free nodes and chains of the emulated NPU, from the JSON that its agent reports."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network, Node
from harness.network.runtime_graph.reported import (
    NodeName,
    ReportedLayer,
    RuntimeGraph,
    node_indices,
    parse_report,
    unreadable,
)
from harness.strict_model import StrictModel

_PICTURE_RANK = 4


class _ReportedGraph(StrictModel):
    layers: Annotated[tuple[ReportedLayer, ...], Field(max_length=100_000)]
    free_nodes: Annotated[tuple[NodeName, ...], Field(max_length=100_000)]
    chains: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]


def read_npu(network: Network, names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read groups, feature maps (as blocked tensors), chains and views.

    Layers that share a node form one group. A free node joins the group that reads or writes its result if that group
    then still has one result; otherwise it is a separate group. Raises ProtocolError if the content is malformed,
    names unknown nodes, leaves nodes out, or contradicts itself.
    """
    report = _parsed(content)
    layers = [node_indices(names, layer.nodes) for layer in report.layers]
    free = node_indices(names, report.free_nodes)
    executed = frozenset().union(*layers)
    missing = {node.index for node in network.nodes} - executed - free
    if missing:
        raise unreadable(f"It leaves {len(missing)} of {len(network.nodes)} nodes out")
    if executed & free:
        raise unreadable("A node is both executed and free")
    sets = DisjointSets(node.index for node in network.nodes)
    for layer in layers:
        sets.join(layer)
    _absorb_views(network, sets, free)
    groups = tuple(frozenset(group) for group in sets.groups())
    feature_maps = frozenset(name for name, kind in network.types.items() if len(kind.shape) == _PICTURE_RANK)
    return replace(_chains(names, report), groups=groups, blocked=feature_maps)


def read_npu_chains(names: EmittedNames, content: bytes) -> RuntimeGraph:
    """Read only chains and views; the model may hold nodes that are not the network's.

    Such nodes are left out, and so are chains of nothing else. Raises ProtocolError if the content is malformed or
    contradicts itself.
    """
    return _chains(names, _parsed(content))


def _chains(names: EmittedNames, report: _ReportedGraph) -> RuntimeGraph:
    chains = [[name for layer in chain for name in report.layers[layer].nodes] for chain in report.chains]
    found = [frozenset(names.nodes[name] for name in chain if name in names.nodes) for chain in chains]
    views = frozenset(names.nodes[name] for name in report.free_nodes if name in names.nodes)
    return RuntimeGraph((), frozenset(), tuple(filter(None, found)), views)


def _parsed(content: bytes) -> _ReportedGraph:
    report = parse_report(_ReportedGraph, content)
    chained = [index for chain in report.chains for index in chain]
    if len(chained) != len(set(chained)) or any(index >= len(report.layers) for index in chained):
        raise unreadable("Its chains share layers or have layers that it does not list")
    return report


def _absorb_views(network: Network, sets: DisjointSets, free: frozenset[int]) -> None:
    """Join each view to its readers if these are in one group of layers, else to the layers that write its input.

    A view joins its writers only if nothing else reads their result. Views of several results stay separate: no fusion
    pattern can hold them.
    """
    waiting = set(free)
    views = [node for node in network.nodes if node.index in free and len(node.results) == 1]

    def absorb(view: Node, neighbour: int) -> None:
        sets.join((neighbour, view.index))
        waiting.discard(view.index)

    for view in reversed(views):  # a view of a view follows its reader
        readers = [reader.index for reader in network.readers(view.results[0])]
        in_one_group = len({sets.find(reader) for reader in readers}) == 1
        if in_one_group and waiting.isdisjoint(readers) and view.results[0] not in network.outputs:
            absorb(view, readers[0])
    for view in views:
        read = network.activations(view)
        writer = network.producers.get(read[0]) if len(read) == 1 else None
        if writer is None or writer.index in waiting or view.index not in waiting:
            continue
        if not any(network.is_read_outside(name, {view.index}) for name in writer.results):
            absorb(view, writer.index)
