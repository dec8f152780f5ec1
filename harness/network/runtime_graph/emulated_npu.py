"""Which nodes the emulated NPU executes as one, read from the layers and free nodes that it tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network, Node

_PICTURE_RANK = 4
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Index = Annotated[int, Field(ge=0)]


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Layer(_Content):
    name: Annotated[str, Field(max_length=1000)]
    nodes: tuple[_Name, ...]


class _Told(_Content):
    layers: Annotated[tuple[_Layer, ...], Field(max_length=100_000)]
    free_nodes: Annotated[tuple[_Name, ...], Field(max_length=100_000)]
    chains: tuple[tuple[_Index, ...], ...]


def read_npu(
    network: Network, names: EmittedNames, content: bytes
) -> tuple[tuple[frozenset[int], ...], frozenset[str]]:
    """Groups of nodes executed as one, and the tensors kept as feature maps.

    Layers that share a node are one group, and a free node joins the group that reads or makes its result
    where that leaves a group with one result; else it stays by itself. Raises ProtocolError where the
    content is malformed, names unknown nodes, leaves nodes out, or contradicts itself.
    """
    told = _parsed(content)
    working = [_indices(names, layer.nodes) for layer in told.layers]
    free = _indices(names, told.free_nodes)
    _check(network, working, free)
    groups = _Groups(network, [group for group in working if group], free)
    groups.absorb_into_readers()
    groups.absorb_into_makers()
    pictures = frozenset(name for name, kind in network.types.items() if len(kind.shape) == _PICTURE_RANK)
    return groups.all(), pictures


def read_chains(names: EmittedNames, content: bytes) -> tuple[tuple[frozenset[int], ...], frozenset[int]]:
    """For each chain the nodes whose layers hand over on chip, and the nodes that cost nothing.

    What was sent may hold more than nodes of the network: chains of nothing else are left out. No chains where the
    device does not tell them. Raises ProtocolError where the content is malformed or contradicts itself.
    """
    told = _parsed(content)
    chains = [[name for layer in chain for name in told.layers[layer].nodes] for chain in told.chains]
    found = [frozenset(names.nodes[name] for name in chain if name in names.nodes) for chain in chains]
    views = frozenset(names.nodes[name] for name in told.free_nodes if name in names.nodes)
    return tuple(chain for chain in found if chain), views


def _parsed(content: bytes) -> _Told:
    try:
        told = _Told.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        raise _unreadable(f"{place}: {first['msg'][:200]}") from None
    chained = [index for chain in told.chains for index in chain]
    if len(chained) != len(set(chained)) or any(index >= len(told.layers) for index in chained):
        raise _unreadable("Its chains share layers or have layers that it does not tell")
    return told


def _indices(names: EmittedNames, nodes: Sequence[str]) -> frozenset[int]:
    unknown = next((name for name in nodes if name not in names.nodes), None)
    if unknown is not None:
        raise _unreadable(f"It names a node {unknown[:40]!r} that was not sent")
    return frozenset(names.nodes[name] for name in nodes)


def _check(network: Network, working: Sequence[frozenset[int]], free: frozenset[int]) -> None:
    executed = frozenset().union(*working)
    missing = {node.index for node in network.nodes} - executed - free
    if missing:
        raise _unreadable(f"It leaves {len(missing)} of {len(network.nodes)} nodes out")
    if executed & free:
        raise _unreadable("A node is executed and costs nothing")


def _unreadable(why: str) -> ProtocolError:
    return ProtocolError("The graph that the device describes cannot be read", why=why, next_step="Update the agent")


class _Groups:
    """Nodes executed as one; views that are `waiting` belong to no layer yet."""

    def __init__(self, network: Network, working: Iterable[frozenset[int]], free: frozenset[int]) -> None:
        self._network = network
        self._views = [node for node in network.nodes if node.index in free]
        self._waiting = set(free)
        self._partition = DisjointSets(node.index for node in network.nodes)
        for group in working:
            self._partition.join(group)

    def absorb_into_readers(self) -> None:
        """Views whose readers are all in one group of layers join it; last ones first, for views of views."""
        for view in reversed(self._views):
            readers = self._readers(view)
            groups = {self._partition.find(reader.index) for reader in readers}
            executed = self._waiting.isdisjoint(reader.index for reader in readers)
            if len(groups) == 1 and executed and not self._hands_back(view):
                self._absorb(view, readers[0])

    def absorb_into_makers(self) -> None:
        """Views that alone read a result join the group of layers that makes it; first ones first."""
        for view in self._views:
            read = [name for name in view.inputs if name and name not in self._network.constants]
            maker = self._network.producers.get(read[0]) if len(read) == 1 else None
            if view.index in self._waiting and maker is not None and maker.index not in self._waiting:
                alone = all(reader.index == view.index for reader in self._readers(maker))
                if alone and not self._hands_back(maker):
                    self._absorb(view, maker)

    def all(self) -> tuple[frozenset[int], ...]:
        """The groups, in the order of their first nodes."""
        return tuple(frozenset(group) for group in self._partition.groups())

    def _hands_back(self, node: Node) -> bool:
        return any(name in self._network.outputs for name in node.outputs)

    def _readers(self, node: Node) -> list[Node]:
        return [reader for name in node.outputs if name for reader in self._network.consumers.get(name, [])]

    def _absorb(self, view: Node, neighbour: Node) -> None:
        """A node of several results stays by itself: no pattern of fusion can be written with it."""
        if len([name for name in view.outputs if name]) == 1:
            self._partition.join((neighbour.index, view.index))
            self._waiting.discard(view.index)
