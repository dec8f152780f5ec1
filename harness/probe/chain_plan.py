"""Chains of layers that a device runs on chip, and the windows that measure them.

The layers of a chain overlap in time, and no probe of a single layer shows by how much. So each chain is measured as a
whole, by itself and together with the next one. The time of a pair minus the times of its two chains is their boundary
term. A compiler also moves weights and results over more than one chain. Long windows show
this: the time of a long window minus the sum of its parts is the long-window excess. A pair that
the device runs differently from the network is not used. A long window is used anyway: the device chooses the fastest
way to run it, and other ways take nearly as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.network.disjoint_sets import DisjointSets
from harness.network.layer_flows import Chained, layer_flows
from harness.network.layers import Layer
from harness.network.network import Network
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.probe import Probe
from harness.probe.window_probes import window_probes

CHECKED, MOST_CHECKED = 3, 8
"""The least and greatest number of groups in a long window; one across two of them has up to twice as many."""
FEWEST_TILES = 3
"""The least number of long windows that tile a network: one across two of them is then not all of it."""
Ask = Callable[[Probe], RuntimeGraph | None]
Prepare = Callable[[Sequence[Probe]], None]
_Group = Sequence[int]
Chains = frozenset[frozenset[int]]


@dataclass(frozen=True)
class ChainedLayer:
    """What a layer reads from other chains, writes for them, and computes, in bytes.

    `follows` is whether it reads a result of the layer before it in the network's order, even in another chain.
    """

    read_bytes: int
    written_bytes: int
    result_bytes: int
    follows: bool


@dataclass(frozen=True)
class ChainProbes:
    """The probes from which the latency of one group of layers is found, by their ids.

    `places` are the digest of the key and the label of each layer, in the network's order. `alone` is the window of the
    group, `meeting` that of the group and the next one; each has a null window without the layers, "" if all its inputs
    come from outside. `meeting` is "" for the last group, and if `agrees` is false: the device runs each of the two
    groups as in the network, but not both together. `check` is a window of `checked` groups from this one on; such
    windows tile the network, or two that overlap by a pair hold it. `across` reaches from this group to the end of the
    next such window. What these windows take beyond everything else in them is charged to all of their chains, and
    shows how well sums hold. `wider` is always (0, 0). `views` are the layers that take no time on the device; the
    first group has those of the whole network. `borders` are the sizes in bytes of the tensors that each layer
    exchanges with other groups, `weight_bytes` the sizes of its weights. `ordered` describes each layer and its place
    in a chain; windows of neighbours do not have it.
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
    ordered: tuple[ChainedLayer, ...] = ()
    wider: tuple[int, int] = (0, 0)
    checked: int = CHECKED
    across: str = ""
    across_null: str = ""


@dataclass(frozen=True)
class _Window:
    """The probe of a window, its null window, and the places of the window's layers."""

    probe: Probe
    null: Probe | None
    members: frozenset[int]

    @property
    def ids(self) -> tuple[str, str]:
        return self.probe.id, self.null.id if self.null else ""

    @property
    def probes(self) -> tuple[Probe, ...]:
        return (self.probe,) if self.null is None else (self.probe, self.null)


@dataclass(frozen=True)
class _ChainedNetwork:
    """A network, the chains in which the device runs its layers, by their places, and how to ask about windows."""

    network: Network
    layers: Sequence[Layer]
    owner: Mapping[int, int]
    views: frozenset[int]
    chains: Chains
    ask: Ask

    @classmethod
    def of(cls, network: Network, layers: Sequence[Layer], graph: RuntimeGraph, ask: Ask) -> _ChainedNetwork:
        views = frozenset(place for place, layer in enumerate(layers) if graph.is_view(layer.graph.nodes))
        owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}
        return cls(network, layers, owner, views, _in_places(graph.chains, owner, views), ask)

    def window(self, groups: Sequence[_Group]) -> _Window:
        """Return the window of groups, joined in it."""
        members = sorted(itertools.chain(*groups))
        return _Window(*window_probes(self.network, self.layers, members, self.views), frozenset(members))

    def agrees(self, window: _Window) -> bool:
        """Ask the device whether it runs a window as in the network."""
        answer = self.ask(window.probe)
        expected = frozenset(chain & window.members for chain in self.chains) - {frozenset()}
        return answer is not None and _in_places(answer.chains, self.owner, self.views) == expected


def plan_chains(
    network: Network,
    layers: Sequence[Layer],
    graph: RuntimeGraph,
    label: Callable[[int], str],
    ask: Ask,
    prepare: Prepare = lambda _: None,
) -> tuple[tuple[ChainProbes, ...], tuple[Probe, ...]]:
    """Return the groups of a network in order and their distinct probes; none if the device reports no chains.

    `label` names the context of the layer at a place. `ask` returns how the device chains a probe, in indices of the
    network's nodes (see `read_runtime_chains`), or None; a window without an answer does not agree. It is
    asked about windows of one and of two groups; `prepare` gets the probes of all windows before. Layers that take no
    time on the device are in no group.
    """
    if not graph.chains:
        return (), ()
    on_device = _ChainedNetwork.of(network, layers, graph, ask)
    groups = _groups(layers, on_device.chains, on_device.views)
    chained = Chained(layer_flows(network, layers), on_device.views)
    tiles, joined = _long_windows(len(groups))
    lengths = {one.start: one.stop - one.start for one in tiles}

    def windows(parts: Sequence[slice]) -> dict[int, _Window]:
        return {one.start: on_device.window(groups[one]) for one in parts}

    def places(members: Iterable[int]) -> tuple[tuple[str, str], ...]:
        return tuple((layers[place].key.digest, label(place)) for place in members)

    alone = windows([slice(at, at + 1) for at in range(len(groups))])
    pairs = windows([slice(at, at + 2) for at in range(len(groups) - 1)])
    checks, across = windows(tiles), windows(joined)
    prepare([probe for each in (alone, pairs, checks, across) for window in each.values() for probe in window.probes])
    shared = {other.start for one, other in itertools.pairwise(tiles) if other.start < one.stop}
    meetings = _meetings(alone, pairs, shared, on_device.agrees)
    found = [
        ChainProbes(
            places(group),
            network.sha256[:16],
            *alone[at].ids,
            *_ids(meetings, at),
            at == len(groups) - 1 or at in meetings,
            *_ids(checks, at),
            views=places(sorted(on_device.views)) if at == 0 else (),
            borders=tuple((*one.read, *one.written) for one in chained.borders(group)),
            weight_bytes=tuple(map(chained.weight_bytes, group)),
            ordered=described,
            checked=lengths.get(at, CHECKED),
            across=_ids(across, at)[0],
            across_null=_ids(across, at)[1],
        )
        for at, (group, described) in enumerate(zip(groups, _ordered(chained, groups), strict=True))
    ]
    used = (window for each in (alone, meetings, checks, across) for window in each.values())
    return tuple(found), tuple({probe.id: probe for window in used for probe in window.probes}.values())


def _meetings(
    alone: Mapping[int, _Window],
    pairs: Mapping[int, _Window],
    shared: Collection[int],
    agrees: Callable[[_Window], bool],
) -> dict[int, _Window]:
    """Return the windows of neighbouring groups that are of use, by the number of the first group.

    A pair that does not agree is still of use in two cases: one of its groups alone does not agree either, which the
    pair corrects, or two long windows hold the pair, and what it saves would count twice. `shared` lists such pairs by
    their first groups.
    """
    as_there = {at: agrees(window) for at, window in alone.items()}
    return {
        at: pair
        for at, pair in pairs.items()
        if agrees(pair) or at in shared or not (as_there[at] and as_there[at + 1])
    }


def _ids(windows: Mapping[int, _Window], at: int) -> tuple[str, str]:
    return windows[at].ids if at in windows else ("", "")


def _long_windows(count: int) -> tuple[list[slice], list[slice]]:
    """Return the long windows of a network with so many groups, and the windows across two of them.

    Long windows tile the groups. If there are too few groups for that, two that overlap by a pair hold all groups. None
    is the whole network.
    """
    if count <= CHECKED:
        return [], []
    if count < FEWEST_TILES * CHECKED:
        half = count // 2
        return [slice(0, half + 1), slice(half - 1, count)], []
    parts = max(FEWEST_TILES, -(-count // MOST_CHECKED))
    bounds = [round(at * count / parts) for at in range(parts + 1)]
    tiles = list(map(slice, bounds, bounds[1:]))
    return tiles, list(map(slice, bounds, bounds[2:]))


def _in_places(chains: Iterable[frozenset[int]], owner: Mapping[int, int], views: frozenset[int]) -> Chains:
    """Return chains of nodes as sets of places of layers, without views; a layer may be in several chains."""
    return frozenset(frozenset(owner[index] for index in chain) - views for chain in chains) - {frozenset()}


def _groups(layers: Sequence[Layer], chains: Chains, views: frozenset[int]) -> list[tuple[int, ...]]:
    """Return groups of layers, ordered by their last layers; chains that share a layer form one group."""
    sets = DisjointSets(place for place in range(len(layers)) if place not in views)
    for chain in chains:
        sets.join(sorted(chain))
    return sorted((tuple(sorted(group)) for group in sets.groups()), key=lambda group: group[-1])


def _ordered(chained: Chained, groups: Sequence[Sequence[int]]) -> list[tuple[ChainedLayer, ...]]:
    """Return for each group the sizes of its layers, and whether each reads the result of the one before it."""
    order = list(itertools.chain(*groups))
    in_front = dict(zip(order[1:], order, strict=False))
    return [
        tuple(
            ChainedLayer(
                borders.read_bytes,
                borders.written_bytes,
                chained.result_bytes(place),
                place in in_front and chained.reads(place, in_front[place]),
            )
            for place, borders in zip(group, chained.borders(group), strict=True)
        )
        for group in groups
    ]
