"""Chains of layers that a device runs on chip, and the windows that measure them.

The layers of a chain overlap in time, and no probe of a single layer shows by how much. So each chain is measured as a
whole, alone and together with the next one. The difference between a pair and its two chains is called their meeting.
Where the device runs a pair otherwise than in the network, a window with a further chain at either end may keep it from
that; the difference between that window and everything else in it is the meeting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.network.chain_borders import Chained
from harness.network.disjoint_sets import DisjointSets
from harness.network.layer_flows import layer_flows
from harness.network.layers import Layer
from harness.network.network import Network
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.chain_windows import window_probes
from harness.probe.probe import Probe

CHECKED, USUAL_CHECKED, MOST_CHECKED = 3, 4, 8
"""The least, usual and greatest number of groups in a window that checks whether chains and meetings add up: a compiler
also moves weights and results over more than one chain. Journals of earlier versions hold windows of more than four."""
WIDER = ((0, 1), (1, 0), (1, 1))
"""Numbers of further chains in front of a pair and behind it, in the order in which such windows are tried."""
Ask = Callable[[Probe], RuntimeGraph | None]
Prepare = Callable[[Sequence[Probe]], None]
_Group = Sequence[int]
Chains = frozenset[frozenset[int]]


@dataclass(frozen=True)
class ChainedLayer:
    """What a layer reads from other chains, writes for them, and computes, in bytes.

    `follows` is whether it reads a result of the layer in front of it in the network's order, also in another chain.
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
    come from outside. `meeting` is "" for the last group, and if `agrees` is false: the device runs the two groups
    together otherwise than in the network, although it runs each of them as there. `wider` is the number of further
    groups in the window `meeting`, in front of this group and behind the next one. `check` is a window of `checked`
    groups from this one on; such windows tile the network. `across` reaches from this group to the end of the next such
    window. What these windows take beyond everything else in them is charged to all of their chains, and shows how well
    sums hold.
    `views` are the layers that take no time on the device; the first group has those of the whole network. `borders`
    are the sizes in bytes of the tensors that each layer exchanges with other groups, `weight_bytes` the sizes of its
    weights. `ordered` describes each layer and its place in a chain; windows of neighbours do not have it.
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
    probe: Probe
    null: Probe | None
    agrees: bool

    @property
    def ids(self) -> tuple[str, str]:
        return self.probe.id, self.null.id if self.null else ""


@dataclass(frozen=True)
class _ChainedNetwork:
    """A network, the chains in which the device runs its layers, by their places, and how to ask about windows."""

    network: Network
    layers: Sequence[Layer]
    owner: Mapping[int, int]
    views: frozenset[int]
    chains: Chains
    ask: Ask
    prepare: Prepare

    @classmethod
    def of(
        cls, network: Network, layers: Sequence[Layer], graph: RuntimeGraph, ask: Ask, prepare: Prepare
    ) -> _ChainedNetwork:
        views = frozenset(
            place for place, layer in enumerate(layers) if all(node.index in graph.views for node in layer.graph.nodes)
        )
        owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}
        return cls(network, layers, owner, views, _in_places(graph.chains, owner, views), ask, prepare)

    def windows(self, *joined: Sequence[_Group]) -> list[_Window]:
        """Return a window for each list of groups that are joined in it."""
        members = [sorted(itertools.chain(*groups)) for groups in joined]
        made = [window_probes(self.network, self.layers, each, self.views) for each in members]
        self.prepare([probe for pair in made for probe in pair if probe])
        return [
            _Window(probe, null, self._agrees(self.ask(probe), each))
            for each, (probe, null) in zip(members, made, strict=True)
        ]

    def _agrees(self, answer: RuntimeGraph | None, members: Sequence[int]) -> bool:
        expected = frozenset(chain & set(members) for chain in self.chains) - {frozenset()}
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
    network's nodes (see `read_runtime_chains`), or None; a window without an answer does not agree. `prepare` gets the
    probes of many windows before they are asked about. Layers that take no time on the device are in no group.
    """
    if not graph.chains:
        return (), ()
    on_device = _ChainedNetwork.of(network, layers, graph, ask, prepare)
    groups = _groups(layers, on_device.chains, on_device.views)
    first = on_device.windows(*([group] for group in groups), *itertools.pairwise(groups))
    alone, pairs = first[: len(groups)], first[len(groups) :]
    meetings = _meetings(alone, pairs)
    checks, across = _checks(len(groups), lambda places: on_device.windows(*(groups[one] for one in places)))
    wider = _wider(groups, meetings, lambda joined: on_device.windows(joined)[0])
    meetings |= {at: found for at, (_, found) in wider.items()}
    chained = Chained(layer_flows(network, layers), on_device.views)

    def places(members: Iterable[int]) -> tuple[tuple[str, str], ...]:
        return tuple((layers[place].key.digest, label(place)) for place in members)

    found = []
    for at, (group, described) in enumerate(zip(groups, _ordered(chained, groups), strict=True)):
        checked, check = (checks[at][0], checks[at][1].ids) if at in checks else (CHECKED, ("", ""))
        found.append(
            ChainProbes(
                places(group),
                network.sha256[:16],
                *alone[at].ids,
                *(meetings[at].ids if at in meetings else ("", "")),
                at == len(groups) - 1 or at in meetings,
                *check,
                views=places(sorted(on_device.views)) if at == 0 else (),
                borders=tuple((*one.read, *one.written) for one in chained.borders(group)),
                weight_bytes=tuple(map(chained.weight_bytes, group)),
                ordered=described,
                wider=wider[at][0] if at in wider else (0, 0),
                checked=checked,
                across=across[at].ids[0] if at in across else "",
                across_null=across[at].ids[1] if at in across else "",
            )
        )
    long = (*(window for _, window in checks.values()), *across.values())
    probes = (probe for one in (*alone, *meetings.values(), *long) for probe in (one.probe, one.null))
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


def _checks(
    count: int, windows: Callable[[Sequence[slice]], Sequence[_Window]]
) -> tuple[dict[int, tuple[int, _Window]], dict[int, _Window]]:
    """Return the windows that agree, with their lengths, and those across two of them, all by their first group.

    The windows have about equal lengths. Where one does not agree, one that reaches a group further at both ends may,
    or else a short one in its place. None is the whole network.
    """
    parts = max(1, min(-(-count // USUAL_CHECKED), count // CHECKED))
    bounds = [round(at * count / parts) for at in range(parts + 1)]
    tiles = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    wider = [slice(max(0, one.start - 1), min(count, one.stop + 1)) for one in tiles]
    short = [slice(one.start, one.start + CHECKED) for one in tiles]
    agreed: dict[int, tuple[slice, _Window]] = {}
    for form in (tiles, wider, short):
        left = {at: one for at, one in enumerate(form) if at not in agreed and (form is tiles or one not in tiles)}
        tried = {at: one for at, one in left.items() if _is_check(one, count)}
        for (at, one), window in zip(tried.items(), windows([*tried.values()]), strict=True):
            if window.agrees:
                agreed[at] = (one, window)
    found = {one.start: (one.stop - one.start, window) for _, (one, window) in sorted(agreed.items())}
    pairs = [slice(first, last + found[last][0]) for first, last in itertools.pairwise(sorted(found))]
    pairs = [one for one in pairs if _is_check(one, count)]
    return found, {one.start: window for one, window in zip(pairs, windows(pairs), strict=True) if window.agrees}


def _is_check(groups: slice, count: int) -> bool:
    """Return whether a window of so many groups shows more than pairs do, and is not the whole network."""
    size: int = groups.stop - groups.start
    return CHECKED <= size <= min(MOST_CHECKED, count - 1)


def _wider(
    groups: Sequence[Sequence[int]],
    meetings: Mapping[int, _Window],
    window: Callable[[Sequence[Sequence[int]]], _Window],
) -> dict[int, tuple[tuple[int, int], _Window]]:
    """Return windows of three or four groups that agree, for pairs without a window, by the number of the first group.

    All other meetings in such a window must be known.
    """
    found = {}
    for at in set(range(len(groups) - 1)) - meetings.keys():
        for front, behind in WIDER:
            first, last = at - front, at + 1 + behind
            known = all(other in meetings for other in range(first, last) if other != at)
            if first >= 0 and last < len(groups) and known and (wide := window(groups[first : last + 1])).agrees:
                found[at] = ((front, behind), wide)
                break
    return found


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
    """Return for each group the sizes of its layers, and whether each reads the result of the one in front of it."""
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
