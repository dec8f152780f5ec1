"""Pair probes: two neighbouring groups of operators, apart and together, which show whether a device fuses them.

If a device does not report its fusion, `T(first) + T(second) - T(both) - T(between)` is the time that the two groups
save together. All four probes have the same producers and auxiliary layers, so that everything but the operators
cancels:

- `first`: producers, the first group, an auxiliary layer on its result;
- `second`: a producer in place of the first group, the second group, an auxiliary layer;
- `both`: producers, both groups, an auxiliary layer;
- `between`: the producer in place of the first group with an auxiliary layer.

`first_inputs` and `second_inputs` are the parts of `first` and `second` besides the group. They give the group's own
time, to which a saving is compared.

The producer in place of the first group writes one layout while that group may write another. A reorder that is omitted
if both groups are together looks like a saving. So pairs with a picture between them are probed with two producers, one
for each layout: at least one of the two savings has no reorder in it. A fusion is found only if both savings show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.network.assemble import ModelBuilder
from harness.network.fusion_candidates import NodePair
from harness.network.key import Subgraph, canonical
from harness.probe.auxiliary import AuxiliaryKind, Layout, attach
from harness.probe.batches import batched_groups
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, finish, reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.probe.producer import ProducerKind, produce_as, producer_of


@dataclass(frozen=True)
class PairProbes:
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

    A device with its own memory gets only convolutions: behind a layer that only loads data it hides the computation of
    the next layer, and a saving with it.
    """
    kind = pair.network.types[pair.between]
    if kind.dtype != "float32" or len(kind.shape) != 4:
        return ("abs",)
    return ("convolution",) if auxiliary.layer.device_memory else ("convolution", "abs")


def plan_pairs(
    pairs: Sequence[tuple[NodePair, ProducerKind]], auxiliary: AuxiliaryKind
) -> tuple[ProbePlan, tuple[PairProbes, ...]]:
    """Return the distinct probes of these pairs; new probes of one pair are in one batch."""
    reference = reference_probe()
    probes: dict[str, Probe] = {reference.id: reference}
    planned, groups = [], []
    for pair, producer in pairs:
        built = _Pair(pair, producer, auxiliary).probes()
        fresh = {probe.id: probe for probe in built.values() if probe.id not in probes}
        probes.update(fresh)
        groups.append(tuple(fresh.values()))
        ids = {name: probe.id for name, probe in built.items()}
        planned.append(PairProbes(pair.pattern, pair.shape, producer, **ids))
    batches = tuple(batched_groups(groups))
    return ProbePlan(probes, (), batches, reference.id, (), auxiliary), tuple(planned)


class _Pair:
    """Builds the probes of a pair.

    Each input of a group, except its first, has an auxiliary layer of its own in the probes with and without that
    group, so that both sides of the subtraction have the same number of auxiliary layers.
    """

    def __init__(self, pair: NodePair, producer: ProducerKind, auxiliary: AuxiliaryKind) -> None:
        self._network, self._between, self._auxiliary = pair.network, pair.between, auxiliary
        self._label = f"{pair.pattern} {pair.shape} {producer}"
        self._between_producer = producer
        self._first = canonical(pair.network, pair.first, [pair.between])
        self._second = canonical(pair.network, pair.second, [pair.result])
        nodes = (*self._first.nodes, *self._second.nodes)
        inputs = tuple(dict.fromkeys((*self._first.inputs, *self._others())))
        self._both = Subgraph(nodes, inputs, (pair.result,))

    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in self._second.inputs if name != self._between)

    def probes(self) -> Mapping[str, Probe]:
        """Return all six probes by the names of `PairProbes`."""
        own, others = self._first.inputs, self._others()
        shared = [name for name in others if name in own]
        beside_both = [*own[1:], *(name for name in others if name not in own)]
        return {
            "first": self._probe("first", self._first, own[1:]),
            "second": self._probe("second", self._second, others),
            "both": self._probe("both", self._both, beside_both),
            "between": self._null("between", [self._between, *shared]),
            "first_inputs": self._null("inputs of first", own),
            "second_inputs": self._null("inputs of second", [self._between, *others]),
        }

    def _probe(self, what: str, graph: Subgraph, watched: Sequence[str]) -> Probe:
        """Return producers, the group, and auxiliary layers on its result and on the inputs `watched`."""
        builder = ModelBuilder(self._network.opset)
        bound = {name: self._produce(builder, name) for name in graph.inputs}
        names = builder.subgraph(self._network, graph.nodes, bound)
        plain = graph.outputs[0] == self._between and self._producer(self._between) != "convolution"
        result, terms = attach(builder, names[graph.outputs[0]], self._auxiliary, "plain" if plain else "outside")
        return self._finish(what, builder, [result], terms, [(name, bound[name]) for name in watched])

    def _null(self, what: str, tensors: Sequence[str]) -> Probe:
        builder = ModelBuilder(self._network.opset)
        bound = [(name, self._produce(builder, name)) for name in tensors]
        return self._finish(what, builder, [], OverheadTerms(), bound)

    def _finish(
        self,
        what: str,
        builder: ModelBuilder,
        results: list[str],
        terms: OverheadTerms,
        watched: Sequence[tuple[str, str]],
    ) -> Probe:
        for name, tensor in watched:
            layout: Layout = "outside" if self._producer(name) == "convolution" else "plain"
            result, added = attach(builder, tensor, self._auxiliary, layout)
            results.append(result)
            terms += added
        return finish("pair", f"{self._label}: {what}", builder.build(results), terms, self._auxiliary)

    def _produce(self, builder: ModelBuilder, tensor: str) -> str:
        return produce_as(self._producer(tensor), builder, self._network, tensor)

    def _producer(self, tensor: str) -> ProducerKind:
        return self._between_producer if tensor == self._between else producer_of(self._network, tensor)
