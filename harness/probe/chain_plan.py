"""Chains of layers that a device runs without its other memory, and the windows that tell what they take.

Within a chain layers overlap, and no probe of a single layer shows by how much. So chains are measured as a whole,
each by itself and with the next one: what a pair takes more or less than its chains is their meeting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.network.disjoint_sets import DisjointSets
from harness.network.layers import Layer
from harness.network.network import Network
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.borders import border_bytes, weight_bytes
from harness.probe.chain_windows import window_null, window_probe
from harness.probe.probe import Probe

CHECK_EVERY = 3
Ask = Callable[[Probe], RuntimeGraph | None]
Chains = frozenset[frozenset[int]]


@dataclass(frozen=True)
class ChainProbes:
    """The probes that tell the latency of one group of layers, by their ids.

    `places` are digest of the key and label of each layer, in the network's order; groups of a network follow each
    other. `alone` is the window of the group, `meeting` that of the group and the next one; each has a window without
    layers, "" where all it reads comes from outside. `meeting` is "" for the last group, and where not `agrees`: the
    device runs the two groups together as it does not run them in the network, though it does each of them.
    `check` is the window of this group and the next two, of every third group: nothing is fitted to it, it shows how
    far chains and meetings add up. `views` are places of layers that the device executes for nothing, all with the
    first group. `borders` are, for each layer, the bytes of each tensor that it reads from or hands on to others than
    the group, and `weight_bytes` those of its weights.
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
    def probes(self) -> tuple[Probe, ...]:
        return (self.probe,) if self.null is None else (self.probe, self.null)

    @property
    def null_id(self) -> str:
        return "" if self.null is None else self.null.id


def plan_chains(
    network: Network, layers: Sequence[Layer], told: RuntimeGraph, label: Callable[[int], str], ask: Ask
) -> tuple[tuple[ChainProbes, ...], tuple[Probe, ...]]:
    """The groups of a network in order, and their probes, equal ones once; none where the device tells no chains.

    `label` names the context of the layer at a place. `ask` returns how the device chains a probe, in indices of the
    network's nodes (see `read_runtime_chains`), or None; a window without an answer is not one that it agrees on.
    Layers that the device executes for nothing are in no group.
    """
    if not told.chains:
        return (), ()
    views = frozenset(
        place for place, layer in enumerate(layers) if all(node.index in told.views for node in layer.graph.nodes)
    )
    owner = {node.index: place for place, layer in enumerate(layers) for node in layer.graph.nodes}
    chains = _in_places(told.chains, owner, views)
    groups = _groups(layers, chains, views)

    def window(members: Sequence[int]) -> _Window:
        probe = window_probe(network, layers, members, views)
        answer = ask(probe)
        expected = frozenset(chain & set(members) for chain in chains) - {frozenset()}
        agrees = answer is not None and _in_places(answer.chains, owner, views) == expected
        return _Window(probe, window_null(network, layers, members, views), agrees)

    alone = [window(group) for group in groups]
    pairs = [window(sorted((*one, *other))) for one, other in itertools.pairwise(groups)]
    # Where a chain by itself is run otherwise than in the network, its meeting makes up for it.
    used = [
        pair.agrees or not (one.agrees and other.agrees)
        for pair, (one, other) in zip(pairs, itertools.pairwise(alone), strict=True)
    ]
    checks = {
        at: three
        for at in range(0, len(groups) - 2, CHECK_EVERY)
        if used[at] and used[at + 1] and (three := window(sorted(itertools.chain(*groups[at : at + 3])))).agrees
    }
    found = tuple(
        ChainProbes(
            places=tuple((layers[place].key.digest, label(place)) for place in group),
            network=network.sha256[:16],
            alone=alone[at].probe.id,
            alone_null=alone[at].null_id,
            meeting=pairs[at].probe.id if at < len(pairs) and used[at] else "",
            meeting_null=pairs[at].null_id if at < len(pairs) and used[at] else "",
            agrees=at >= len(pairs) or used[at],
            check=checks[at].probe.id if at in checks else "",
            check_null=checks[at].null_id if at in checks else "",
            views=tuple((layers[place].key.digest, label(place)) for place in sorted(views)) if at == 0 else (),
            borders=border_bytes(network, layers, group, views),
            weight_bytes=tuple(weight_bytes(network, layers[place]) for place in group),
        )
        for at, group in enumerate(groups)
    )
    kept = [*alone, *(pair for pair, use in zip(pairs, used, strict=True) if use), *checks.values()]
    return found, tuple({probe.id: probe for window in kept for probe in window.probes}.values())


def _in_places(chains: Iterable[frozenset[int]], owner: Mapping[int, int], views: frozenset[int]) -> Chains:
    """Chains of nodes as sets of places of layers, without views; a layer in several chains is in each."""
    return frozenset(frozenset(owner[index] for index in chain) - views for chain in chains) - {frozenset()}


def _groups(layers: Sequence[Layer], chains: Chains, views: frozenset[int]) -> list[tuple[int, ...]]:
    """Chains that share a layer are one group; ordered by their last layers."""
    together = DisjointSets(place for place in range(len(layers)) if place not in views)
    for chain in chains:
        together.join(sorted(chain))
    return sorted((tuple(sorted(group)) for group in together.groups()), key=lambda group: group[-1])
