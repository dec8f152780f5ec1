"""Pair probes: two neighbouring groups of operators apart and together, to find out whether a device fuses them.

A device that does not tell what it fuses gives it away by time: `T(first) + T(second) - T(both) - T(neither)` is
what the two save together. All four hold the same producers and auxiliary layers, so that everything but the
operators cancels exactly:

- `first`: producers, the first group, an auxiliary layer on its result;
- `second`: a producer in place of the first group, the second group, an auxiliary layer;
- `both`: producers, both groups, an auxiliary layer;
- `between`: the producer in place of the first group with an auxiliary layer.

`first_inputs` and `second_inputs` are what `first` and `second` hold besides the group: they tell its own time,
against which a saving counts.

What stands in for the first group writes one layout while that group may write another, and a reorder that is
left out where both stand together looks like a saving. So pairs that hand over a picture are probed by two
hand-overs, one of each layout: of the two savings one at least is free of reorders. Both must speak for
fusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.network.assemble import ModelBuilder, index_bound
from harness.network.fusion_candidates import NodePair
from harness.network.key import Subgraph, canonical
from harness.probe.auxiliary import AuxiliaryKind, Layout, attach
from harness.probe.batches import MAX_BATCH_LOADS, MAX_BATCH_WEIGHT_BYTES, Batch
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, finish, reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.probe.producer import ProducerKind, produce


@dataclass(frozen=True)
class PairProbes:
    """The probes of one pair in one shape and with one hand-over, by their ids."""

    pattern: str
    shape: str
    hand_over: ProducerKind
    first: str
    second: str
    both: str
    between: str
    first_inputs: str
    second_inputs: str


def hand_overs(pair: NodePair, auxiliary: AuxiliaryKind) -> tuple[ProducerKind, ...]:
    """What may stand in for the first group, the likelier first.

    Only convolutions where the device works beside its host: behind a layer that does nothing but fetch, it hides
    the computing of the next one, and a saving with it.
    """
    kind = pair.network.types[pair.between]
    if kind.dtype != "float32" or len(kind.shape) != 4:
        return ("abs",)
    return ("convolution",) if auxiliary.layer.device_memory else ("convolution", "abs")


def plan_pairs(
    pairs: Sequence[tuple[NodePair, ProducerKind]], auxiliary: AuxiliaryKind
) -> tuple[ProbePlan, tuple[PairProbes, ...]]:
    """The probes of these pairs, equal ones once, those of one pair in one batch where they are not shared."""
    reference = reference_probe()
    probes: dict[str, Probe] = {reference.id: reference}
    planned, batches = [], _Batches()
    for pair, hand_over in pairs:
        built = _Pair(pair, hand_over, auxiliary).probes()
        fresh = {probe.id: probe for probe in built.values() if probe.id not in probes}
        probes.update(fresh)
        batches.add(list(fresh.values()))
        ids = {name: probe.id for name, probe in built.items()}
        planned.append(PairProbes(pair.pattern, pair.shape, hand_over, **ids))
    return ProbePlan(probes, (), batches.all(), reference.id, (), auxiliary), tuple(planned)


class _Batches:
    def __init__(self) -> None:
        self._batches: list[list[str]] = [[]]
        self._weight_bytes = 0

    def add(self, probes: Sequence[Probe]) -> None:
        size = sum(probe.model.weight_bytes for probe in probes)
        full = len(self._batches[-1]) + len(probes) > MAX_BATCH_LOADS
        if self._batches[-1] and (full or self._weight_bytes + size > MAX_BATCH_WEIGHT_BYTES):
            self._batches.append([])
            self._weight_bytes = 0
        self._batches[-1].extend(probe.id for probe in probes)
        self._weight_bytes += size

    def all(self) -> tuple[Batch, ...]:
        return tuple(Batch(tuple(batch)) for batch in self._batches if batch)


class _Pair:
    """Builds the probes of a pair.

    Every input of a group but its first has an auxiliary layer of its own wherever that group is read or left
    out, so that the counts of auxiliary layers are alike on both sides of the subtraction.
    """

    def __init__(self, pair: NodePair, hand_over: ProducerKind, auxiliary: AuxiliaryKind) -> None:
        self._network, self._between, self._auxiliary = pair.network, pair.between, auxiliary
        self._label = f"{pair.pattern} {pair.shape} {hand_over}"
        self._hand_over = hand_over
        self._first = canonical(pair.network, pair.first, [pair.between])
        self._second = canonical(pair.network, pair.second, [pair.result])
        nodes = (*self._first.nodes, *self._second.nodes)
        inputs = tuple(dict.fromkeys((*self._first.inputs, *self._others())))
        self._both = Subgraph(nodes, inputs, (pair.result,))

    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in self._second.inputs if name != self._between)

    def probes(self) -> Mapping[str, Probe]:
        """All six by the names of `PairProbes`."""
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
        """Producers, the group, an auxiliary layer on its result and on the inputs `watched`."""
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
        kind = self._network.types[tensor]
        return produce(builder, kind, self._producer(tensor), index_bound(self._network, tensor))

    def _producer(self, tensor: str) -> ProducerKind:
        kind = self._network.types[tensor]
        if tensor == self._between:
            return self._hand_over
        if tensor in self._network.inputs or index_bound(self._network, tensor) is not None:
            return "outside"
        return "convolution" if len(kind.shape) == 4 and kind.dtype == "float32" else "abs"
