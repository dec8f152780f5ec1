"""Chains of layers that a device runs on chip, and the windows that measure them.

The layers of a chain overlap in time, and no probe of a single layer shows by how much. So each chain is measured as a
whole, alone and together with the next one. The difference between a pair and its two chains is called their meeting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.network.disjoint_sets import DisjointSets
from harness.network.layers import Layer
from harness.network.network import Network
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.chain_windows import window_probes
from harness.probe.probe import Probe

CHECK_EVERY = 3
Ask = Callable[[Probe], RuntimeGraph | None]
Chains = frozenset[frozenset[int]]


@dataclass(frozen=True)
class ChainProbes:
    """The probes from which the latency of one group of layers is found, by their ids.

    `places` are the digest of the key and the label of each layer, in the network's order. `alone` is the window of the
    group, `meeting` that of the group and the next one; each has a null window without the layers, "" if all its inputs
    come from outside. `meeting` is "" for the last group, and if `agrees` is false: the device runs the two groups
    together otherwise than in the network, although it runs each of them as there. `check` is the window of this group
    and the next two, for every third group. Nothing is fitted to it; it shows whether chains and meetings add up.
    `views` are the layers that take no time on the device; the first group has those of the whole network. `borders`
    are the sizes in bytes of the tensors that each layer exchanges with other groups, `weight_bytes` the sizes of its
    weights.
    """

    places: tuple[tuple[str, str], ...]
    network: str
    alone: str
    alone_null: str
    meeting: str
    meeting_null: str
    agrees: bool
    check: str = ""
    check_null: str = ""
    views: tuple[tuple[str, str], ...] = ()
    borders: tuple[tuple[int, ...], ...] = ()
    weight_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Window:
    probe: Probe
    null: Probe | None
    agrees: bool

    @property
    def ids(self) -> tuple[str, str]:
        return self.probe.id, self.null.id if self.null else ""


def plan_chains(
    network: Network, layers: Sequence[Layer], graph: RuntimeGraph, label: Callable[[int], str], ask: Ask
) -> tuple[tuple[ChainProbes, ...], tuple[Probe, ...]]:
    """Return the groups of a network in order and their distinct probes; none if the device reports no chains.

    `label` names the context of the layer at a place. `ask` returns how the device chains a probe, in indices of the
    network's nodes (see `read_runtime_chains`), or None; a window without an answer does not agree. Layers that take no
    time on the device are in no group.
    """
    if not graph.chains:
        return (), ()
    views = frozenset(
        place for place, layer in enumerate(layers) if all(node.index in graph.views for node in layer.graph.nodes)
    )
    owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}
    chains = _in_places(graph.chains, owner, views)
    groups = _groups(layers, chains, views)

    def window(*joined: Sequence[int]) -> _Window:
        members = sorted(itertools.chain(*joined))
        probe, null = window_probes(network, layers, members, views)
        answer = ask(probe)
        expected = frozenset(chain & set(members) for chain in chains) - {frozenset()}
        agrees = answer is not None and _in_places(answer.chains, owner, views) == expected
        return _Window(probe, null, agrees)

    def places(members: Iterable[int]) -> tuple[tuple[str, str], ...]:
        return tuple((layers[place].key.digest, label(place)) for place in members)

    alone = [window(group) for group in groups]
    meetings = _meetings(alone, [window(one, other) for one, other in itertools.pairwise(groups)])
    checks = {
        at: three
        for at in range(0, len(groups) - 2, CHECK_EVERY)
        if {at, at + 1} <= meetings.keys() and (three := window(*groups[at : at + 3])).agrees
    }
    found = []
    for at, group in enumerate(groups):
        meeting, check = (held[at].ids if at in held else ("", "") for held in (meetings, checks))
        found.append(
            ChainProbes(
                places(group),
                network.sha256[:16],
                *alone[at].ids,
                *meeting,
                at == len(groups) - 1 or at in meetings,
                *check,
                views=places(sorted(views)) if at == 0 else (),
                borders=_border_bytes(network, layers, owner, group, views),
                weight_bytes=tuple(network.constant_bytes(layers[place].graph.nodes) for place in group),
            )
        )
    probes = (probe for one in (*alone, *meetings.values(), *checks.values()) for probe in (one.probe, one.null))
    return tuple(found), tuple({probe.id: probe for probe in probes if probe}.values())


def _meetings(alone: Sequence[_Window], pairs: Sequence[_Window]) -> dict[int, _Window]:
    """Return the windows of neighbouring groups that are of use, by the number of the first group.

    A pair that does not agree is of use if one of its groups alone does not agree either: it corrects for that.
    """
    return {
        at: pair
        for at, (pair, (one, other)) in enumerate(zip(pairs, itertools.pairwise(alone), strict=True))
        if pair.agrees or not (one.agrees and other.agrees)
    }


def _in_places(chains: Iterable[frozenset[int]], owner: Mapping[int, int], views: frozenset[int]) -> Chains:
    """Return chains of nodes as sets of places of layers, without views; a layer may be in several chains."""
    return frozenset(frozenset(owner[index] for index in chain) - views for chain in chains) - {frozenset()}


def _groups(layers: Sequence[Layer], chains: Chains, views: frozenset[int]) -> list[tuple[int, ...]]:
    """Return groups of layers, ordered by their last layers; chains that share a layer form one group."""
    sets = DisjointSets(place for place in range(len(layers)) if place not in views)
    for chain in chains:
        sets.join(sorted(chain))
    return sorted((tuple(sorted(group)) for group in sets.groups()), key=lambda group: group[-1])


def _border_bytes(
    network: Network, layers: Sequence[Layer], owner: Mapping[int, int], group: Sequence[int], views: frozenset[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each layer of a group in order, the sizes of the tensors that it exchanges with other layers.

    `owner` has the place of each node's layer, `group` and `views` are places. Views take no time on the device: a
    tensor passes through them from the layer in front of them to the layers behind them. Sizes are in bytes, of tensors
    read first.
    """

    def written_within(name: str) -> bool:
        if name not in network.producers:
            return False
        place = owner[network.producers[name].index]
        read = layers[place].graph.inputs if place in views else ()
        return written_within(read[0]) if read else place in group

    def read_beyond(name: str) -> bool:
        places = {owner[node.index] for node in network.readers(name)}
        through = (result for place in places & views for result in layers[place].graph.outputs)
        return name in network.outputs or not places <= views.union(group) or any(map(read_beyond, through))

    def exchanged(layer: Layer) -> Iterator[str]:
        yield from (name for name in layer.graph.inputs if not written_within(name))
        yield from filter(read_beyond, layer.graph.outputs)

    return tuple(tuple(network.types[name].bytes for name in exchanged(layers[place])) for place in group)
