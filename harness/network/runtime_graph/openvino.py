"""Which nodes OpenVINO executes as one, read from the nodes of its graph that it tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.network import Network

_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Layer(_Content):
    name: Annotated[str, Field(max_length=1000)]
    nodes: Annotated[tuple[_Name, ...], Field(min_length=1)]
    layout: Annotated[str, Field(pattern=r"\A[A-Za-z0-9]{0,32}\z")]


class _Told(_Content):
    layers: Annotated[tuple[_Layer, ...], Field(max_length=100_000)]


def read_openvino(
    network: Network, names: EmittedNames, content: bytes
) -> tuple[tuple[frozenset[int], ...], frozenset[str]]:
    """Groups of nodes executed as one, and the tensors kept in a blocked layout.

    Nodes that OpenVINO names nowhere were folded away: such a node joins the group that alone reads its
    result; it stays by itself where there are several, or none. Raises ProtocolError where the content is
    malformed or names unknown nodes.
    """
    try:
        told = _Told.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        raise _unreadable(f"{place}: {first['msg'][:200]}") from None
    layers = [(_indices(names, layer.nodes), layer.layout) for layer in told.layers]
    together = DisjointSets(node.index for node in network.nodes)
    for nodes, _ in layers:
        together.join(nodes)
    _absorb_folded(network, together, {index for nodes, _ in layers for index in nodes})
    groups = tuple(frozenset(group) for group in together.groups())
    blocked = {index for nodes, layout in layers if not _plain(layout) for index in nodes}
    return groups, _results(network, groups, blocked)


def _absorb_folded(network: Network, together: DisjointSets[int], named: Collection[int]) -> None:
    """Last nodes first, for what is folded behind what is folded; no rule could be written for several results."""
    for node in reversed(network.nodes):
        results = [name for name in node.outputs if name]
        if node.index not in named and len(results) == 1 and results[0] not in network.outputs:
            readers = [reader.index for reader in network.consumers.get(results[0], [])]
            if len({together.find(reader) for reader in readers}) == 1:
                together.join((readers[0], node.index))


def _indices(names: EmittedNames, nodes: Iterable[str]) -> frozenset[int]:
    unknown = next((name for name in nodes if name not in names.nodes), None)
    if unknown is not None:
        raise _unreadable(f"It names a node {unknown[:40]!r} that was not sent")
    return frozenset(names.nodes[name] for name in nodes)


def _plain(layout: str) -> bool:
    """Whether dimensions, called a, b, c and so on, lie in memory in their own order, each in one piece."""
    return layout == "abcdefghijkl"[: len(layout)]


def _results(network: Network, groups: Iterable[frozenset[int]], nodes: Collection[int]) -> frozenset[str]:
    """What those of the nodes write that other groups read or the network hands back."""
    group_of = {index: group for group in groups for index in group}
    return frozenset(
        name
        for node in network.nodes
        if node.index in nodes
        for name in node.outputs
        if name in network.outputs
        or any(reader.index not in group_of[node.index] for reader in network.consumers.get(name, []))
    )


def _unreadable(why: str) -> ProtocolError:
    return ProtocolError("The graph that the device describes cannot be read", why=why, next_step="Update the agent")
