"""The probe plan of a campaign: which probes, for which layers, in which batches."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.network.assemble import index_bound
from harness.network.context import context_of
from harness.network.fusion_rules import FusionRule
from harness.network.key import LayerKey
from harness.network.layers import Layer
from harness.network.network import Network, TensorType
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.auxiliary import AuxiliaryKind, Layout
from harness.probe.batches import NODE_BYTES, SESSION_BYTES, Batch, Visits, batched, pools
from harness.probe.calibration import calibration_probes
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe import Probe, can_stack, layer_probe, null_probe, reference_probe, stack_probe
from harness.probe.producer import producers_of

STACK_COPIES = (1, 2, 4)


@dataclass(frozen=True)
class CutNetwork:
    """A network with the layers it was cut into and the tensors the device keeps in a private layout.

    `runtime_graph` is the graph that the device reports, None if it reports none; `chains` and `windows` come from
    `plan_chains`.
    """

    network: Network
    layers: tuple[Layer, ...]
    blocked: frozenset[str]
    runtime_graph: RuntimeGraph | None = None
    chains: tuple[ChainProbes, ...] = ()
    windows: tuple[Probe, ...] = ()


@dataclass(frozen=True)
class LayerProbes:
    """The probes that tell the latency of one layer in one context, by their ids.

    `stacks` hold as many copies of the layer as STACK_COPIES says; there are none where it cannot follow itself.
    `networks` name those that have the layer, by the beginning of their files' hashes.
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


@dataclass(frozen=True)
class ProbePlan:
    """All probes of a campaign, and the batches in which they are visited.

    `weights` say how many times a probe's total enters an estimate of the networks; those that serve as a check or for
    another estimator are not in it.
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
        """How many times a probe's total enters an estimate; all alike where the plan does not say."""
        return self.weights.get(probe, 0.0) if self.weights else 1.0

    @property
    def id(self) -> str:
        """Hash over what is measured; campaigns of the same plan can be resumed."""
        return hashlib.sha256(repr((sorted(self.probes), self.batches)).encode()).hexdigest()[:16]


def plan_probes(
    networks: Sequence[CutNetwork],
    rules: Sequence[FusionRule],
    auxiliary: AuxiliaryKind,
    cache_bytes: int | None = None,
) -> ProbePlan:
    """Probes for every layer of the networks and for the overhead, equal ones once.

    `cache_bytes` is the cache of a core of the device, None where times do not depend on caches: then all are visited
    cold, equal ones once. Else each network's probes are visited together, those that another network has, too,
    so that caches are as warm or cold as in that network, and what is compared with them is visited warm.
    """
    plans = [_plan_network(cut, auxiliary) for cut in networks]
    reference = reference_probe()
    largest = max(max(cut.network.input_bytes, cut.network.output_bytes) for cut in networks)
    calibration = tuple({probe.id: probe for probe in calibration_probes(auxiliary, largest)}.values())
    alone: Visits = "cold" if cache_bytes is None else "warm"
    batches = [Batch(tuple(probe.id for probe in calibration), alone)]
    seen: set[str] = set()
    for cut, plan in zip(networks, plans, strict=True):
        if cache_bytes is None:
            batches.extend(batched(_fresh(seen, [one for group, _ in plan.in_context for one in group]), "cold"))
        else:
            batches.extend(_visited_as_in(cut, plan, cache_bytes))
        batches.extend(batched(_fresh(seen, cut.windows), "cold"))
        batches.extend(batched(_fresh(seen, plan.alone), alone))
        batches.extend(batched(_fresh(seen, plan.stacks), "cold"))
    probes = {probe.id: probe for probe in (reference, *calibration)}
    probes.update((probe.id, probe) for plan in plans for probe in plan.probes)
    probes.update((probe.id, probe) for cut in networks for probe in cut.windows)
    weights = Counter(probe for plan in plans for probe in plan.entering.elements())
    weights.update(
        name
        for cut in networks
        for chain in cut.chains
        for name in (chain.alone, chain.alone_null, chain.meeting, chain.meeting_null)
        if name
    )
    weights.update(probe.id for probe in calibration)  # the overhead is in every estimate
    return ProbePlan(
        probes, _merged(plans), tuple(batches), reference.id, tuple(rules), auxiliary,
        {probe: float(count) for probe, count in weights.items()},
        tuple(chain for cut in networks for chain in cut.chains),
    )  # fmt: skip


def _merged(plans: Sequence[_NetworkPlan]) -> tuple[LayerProbes, ...]:
    """The layers of all networks, each place once with the probes of the first network that has it."""
    merged: dict[tuple[LayerKey, str], LayerProbes] = {}
    for layer in (layer for plan in plans for layer in plan.layers):
        known = merged.setdefault((layer.key, layer.context), replace(layer, networks=()))
        merged[layer.key, layer.context] = replace(known, networks=(*known.networks, *layer.networks))
    return tuple(merged.values())


@dataclass(frozen=True)
class _NetworkPlan:
    """One network's probes: those in context by layer with how often it occurs, the layers alone, and stacks.

    `entering` counts how often a probe's total enters the sum of the network's layers.
    """

    layers: tuple[LayerProbes, ...]
    in_context: tuple[tuple[tuple[Probe, ...], int], ...]
    alone: tuple[Probe, ...]
    stacks: tuple[Probe, ...]
    entering: Counter[str]

    @property
    def probes(self) -> Iterator[Probe]:
        """All of them."""
        yield from (probe for group, _ in self.in_context for probe in group)
        yield from (*self.alone, *self.stacks)


def _plan_network(cut: CutNetwork, auxiliary: AuxiliaryKind) -> _NetworkPlan:
    places: dict[tuple[LayerKey, str], list[Layer]] = {}
    for layer in cut.layers:
        places.setdefault((layer.key, context_of(cut.network, layer)), []).append(layer)
    layers: list[LayerProbes] = []
    in_context: list[tuple[tuple[Probe, ...], int]] = []
    alone: list[Probe] = []
    stacks: list[Probe] = []
    entering: Counter[str] = Counter()
    for (key, context), same in places.items():
        layer = same[0]
        whole, without, within, null = _layer_probes(cut, layer, auxiliary)
        repeated = _stacks(cut, layer, auxiliary)
        ids = tuple(probe.id for probe in repeated)
        layers.append(
            LayerProbes(
                key,
                context,
                layer.op,
                layer.name,
                whole.id,
                without.id,
                within.id,
                null.id,
                ids,
                (cut.network.sha256[:8],),
            )
        )
        in_context.append(((within, null), len(same)))
        alone += [whole, without]
        stacks += repeated
        entering.update({within.id: len(same), null.id: len(same)})
    return _NetworkPlan(tuple(layers), tuple(in_context), tuple(alone), tuple(stacks), entering)


def _visited_as_in(cut: CutNetwork, plan: _NetworkPlan, cache_bytes: int) -> Iterator[Batch]:
    weight_bytes = sum(kind.bytes for kind in _weights_of(cut.network))
    network_bytes = weight_bytes + SESSION_BYTES + NODE_BYTES * len(cut.layers)
    if network_bytes <= cache_bytes:
        yield from batched(_fresh(set(), [probe for group, _ in plan.in_context for probe in group]), "warm")
    else:
        yield from pools(plan.in_context, network_bytes)


def _weights_of(network: Network) -> list[TensorType]:
    """Types of the constants that its nodes read, each once."""
    read = dict.fromkeys(name for node in network.nodes for name in node.inputs if name in network.constants)
    return [network.constants[name].type for name in read]


def _fresh(seen: set[str], probes: Sequence[Probe]) -> list[Probe]:
    """Those that were not seen before, each once; they are seen then."""
    fresh = {probe.id: probe for probe in probes if probe.id not in seen}
    seen.update(fresh)
    return list(fresh.values())


def _layer_probes(cut: CutNetwork, layer: Layer, auxiliary: AuxiliaryKind) -> tuple[Probe, Probe, Probe, Probe]:
    network, inputs, result = cut.network, layer.graph.inputs, layer.graph.outputs[0]
    producers = producers_of(network, layer, cut.blocked)
    layout = _layout_of(cut, layer)
    types = [network.types[name] for name in inputs]
    bounds = [index_bound(network, name) for name in inputs]
    by_itself: Layout = "plain" if layout == "plain" else "outside"
    in_front: list[Layout] = ["private" if producer == "convolution" else "plain" for producer in producers]
    return (
        layer_probe(network, layer, ["outside" for _ in inputs], auxiliary, "layer", layout),
        null_probe([network.types[result]], ["outside"], auxiliary, network.opset, "auxiliary", layouts=[by_itself]),
        layer_probe(network, layer, producers, auxiliary, "context", layout),
        null_probe(types, producers, auxiliary, network.opset, "null", bounds, in_front),
    )


def _stacks(cut: CutNetwork, layer: Layer, auxiliary: AuxiliaryKind) -> tuple[Probe, ...]:
    if not can_stack(cut.network, layer):
        return ()
    (producer,) = producers_of(cut.network, layer, cut.blocked)
    layout = _layout_of(cut, layer)
    return tuple(stack_probe(cut.network, layer, producer, auxiliary, copies, layout) for copies in STACK_COPIES)


def _layout_of(cut: CutNetwork, layer: Layer) -> Layout:
    return "private" if layer.graph.outputs[0] in cut.blocked else "plain"
