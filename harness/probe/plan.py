"""The probe plan of a campaign: which probes, for which layers, in which batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.network.assemble import index_bound
from harness.network.fusion import FusionRule
from harness.network.graph import Network
from harness.network.key import LayerKey
from harness.network.layers import Layer
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.calibration import calibration_probes
from harness.probe.probe import Probe, layer_probe, null_probe, reference_probe
from harness.probe.producer import producers_of

MAX_BATCH_PROBES = 256
MAX_BATCH_WEIGHT_BYTES = 1 << 30
_VISITED_TOGETHER = (("context", "null"), ("layer", "auxiliary"))


@dataclass(frozen=True)
class CutNetwork:
    """A network with the layers it was cut into and the tensors the device keeps in a private layout."""

    network: Network
    layers: tuple[Layer, ...]
    blocked: frozenset[str]


@dataclass(frozen=True)
class LayerProbes:
    """The probes that tell the latency of one layer in one context, by their ids."""

    key: LayerKey
    context: str
    op: str
    name: str
    layer: str
    auxiliary: str
    in_context: str
    null: str


@dataclass(frozen=True)
class ProbePlan:
    """All probes of a campaign; those of one batch are loaded and visited together."""

    probes: Mapping[str, Probe]
    layers: tuple[LayerProbes, ...]
    batches: tuple[tuple[str, ...], ...]
    reference: str
    rules: tuple[FusionRule, ...]
    auxiliary: AuxiliaryKind

    @property
    def id(self) -> str:
        """Hash over what is measured; campaigns of the same plan can be resumed."""
        return hashlib.sha256(repr((sorted(self.probes), self.batches)).encode()).hexdigest()[:16]


def context_of(network: Network, layer: Layer) -> str:
    """Where each input of the layer comes from: `outside` or `chip`, in the key's order."""
    return ",".join("outside" if name in network.inputs else "chip" for name in layer.graph.inputs)


def plan_probes(networks: Sequence[CutNetwork], rules: Sequence[FusionRule], auxiliary: AuxiliaryKind) -> ProbePlan:
    """Probes for every layer of the networks and for the overhead, equal ones once.

    One network's probes are visited together, every weight of it once among them, so that caches are as warm
    or cold as in that network.
    """
    reference = reference_probe()
    largest = max(max(cut.network.input_bytes, cut.network.output_bytes) for cut in networks)
    calibration = calibration_probes(auxiliary, largest)
    probes = {probe.id: probe for probe in (reference, *calibration)}
    batches = [tuple(dict.fromkeys(probe.id for probe in calibration))]
    layers: dict[tuple[LayerKey, str], LayerProbes] = {}
    for cut in networks:
        added: list[Probe] = []
        for layer in cut.layers:
            place = (layer.key, context_of(cut.network, layer))
            if place not in layers:
                built = _layer_probes(cut, layer, auxiliary)
                added.extend(built)
                layers[place] = LayerProbes(*place, layer.op, layer.name, *(probe.id for probe in built))
        for roles in _VISITED_TOGETHER:
            fresh = {probe.id: probe for probe in added if probe.role in roles and probe.id not in probes}
            probes.update(fresh)
            batches.extend(_batches(tuple(fresh.values())))
    return ProbePlan(probes, tuple(layers.values()), tuple(batches), reference.id, tuple(rules), auxiliary)


def _layer_probes(cut: CutNetwork, layer: Layer, auxiliary: AuxiliaryKind) -> tuple[Probe, Probe, Probe, Probe]:
    network, inputs, result = cut.network, layer.graph.inputs, layer.graph.outputs[0]
    producers = producers_of(network, layer, cut.blocked)
    plain = result not in cut.blocked
    types = [network.types[name] for name in inputs]
    bounds = [index_bound(network, name) for name in inputs]
    layouts = [producer != "convolution" for producer in producers]
    return (
        layer_probe(network, layer, ["outside" for _ in inputs], auxiliary, "layer", plain),
        null_probe([network.types[result]], ["outside"], auxiliary, network.opset, "auxiliary", plain=[plain]),
        layer_probe(network, layer, producers, auxiliary, "context", plain),
        null_probe(types, producers, auxiliary, network.opset, "null", bounds, layouts),
    )


def _batches(probes: Sequence[Probe]) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    weight_bytes = 0
    for probe in probes:
        size = probe.model.weight_bytes
        if batch and (len(batch) >= MAX_BATCH_PROBES or weight_bytes + size > MAX_BATCH_WEIGHT_BYTES):
            yield tuple(batch)
            batch, weight_bytes = [], 0
        batch.append(probe.id)
        weight_bytes += size
    if batch:
        yield tuple(batch)
