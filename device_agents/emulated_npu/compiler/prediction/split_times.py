"""Predicts the time of a split layer by the instruction-level formula, without running it (S2.6, S2.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import PS_PER_NS
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, Value
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.order import order, predicted_time_ps
from device_agents.emulated_npu.compiler.planning.chains.chain_commands import Externals
from device_agents.emulated_npu.compiler.planning.chains.layout import ScratchpadLayout
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import placeholders
from device_agents.emulated_npu.compiler.planning.plan import lowered
from device_agents.emulated_npu.compiler.planning.search.chain_keys import constant_key
from device_agents.emulated_npu.compiler.planning.search.decisions import decide
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Item, Space

_APART_BYTES = 1 << 40


@dataclass(frozen=True)
class _Slice:
    """The items of a slice, and the time that they occupy each shared memory, in picoseconds."""

    items: tuple[Item, ...]
    work_ps: Mapping[int, int]


class SplitPredictor:
    """Predicts split layers on a machine; slices of equal shape are predicted once.

    Cores that share a memory divide its bandwidth into as many parts as there are cores, if all have the work of the
    busiest core, and fewer otherwise. A phase begins when the slowest core has notified the others.
    """

    def __init__(self, machine: Machine, options: Options) -> None:
        self._machine, self._options = machine, options
        self._costs = CostModel(machine)
        self._slices: dict[object, _Slice] = {}
        self._times: dict[object, int] = {}

    def predicted_ps(self, split: LayerSplit, graph: Graph, spaces: Mapping[str, Space]) -> int:
        """Return the time from the first load to the last store; raises DoesNotFit.

        `graph` has the values of the layer before the split; `spaces` has these and the values of the split.
        """
        values = {**graph.values, **split.values}
        latency_ps = round(self._machine.cores.link.latency_ns * PS_PER_NS)
        whole = replace(graph, values=values, layers=())
        phases_ps = [max(map(sum, self._phase_ps(cores, whole, spaces))) for cores in split.phases]
        return sum(phases_ps) + latency_ps * (len(phases_ps) - 1)

    def _phase_ps(
        self, cores: Sequence[Sequence[HardwareLayer]], graph: Graph, spaces: Mapping[str, Space]
    ) -> list[list[int]]:
        """Return the time of every layer of every core."""
        keys = [[self._known(layer, graph, spaces) for layer in layers] for layers in cores]
        shares = []
        for memory in (Space.DDR, Space.LLC):
            works = [sum(self._slices[key].work_ps.get(memory, 0) for key in each) for each in keys]
            shares.append(sum(works) / max(works) if any(works) else 1.0)
        return [[self._slice_ps(key, *shares) for key in each] for each in keys]

    def _known(self, layer: HardwareLayer, graph: Graph, spaces: Mapping[str, Space]) -> object:
        key = slice_key(layer, graph.values, spaces)
        if key not in self._slices:
            self._slices[key] = self._planned(layer, graph, spaces)
        return key

    def _planned(self, layer: HardwareLayer, graph: Graph, spaces: Mapping[str, Space]) -> _Slice:
        name = layer.output.value
        touched = {view.value for view in (*layer.reads, layer.output)}
        part = replace(
            graph,
            values={each: graph.values[each] for each in touched},
            layers=(layer,),
            foreign=frozenset({name}),
            shared=frozenset({name}),
        )
        externals = _apart(placeholders(part, self._machine, spaces))
        decisions = decide(part, self._machine, self._options, externals)
        plans = [plan for decision in decisions for plan in decision.chains]
        commands = list(lowered(part, self._machine, plans, externals, ScratchpadLayout.of(self._machine, plans)))
        work: dict[int, int] = defaultdict(int)
        for command in commands:
            for demand in self._costs.demands(command):
                work[demand.resource] += demand.work_ps
        return _Slice(tuple(order(commands, self._machine, self._options).items), work)

    def _slice_ps(self, key: object, ddr_share: float, llc_share: float) -> int:
        times, place = self._times, (key, ddr_share, llc_share)
        if place not in times:
            ddr, llc = _shared(self._machine.ddr, ddr_share), _shared(self._machine.llc, llc_share)
            times[place] = predicted_time_ps(self._slices[key].items, replace(self._machine, ddr=ddr, llc=llc))
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
