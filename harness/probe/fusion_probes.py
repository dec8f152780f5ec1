"""Pair probes: two neighbouring groups of operators, apart and together, which show whether a device fuses them.

`T(first) + T(second) - T(both) - T(between)` is the time that the two groups save together. All these probes have the
same producers and auxiliary layers, so that everything but the operators cancels. `second` has a producer in place of
the first group, and `between` has only this producer. `first_inputs` and `second_inputs` are `first` and `second`
without the group: they give the group's own time, to which a saving is compared.

The producer in place of the first group writes one layout while that group may write another. A reorder that is omitted
if both groups are together looks like a saving. So pairs with a picture between them are probed with two producers, one
for each layout: at least one of the two savings has no reorder in it. A fusion is found only if both savings show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.network.assemble import ModelBuilder
from harness.network.fusion.fusion_candidates import NodePair
from harness.network.key import Subgraph, canonical
from harness.probe.auxiliary import AuxiliaryKind, Layout, attach_all
from harness.probe.batches import batched_groups
from harness.probe.probe import Probe, finish, reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.probe.producer import ProducerKind, produce_as, producer_of


@dataclass(frozen=True)
class FusionProbes:
    """Ids of the probes of one pair in one shape; `producer` is the producer in place of the first group."""

    pattern: str
    shape: str
    producer: ProducerKind
    first: str
    second: str
    both: str
    between: str
    first_inputs: str
    second_inputs: str


def pair_producers(pair: NodePair, auxiliary: AuxiliaryKind) -> tuple[ProducerKind, ...]:
    """Return the producers that may replace the first group, the likelier one first.

    A device with its own memory gets only convolutions: after a layer that only loads data it hides the computation of
    the next layer, and a saving with it.
    """
    kind = pair.network.types[pair.between]
    if kind.dtype != "float32" or len(kind.shape) != 4:
        return ("abs",)
    return ("convolution",) if auxiliary.layer.device_memory else ("convolution", "abs")


def plan_pairs(
    pairs: Sequence[tuple[NodePair, ProducerKind]], auxiliary: AuxiliaryKind
) -> tuple[ProbePlan, tuple[FusionProbes, ...]]:
    """Return the distinct probes of these pairs; new probes of one pair are in one batch."""
    reference = reference_probe()
    probes: dict[str, Probe] = {reference.id: reference}
    planned, groups = [], []
    for pair, producer in pairs:
        built = _PairBuilder(pair, producer, auxiliary).probes()
        fresh = {probe.id: probe for probe in built.values() if probe.id not in probes}
        probes.update(fresh)
        groups.append(tuple(fresh.values()))
        ids = {name: probe.id for name, probe in built.items()}
        planned.append(FusionProbes(pair.pattern, pair.shape, producer, **ids))
    batches = tuple(batched_groups(groups))
    return ProbePlan(probes, (), batches, reference.id, (), auxiliary), tuple(planned)


@dataclass(frozen=True)
class _PairBuilder:
    """Builds the probes of a pair.

    Each input of a group, except its first, has its own auxiliary layer in the probes with and without that group. So
    both sides of the subtraction have the same number of auxiliary layers.
    """

    pair: NodePair
    producer: ProducerKind
    auxiliary: AuxiliaryKind

    def probes(self) -> Mapping[str, Probe]:
        """Return all six probes by the names of `FusionProbes`."""
        network, between = self.pair.network, self.pair.between
        first = canonical(network, self.pair.first, [between])
        second = canonical(network, self.pair.second, [self.pair.result])
        others = tuple(name for name in second.inputs if name != between)
        inputs = tuple(dict.fromkeys((*first.inputs, *others)))
        both = Subgraph((*first.nodes, *second.nodes), inputs, second.outputs)
        shared = [name for name in others if name in first.inputs]
        return {
            "first": self._probe("first", first.inputs[1:], first),
            "second": self._probe("second", others, second),
            "both": self._probe("both", inputs[1:], both),
            "between": self._probe("between", [between, *shared]),
            "first_inputs": self._probe("inputs of first", first.inputs),
            "second_inputs": self._probe("inputs of second", [between, *others]),
        }

    def _probe(self, what: str, watched: Sequence[str], graph: Subgraph | None = None) -> Probe:
        """Return producers, the group if there is one, and auxiliary layers on its result and on inputs (`watched`)."""
        network, between = self.pair.network, self.pair.between

        def producer(name: str) -> ProducerKind:
            return self.producer if name == between else producer_of(network, name)

        def layout(name: str) -> Layout:
            return "outside" if producer(name) == "convolution" else "plain"

        builder = ModelBuilder(network.opset)
        read = graph.inputs if graph else watched
        bound = {name: produce_as(producer(name), builder, network, name) for name in read}
        attached = [(bound[name], layout(name)) for name in watched]
        if graph:
            (written,) = graph.outputs
            written_layout = layout(written) if written == between else "outside"
            attached.insert(0, (builder.subgraph(network, graph.nodes, bound)[written], written_layout))
        results, terms = attach_all(builder, attached, self.auxiliary)
        label = f"{self.pair.pattern} {self.pair.shape} {self.producer}: {what}"
        return finish("pair", label, builder.build(results), terms, self.auxiliary)
