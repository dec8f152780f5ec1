"""The probe plan of a campaign: its probes, the layers that they measure, and the batches of visits."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.network.fusion.fusion_rules import FusionRule
from harness.network.input_integers import integer_range
from harness.network.key import LayerKey
from harness.network.layers import Layer, context_of
from harness.network.network import Network, Node
from harness.network.operator_kinds import WINDOWED
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.auxiliary import DEFAULT_AUXILIARY, AuxiliaryKind, Layout
from harness.probe.batches import NODE_BYTES, SESSION_BYTES, Batch, Visits, batched, pools
from harness.probe.calibration import calibration_probes
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe import Probe, can_stack, layer_probe, null_probe, reference_probe, stack_probe, visited_warm
from harness.probe.producer import ProducerKind, left_standing, producer_of, producers_of, reading_little

STACK_COPIES = (1, 2, 4)
HOT_RUNS = 3
_Place = tuple[LayerKey, str]
"""A layer's key and its context."""


@dataclass(frozen=True)
class CutNetwork:
    """A network, its layers, and the tensors that the device keeps in a private layout.

    `runtime_graph` is the graph that the device reports, None if it reports none; `chains` and `windows` come from
    `plan_chains`. `is_warm` sets whether layers of a space find their weights in the caches; it is None for the layers
    of a network, whose size decides.
    """

    network: Network
    layers: tuple[Layer, ...]
    blocked: frozenset[str]
    runtime_graph: RuntimeGraph | None = None
    chains: tuple[ChainProbes, ...] = ()
    windows: tuple[Probe, ...] = ()
    is_warm: bool | None = None

    def runs_warm(self, cache_bytes: int) -> bool:
        """Return whether the layers find their weights in the caches of a core, each of this size."""
        return self.network.runs_from_caches(cache_bytes) if self.is_warm is None else self.is_warm

    def layout_of(self, tensor: str) -> Layout:
        """Return the layout in which the device keeps a tensor inside the network."""
        return "private" if tensor in self.blocked else "plain"

    def producers_of(self, tensors: Sequence[str], nodes: Sequence[Node]) -> dict[str, ProducerKind]:
        """Return the producers of the tensors that nodes read, in this order."""
        network = self.network
        found = dict(zip(tensors, producers_of(network, tensors, nodes, self.blocked), strict=True))
        if self.runtime_graph is not None and self.runtime_graph.merges_maps:
            exposed = {name for node in nodes if node.op not in WINDOWED for name in node.inputs} & found.keys()
            found |= {name: left_standing(found[name], network.types[name]) for name in exposed}
        return found

    def layouts_in_front(self, tensors: Iterable[str], auxiliary: AuxiliaryKind) -> dict[str, Layout]:
        """Return those of the tensors that layers read which a null probe has, each with its layout there.

        Inputs of the network are in the overhead: a null probe has one of them only if it would have nothing else. It
        is not reordered there: only a layer that reads it may do that.
        """
        layouts = {name: self._layout_in_front(name, auxiliary) for name in tensors}
        written = [name for name, layout in layouts.items() if layout != "unread"]
        return {name: layouts[name] for name in written or itertools.islice(layouts, 1)}

    def _layout_in_front(self, tensor: str, auxiliary: AuxiliaryKind) -> Layout:
        if tensor in self.network.inputs and not auxiliary.layer.device_memory:
            return "unread"
        return "private" if producer_of(self.network, tensor, self.blocked) == "convolution" else "plain"


@dataclass(frozen=True)
class LayerProbes:
    """The probes that measure one layer in one context, by their ids.

    If the device reports that a layer takes no time, the probes without a layer replace its own: its probe would also
    measure what reading its parts costs, which belongs to their readers. `stacks` are stacks of STACK_COPIES copies of
    the layer, empty if it cannot follow itself. `networks` are the networks that have the layer, by the first digits of
    their files' hashes; a space is none.
    """

    key: LayerKey
    context: str
    op: str
    name: str
    layer: str
    auxiliary: str
    in_context: str
    null: str
    stacks: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def is_view(self) -> bool:
        """Return whether the device reports that the layer takes no time."""
        return bool(self.null) and self.in_context == self.null


@dataclass(frozen=True)
class ProbePlan:
    """All probes of a campaign, and the batches in which they are visited.

    `weights` are the numbers of times that a probe's total enters an estimate of the networks. Probes that only check
    others, or serve another estimator, are not in it.
    """

    probes: Mapping[str, Probe]
    layers: tuple[LayerProbes, ...]
    batches: tuple[Batch, ...]
    reference: str
    rules: tuple[FusionRule, ...]
    auxiliary: AuxiliaryKind
    weights: Mapping[str, float] = field(default_factory=dict)
    chains: tuple[ChainProbes, ...] = ()

    def weight(self, probe: str) -> float:
        """Return how many times a probe's total enters an estimate; 1 for all probes if the plan has no weights."""
        return self.weights.get(probe, 0.0) if self.weights else 1.0

    @property
    def id(self) -> str:
        """Hash of what is measured; a campaign with the same plan can be resumed."""
        return hashlib.sha256(repr((sorted(self.probes), self.batches)).encode()).hexdigest()[:16]


def plan_alone(probe: Probe, runs: int) -> ProbePlan:
    """Return the plan of a single probe, with so many runs in each visit."""
    batch = Batch((probe.id,), "warm", runs)
    return ProbePlan({probe.id: probe}, (), (batch,), probe.id, (), DEFAULT_AUXILIARY)


def plan_probes(
    networks: Sequence[CutNetwork],
    rules: Sequence[FusionRule],
    auxiliary: AuxiliaryKind,
    cache_bytes: int | None = None,
) -> ProbePlan:
    """Return the distinct probes for every layer of the networks and for the overhead.

    `cache_bytes` is the size of a core's cache, None if the device's latency does not depend on caches: then all probes
    are visited cold, each once. Otherwise the probes of each network are visited together, including those that it
    shares with another, so that caches are in the same state as in that network. The probes that they are compared with
    are visited warm. The probe of a layer in a context returns its result if all networks return it in all places: a
    result that one of them keeps may have another layout.
    """
    occurrences = [_occurrences(cut) for cut in networks]
    kept = {
        place
        for cut, layers_of in zip(networks, occurrences, strict=True)
        for place, layers in layers_of.items()
        if any(layer.graph.outputs[0] not in cut.network.outputs for layer in layers)
    }
    plans = [
        _plan_network(cut, layers_of, kept, auxiliary, cache_bytes is not None and cut.runs_warm(cache_bytes))
        for cut, layers_of in zip(networks, occurrences, strict=True)
    ]
    reference = reference_probe()
    largest = max(max(cut.network.input_bytes, cut.network.output_bytes) for cut in networks)
    planned = [*itertools.chain(*(plan.probes for plan in plans), *(cut.windows for cut in networks))]
    nulls = calibration_probes(auxiliary, largest, (probe.terms for probe in planned))
    calibration = tuple({probe.id: probe for probe in nulls}.values())
    probes = {probe.id: probe for probe in (reference, *calibration, *planned)}
    chains = tuple(chain for cut in networks for chain in cut.chains)
    windows = (name for one in chains for name in (one.alone, one.alone_null, one.meeting, one.meeting_null) if name)
    weights = Counter((*windows, *(probe.id for probe in calibration)))  # the overhead is in every estimate
    for group, count in (counted for plan in plans for counted in plan.in_context):
        weights.update({probe.id: count for probe in group})
    return ProbePlan(
        probes=probes,
        layers=_merged([*(plan for plan in plans if not plan.warm), *(plan for plan in plans if plan.warm)]),
        batches=tuple(_batches(networks, plans, calibration, cache_bytes)),
        reference=reference.id,
        rules=tuple(rules),
        auxiliary=auxiliary,
        weights={probe: float(count) for probe, count in weights.items()},
        chains=chains,
    )


def _batches(
    networks: Sequence[CutNetwork], plans: Sequence[_NetworkPlan], calibration: Sequence[Probe], cache_bytes: int | None
) -> Iterator[Batch]:
    alone: Visits = "cold" if cache_bytes is None else "warm"
    yield Batch(tuple(probe.id for probe in calibration), alone)
    seen: set[str] = set()
    for cut, plan in zip(networks, plans, strict=True):
        weight_bytes = cut.network.constant_bytes(cut.network.nodes)
        network_bytes = weight_bytes + SESSION_BYTES + NODE_BYTES * len(cut.layers)
        if cache_bytes is None:
            yield from batched(_fresh(seen, plan.probes_in_context), "cold")
            yield from batched(_fresh(seen, cut.windows), "cold")
        elif plan.warm:
            # Together, because a device is interrupted between batches, and short ones are colder.
            yield from _hot(batched(_fresh(set(), (*plan.probes_in_context, *cut.windows)), "warm"))
        else:
            yield from pools(plan.in_context, network_bytes)
            for tiling in _tilings(cut):
                yield from pools([(window, 1) for window in tiling], network_bytes)
        yield from batched(_fresh(seen, plan.alone), alone)
        yield from batched(_fresh(seen, plan.stacks), "cold")


def _tilings(cut: CutNetwork) -> Iterator[list[tuple[Probe, ...]]]:
    """Yield sets of windows for one pool each, which holds every layer at most once, as the network does.

    The two long windows of a network of 4 to 8 groups overlap, and their pool holds the layers of two groups twice.
    """
    probes = {probe.id: probe for probe in cut.windows}
    alone = [(one.alone, one.alone_null) for one in cut.chains]
    meeting = [(one.meeting, one.meeting_null) for one in cut.chains]
    checks = [(one.check, one.check_null) for one in cut.chains]
    across = [(one.across, one.across_null) for one in cut.chains if one.across]
    for tiling in (alone, meeting[::2], meeting[1::2], checks, across[::2], across[1::2]):
        if any(window for window, _ in tiling):
            yield [(probes[window], probes[null]) for window, null in tiling if window]


def _hot(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches with several timed runs in a visit: one run after other probes does not refill the caches."""
    return (replace(batch, runs=HOT_RUNS) for batch in batches)


def _merged(plans: Sequence[_NetworkPlan]) -> tuple[LayerProbes, ...]:
    """Return the layers of all networks, each context once, with the probes of the first plan that has it."""
    merged: dict[_Place, LayerProbes] = {}
    for layer in (layer for plan in plans for layer in plan.layers):
        known = merged.setdefault((layer.key, layer.context), replace(layer, networks=()))
        merged[layer.key, layer.context] = replace(known, networks=(*known.networks, *layer.networks))
    return tuple(merged.values())


@dataclass
class _NetworkPlan:
    """One network's probes: those in context with the number of times that the layer occurs, single layers, stacks.

    Those in context are visited warm if the network is.
    """

    warm: bool = False
    layers: list[LayerProbes] = field(default_factory=list)
    in_context: list[tuple[tuple[Probe, ...], int]] = field(default_factory=list)
    alone: list[Probe] = field(default_factory=list)
    stacks: list[Probe] = field(default_factory=list)

    @property
    def probes_in_context(self) -> tuple[Probe, ...]:
        return tuple(probe for group, _ in self.in_context for probe in group)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return (*self.probes_in_context, *self.alone, *self.stacks)


def _occurrences(cut: CutNetwork) -> dict[_Place, list[Layer]]:
    """Return the layers of a network by key and context."""
    found: dict[_Place, list[Layer]] = {}
    for layer in cut.layers:
        found.setdefault((layer.key, context_of(cut.network, layer)), []).append(layer)
    return found


def _plan_network(
    cut: CutNetwork,
    occurrences: Mapping[_Place, Sequence[Layer]],
    kept: Collection[_Place],
    auxiliary: AuxiliaryKind,
    warm: bool,
) -> _NetworkPlan:
    """Return the probes of a network; those of `kept` layers do not return their results."""
    plan = _NetworkPlan(warm)
    for (key, context), (layer, *others) in occurrences.items():
        returned = () if (key, context) in kept else cut.network.outputs
        probes, stacks = _layer_probes(cut, layer, auxiliary, returned)
        if cut.runtime_graph is not None and cut.runtime_graph.is_view(layer.graph.nodes):
            probes, stacks = probes | {"in_context": probes["null"], "layer": probes["auxiliary"]}, []
        if warm:
            probes.update((name, visited_warm(probes[name])) for name in ("in_context", "null"))
        ids = {name: probe.id for name, probe in probes.items()}
        copies = tuple(probe.id for probe in stacks)
        networks = (cut.network.sha256[:8],) if cut.is_warm is None else ()
        plan.layers.append(LayerProbes(key, context, layer.op, layer.name, **ids, stacks=copies, networks=networks))
        plan.in_context.append(((probes["in_context"], probes["null"]), 1 + len(others)))
        plan.alone += [probes["layer"], probes["auxiliary"]]
        plan.stacks += stacks
    return plan


def _fresh(seen: set[str], probes: Sequence[Probe]) -> list[Probe]:
    """Return the probes that are not in `seen`, each once, and add them to it."""
    fresh = {probe.id: probe for probe in probes if probe.id not in seen}
    seen.update(fresh)
    return list(fresh.values())


def _layer_probes(
    cut: CutNetwork, layer: Layer, auxiliary: AuxiliaryKind, returned: Collection[str]
) -> tuple[dict[str, Probe], list[Probe]]:
    """Return the probes of a layer by the names of `LayerProbes`, and its stacks."""
    network, inputs, result = cut.network, layer.graph.inputs, layer.graph.outputs[0]
    front = cut.producers_of(inputs, layer.graph.nodes)
    if auxiliary.layer.device_memory:
        front = {name: reading_little(one, network.types[name]) for name, one in front.items()}
    layout = cut.layout_of(result)
    by_itself: Layout = "outside" if result in cut.blocked else "plain"
    alone: list[ProducerKind] = ["outside" for _ in inputs]
    written = [network.types[result]]
    before = cut.layouts_in_front(inputs, auxiliary)
    probes = {
        "layer": layer_probe(network, layer, alone, auxiliary, "layer", layout),
        "auxiliary": null_probe(written, ["outside"], auxiliary, network.opset, "auxiliary", layouts=[by_itself]),
        "in_context": layer_probe(
            network, layer, [front[name] for name in inputs], auxiliary, "context", layout, returned
        ),
        "null": null_probe(
            [network.types[name] for name in before],
            [front[name] for name in before],
            auxiliary,
            network.opset,
            "null",
            [integer_range(network, name) for name in before],
            list(before.values()),
        ),
    }
    if not inputs:  # it makes its own data, such as random numbers
        probes["null"] = probes["auxiliary"]
    counts = STACK_COPIES if can_stack(network, layer) else ()
    return probes, [stack_probe(network, layer, front[inputs[0]], auxiliary, copies, layout) for copies in counts]
