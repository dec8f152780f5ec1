"""Chooses how to split the layers of a network over the cores of a group, by the formula of S2.6 (S2.7)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import PS_PER_NS, aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.regions import size_of
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.ordering.order import order, predicted_time_ps
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime
from device_agents.emulated_npu.compiler.planning.chains.chain import element_type
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.layout import ScratchpadLayout
from device_agents.emulated_npu.compiler.planning.chains.sampled_reads import with_sampled_reads
from device_agents.emulated_npu.compiler.planning.memory_places import buffer_bytes
from device_agents.emulated_npu.compiler.planning.off_chip.cache_places import place_by_traffic
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import (
    choose_spaces,
    is_cacheable,
    placeholders,
)
from device_agents.emulated_npu.compiler.planning.plan import WrittenChains
from device_agents.emulated_npu.compiler.planning.search.chain_keys import constant_key
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import decide, decide_by_each_assumption
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, core_speed, group_machines
from device_agents.emulated_npu.compiler.splitting.division import shared_layers
from device_agents.emulated_npu.compiler.splitting.layer_split import (
    SPLIT_KINDS,
    CannotSplit,
    LayerSplit,
    split_layer,
    unsplit,
)
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Item, Space

ONE, BEST = "one", "best"
"""Names of the candidate on one core, and of a network in which every layer has its best split."""
_APART_BYTES = 1 << 40
_CONSTANTS, _STORED = -1, -2
_SliceKey = tuple[int, bool, object]
"""A kind of core, whether the layer is split, and what distinguishes slices (`slice_key`)."""


@dataclass(frozen=True)
class SplitCandidate:
    """One way to split a layer, and the predicted time of the layer by itself, from memory to memory.

    `spaces` has the memories of the layer's values, if nothing else lies in the cache.
    """

    split: LayerSplit
    predicted_ps: int
    spaces: Mapping[str, Space]

    @property
    def name(self) -> str:
        """The kind of split; ONE if all of the layer runs on one core."""
        return self.split.kind or ONE


@dataclass(frozen=True)
class LayerChoice:
    """The ways to split a layer, the fastest first by prediction, and the reasons against other kinds of split."""

    layer: HardwareLayer
    candidates: tuple[SplitCandidate, ...]
    refused: Mapping[str, str]

    @property
    def best(self) -> SplitCandidate:
        """The candidate that is predicted to be fastest."""
        return self.candidates[0]

    def of_kind(self, name: str) -> SplitCandidate | None:
        """Return the candidate of a kind, or of ONE; None if there is none."""
        return next((one for one in self.candidates if one.name == name), None)

    @property
    def fallback(self) -> SplitCandidate:
        """The replacement for a kind that the layer does not have: all of it on one core, if it fits there."""
        return self.of_kind(ONE) or self.best


def choose_splits(
    graph: Graph, machines: Sequence[Machine], options: Options = DEFAULT, *, layers: Sequence[int] | None = None
) -> tuple[LayerChoice, ...]:
    """Return the ways to split every layer of a graph, or those listed by index, over the cores of a group.

    The machines are those of the cores, with the group's share of the memories. A core gets as much of a layer as its
    unit is fast. Raises DoesNotFit for a layer that fits in no way.
    """
    predictor = SplitPredictor(machines, options)
    wanted = range(len(graph.layers)) if layers is None else layers
    return tuple(_choice(graph.layers[place], graph, machines, predictor) for place in wanted)


def _choice(layer: HardwareLayer, graph: Graph, machines: Sequence[Machine], predictor: SplitPredictor) -> LayerChoice:
    found = [unsplit(layer)]
    refused: dict[str, str] = {}
    speeds = [core_speed(machine, layer.function) for machine in machines]
    for kind in SPLIT_KINDS if len(machines) > 1 else ():
        try:
            found.append(split_layer(layer, graph.values, kind, speeds))
        except CannotSplit as error:
            refused[kind] = error.why
    candidates: list[SplitCandidate] = []
    for split in found:
        spaces = _spaces_alone(split, graph, machines[0])
        try:
            candidates.append(SplitCandidate(split, predictor.predicted_ps(split, graph, spaces), spaces))
        except DoesNotFit as error:
            if split.kind is None and len(found) == 1:
                raise
            refused[split.kind or ONE] = f"{error.what}: {error.why}"
    if not candidates:
        raise DoesNotFit(f"{layer.name} does not fit on the cores in any way", "; ".join(refused.values()))
    return LayerChoice(layer, tuple(sorted(candidates, key=lambda one: one.predicted_ps)), refused)


def _spaces_alone(split: LayerSplit, graph: Graph, machine: Machine) -> Mapping[str, Space]:
    """Return the memories of the values of a split layer that has the cache for itself.

    As in a program, values live throughout, or those that the layer computes in the phases that need them, if these do
    not fit side by side.
    """
    values = {**graph.values, **split.values}
    moved_bytes: Counter[str] = Counter()
    spans: dict[str, tuple[int, int]] = {}
    for phase, layer in ((phase, each) for phase, cores in enumerate(split.phases) for own in cores for each in own):
        spans.setdefault(layer.output.value, (phase, phase))
        (sampled,) = with_sampled_reads((layer,), values, machine)
        for view in (*sampled.reads, sampled.output):
            name = whole_value(view.value)
            item_bytes = element_type(values[name], machine).bytes
            moved_bytes[name] += math.prod(map(size_of, view.value_region)) * item_bytes
            if name in spans:
                spans[name] = spans[name][0], phase
    sizes = {name: buffer_bytes(values[name].shape, element_type(values[name], machine)) for name in moved_bytes}
    if sum(aligned(sizes[name]) for name in spans) <= machine.llc.bytes:
        spans = {}
    throughout = 0, len(split.phases) - 1
    lives = [
        Lifetime(name, size, *spans.get(name, throughout))
        for name, size in sizes.items()
        if is_cacheable(values[name], graph)
    ]
    cached, _ = place_by_traffic(lives, moved_bytes, dict.fromkeys(sizes, 0), {}, machine.llc.bytes, graph.cached)
    return {name: Space.LLC if name in cached else Space.DDR for name in sizes}


def placed_ps(
    chosen: Sequence[SplitCandidate],
    graph: Graph,
    machines: Sequence[Machine],
    options: Options,
    spaces: Mapping[str, Space],
) -> int:
    """Return the predicted time of all layers of a graph, one after the other, with values where `spaces` has them.

    Candidates are predicted with the cache for the values of their layer. A value that nobody reads has no place in a
    program, and counts where it was expected.
    """
    predictor = SplitPredictor(machines, options)
    total_ps = 0
    for one in chosen:
        places = {name: spaces.get(name, expected) for name, expected in one.spaces.items()}
        total_ps += one.predicted_ps if places == one.spaces else predictor.predicted_ps(one.split, graph, places)
    return total_ps


def chained_splits(
    choices: Sequence[LayerChoice], graph: Graph, machine: Machine, options: Options = DEFAULT
) -> Mapping[int, LayerSplit]:
    """Return by index the splits of a sequence of layers that are predicted to be fastest together.

    A split layer stores its output; layers that are not split may be chained with their neighbours.
    """
    layers = tuple(choice.layer for choice in choices)
    inside = {layer.index for layer in layers}
    outside = {view.value for layer in graph.layers if layer.index not in inside for view in layer.reads}
    part = replace(graph, layers=layers, shared=frozenset(outside))
    externals = placeholders(part, machine, choose_spaces(part, machine))
    planner = Planner(part, machine, options, externals)
    best: list[tuple[int, Mapping[int, LayerSplit]]] = [(0, {})]
    for end, choice in enumerate(choices, 1):
        before_ps, before = best[end - 1]
        found_ps, found = before_ps + choice.best.predicted_ps, {**before, choice.layer.index: choice.best.split}
        for start in planner.starts(end):
            chain_ps = planner.estimated_ps(start, end)
            if chain_ps is not None and best[start][0] + chain_ps < found_ps:
                found_ps, found = best[start][0] + chain_ps, dict(best[start][1])
        best.append((found_ps, found))
    return best[-1][1]


def predicted_splits(
    graph: Graph, machine: Machine, assignment: Assignment, options: Options
) -> Mapping[int, LayerSplit]:
    """Return by index the splits that are predicted to be fastest, for the layers of groups of several cores.

    Raises DoesNotFit for a layer that fits on its group in no way.
    """
    found: dict[int, LayerSplit] = {}
    machines = group_machines(machine, [group.cores for group in assignment.groups])
    for group, own in zip(assignment.groups, machines, strict=True):
        if len(group.cores) > 1:
            choices = choose_splits(graph, own, options, layers=group.layers)
            found.update(chained_splits(choices, graph, own[0], options))
    return found


@dataclass(frozen=True)
class _Slice:
    """The items of a slice, and the time that they occupy each shared memory, in picoseconds.

    `work_ps` has the memory, and what is loaded from it: the place of the first view of a value among the reads of the
    layer, or `_CONSTANTS`. What is not loaded has `_STORED`. `loads` has the descriptors of what is loaded.
    """

    items: tuple[Item, ...]
    work_ps: Mapping[tuple[int, int], int]
    loads: Mapping[int, tuple[Descriptor, ...]]


class SplitPredictor:
    """Predicts split layers on the machines of a group's cores; slices of equal shape are predicted once for a kind.

    Cores that share a memory divide its bandwidth into as many parts as there are cores, if all have the work of the
    busiest core, and fewer otherwise. Where the memories multicast, what several cores load counts once. A phase begins
    when the slowest core has notified the others.
    """

    def __init__(self, machines: Sequence[Machine], options: Options) -> None:
        self._options = options
        self._kinds = tuple(dict.fromkeys(machines))
        self._kind_of = [self._kinds.index(machine) for machine in machines]
        self._costs = [CostModel(kind) for kind in self._kinds]
        self._slices: dict[_SliceKey, _Slice] = {}
        self._times: dict[object, int] = {}

    def predicted_ps(self, split: LayerSplit, graph: Graph, spaces: Mapping[str, Space]) -> int:
        """Return the time from the first load to the last store; raises DoesNotFit.

        `graph` has the values of the layer before the split; `spaces` has these and the values of the split.
        """
        values = {**graph.values, **split.values}
        latency_ps = round(self._kinds[0].cores.link.latency_ns * PS_PER_NS)
        whole = replace(graph, values=values, layers=())
        is_split = split.kind is not None
        phases_ps = [max(map(sum, self._phase_ps(cores, whole, spaces, is_split))) for cores in split.phases]
        return sum(phases_ps) + latency_ps * (len(phases_ps) - 1)

    def _phase_ps(
        self, cores: Sequence[Sequence[HardwareLayer]], graph: Graph, spaces: Mapping[str, Space], is_split: bool
    ) -> list[list[int]]:
        """Return the time of every layer of every core."""
        keys = [
            [self._known((kind, is_split), layer, graph, spaces) for layer in layers]
            for kind, layers in zip(self._kind_of, cores, strict=False)
        ]
        shares = [self._share(memory, cores, keys) for memory in (Space.DDR, Space.LLC)]
        return [[self._slice_ps(key, *shares) for key in each] for each in keys]

    def _share(
        self, memory: Space, cores: Sequence[Sequence[HardwareLayer]], keys: Sequence[Sequence[_SliceKey]]
    ) -> float:
        """Return the work on a memory in units of that of the busiest core."""
        works: dict[object, int] = {}
        of_cores = [0] * len(keys)
        for core, (layers, own) in enumerate(zip(cores, keys, strict=True)):
            for turn, (layer, key) in enumerate(zip(layers, own, strict=True)):
                for (space, what), work_ps in self._slices[key].work_ps.items():
                    if space == memory:
                        of_cores[core] += work_ps
                        works[self._loaded(key, layer, what) or (core, turn, what)] = work_ps
        return sum(works.values()) / max(of_cores) if any(of_cores) else 1.0

    def _loaded(self, key: _SliceKey, layer: HardwareLayer, what: int) -> object:
        """Return a key of what a slice loads, by which cores that load the same share it; None if none does."""
        if what == _STORED or not self._kinds[key[0]].cores.multicast:
            return None
        loads = self._slices[key].loads[what]
        if what == _CONSTANTS:
            return loads, id(layer.weights), id(layer.scale_shift)
        name = layer.reads[what].value
        return loads, tuple(view for view in layer.reads if view.value == name)

    def _known(
        self, kind: tuple[int, bool], layer: HardwareLayer, graph: Graph, spaces: Mapping[str, Space]
    ) -> _SliceKey:
        key = *kind, slice_key(layer, graph.values, spaces)
        if key not in self._slices:
            self._slices[key] = self._planned(*kind, layer, graph, spaces)
        return key

    def _planned(
        self, kind: int, is_split: bool, layer: HardwareLayer, graph: Graph, spaces: Mapping[str, Space]
    ) -> _Slice:
        name, machine = layer.output.value, self._kinds[kind]
        touched = {view.value for view in (*layer.reads, layer.output)}
        part = replace(
            graph,
            values={each: graph.values[each] for each in touched},
            layers=(layer,),
            foreign=frozenset({name}),
            shared=frozenset({name}),
            sliced=frozenset({layer.index} if is_split else ()),
        )
        externals = _apart(placeholders(part, machine, spaces))
        commands, items = self._ordered(part, machine, externals)
        names = list(externals.values)
        places = {view.value: place for place, view in reversed(list(enumerate(layer.reads)))}
        work: dict[tuple[int, int], int] = defaultdict(int)
        loads: dict[int, list[Descriptor]] = defaultdict(list)
        for command in commands:
            what = _STORED
            if command.function is Function.LOAD and command.first is not None:
                number = command.first.address // _APART_BYTES
                what = places[names[number - 1]] if number else _CONSTANTS
                loads[what].append(command.first.descriptor)
            for demand in self._costs[kind].demands(command):
                work[demand.resource, what] += demand.work_ps
        loaded = {what: tuple(found) for what, found in loads.items()}
        return _Slice(tuple(items), work, loaded)

    def _ordered(self, part: Graph, machine: Machine, externals: Externals) -> tuple[list[Command], list[Item]]:
        """Return the commands of a slice and the items of its queues, as compiled; a single core tries several ways."""
        cores = len(self._kind_of)
        planner = Planner(part, machine, self._options, externals)
        several = (each.decisions for each in decide_by_each_assumption(planner))
        shared = shared_layers(part, machine, cores)
        found = []
        for decisions in several if cores == 1 else [decide(planner)]:
            plans = [plan for decision in decisions for plan in decision.chains]
            commands = list(
                WrittenChains().commands(part, machine, plans, externals, ScratchpadLayout.of(machine, plans))
            )
            found.append((order(commands, machine, self._options, None, shared), commands))
        ordered, commands = min(found, key=lambda way: way[0].predicted_ps)
        return commands, ordered.items

    def _slice_ps(self, key: _SliceKey, ddr_share: float, llc_share: float) -> int:
        times, place, machine = self._times, (key, ddr_share, llc_share), self._kinds[key[0]]
        if place not in times:
            ddr, llc = _shared(machine.ddr, ddr_share), _shared(machine.llc, llc_share)
            times[place] = predicted_time_ps(self._slices[key].items, replace(machine, ddr=ddr, llc=llc))
        return times[place]


def _apart(externals: Externals) -> Externals:
    """Return the externals with every value at a distant address, so that no two values conflict."""
    places = enumerate(externals.values.items(), 1)
    moved = {name: buffer.moved(number * _APART_BYTES, buffer.origin) for number, (name, buffer) in places}
    return replace(externals, values=moved)


def _shared(memory: Memory, share: float) -> Memory:
    return replace(memory, bytes_per_s=memory.bytes_per_s / share)


def slice_key(layer: HardwareLayer, values: Mapping[str, Value], spaces: Mapping[str, Space]) -> object:
    """Return a key; slices with equal keys take the same time: names, constants and starts of views do not matter."""
    seen: dict[str, int] = {}
    operands: list[object] = []
    for view in (*layer.reads, layer.output):
        value = values[view.value]
        number = seen.setdefault(view.value, len(seen))
        operands.append((number, view.axes, value.shape, value.dtype, value.order, spaces[view.value]))
    constants = (constant_key(layer.weights), constant_key(layer.scale_shift))
    kind = (layer.function, layer.settings, layer.groups, layer.matrix, layer.residual is not None)
    return kind, constants, tuple(operands)
