"""Predicts the time of a split layer by the instruction-level formula, without running it (S2.6, S2.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import PS_PER_NS
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, Value
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.order import order, predicted_time_ps
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.layout import ScratchpadLayout
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import placeholders
from device_agents.emulated_npu.compiler.planning.plan import lowered
from device_agents.emulated_npu.compiler.planning.search.chain_keys import constant_key
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import decide, decide_by_each_assumption
from device_agents.emulated_npu.compiler.splitting.division import shared_layers
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Item, Space

_APART_BYTES = 1 << 40
_CONSTANTS, _STORED = -1, -2

_SliceKey = tuple[int, bool, object]
"""A kind of core, whether the layer is split, and what distinguishes slices (`slice_key`)."""


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
        """Return the commands of a slice, and the items of its queues, as they are compiled: a core that is alone tries
        several ways.
        """
        cores = len(self._kind_of)
        planner = Planner(part, machine, self._options, externals)
        ways = decide_by_each_assumption(planner) if cores == 1 else [decide(planner)]
        shared = shared_layers(part, machine, cores)
        found = []
        for decisions in ways:
            plans = [plan for decision in decisions for plan in decision.chains]
            commands = list(lowered(part, machine, plans, externals, ScratchpadLayout.of(machine, plans)))
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
