"""The nodes of a network for partitioning, with their workload on the chip (S5.2).

A node is a hardware layer with the layers that feed only it and read no input of the network, such as the fill of a
border. Its compute is measured in the program of one core, where parallelism, precision and tiling are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.graph.regions import layer_producers
from device_agents.emulated_npu.compiler.planning.chains.chain import depthwise_bytes, element_type
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import packed_bytes, uses_weight_buffer
from device_agents.emulated_npu.compiler.planning.memory_places import buffer_bytes
from device_agents.emulated_npu.inference import TimedProgram
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload, WorkloadNode
from device_agents.emulated_npu.timing.simulation import Timing, simulate
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Item, Space


@dataclass(frozen=True)
class NetworkNodes:
    """The nodes of a network: `layers` lists the hardware layers of each, `times_ps` its share of one core's run.

    `resident_ps` is its share of a run in which weights that pass through SB are there already; `weight_bytes` is their
    size.
    """

    graph: NodeGraph
    layers: tuple[tuple[int, ...], ...]
    times_ps: tuple[int, ...]
    resident_ps: tuple[int, ...]
    weight_bytes: tuple[int, ...]


def network_nodes(graph: Graph, machine: Machine, timed: TimedProgram) -> NetworkNodes:
    """Return the nodes of a network from its program on one core of a machine.

    Compute counts the multiply-adds that the matrix unit could do while a unit was busy for the node.
    """
    producers = layer_producers(graph)
    members = _members(graph, producers)
    place = {layer: number for number, layers in enumerate(members) for layer in layers}
    timing = timed.timing
    busy_ps = _busy_ps(timing, len(graph.layers))
    slots_per_ps = machine.mfu.multipliers / timing.cycle_ps
    nodes = []
    for number, layers in enumerate(members):
        before = {place[producer] for layer in layers for producer in producers[layer]} - {number}
        compute = round(sum(busy_ps[layer] for layer in layers) * slots_per_ps)
        storage = _storage(graph, machine, [graph.layers[layer] for layer in layers], producers)
        nodes.append(WorkloadNode(graph.layers[layers[-1]].name, Workload(compute, *storage), tuple(sorted(before))))
    weight_bytes = tuple(sum(_weight_bytes(graph.layers[layer], machine) for layer in layers) for layers in members)
    times, resident = (_shares(each, members) for each in (timing, _with_resident_weights(timed)))
    return NetworkNodes(NodeGraph(tuple(nodes)), members, times, resident, weight_bytes)


def _with_resident_weights(timed: TimedProgram) -> Timing:
    """Return the timing of a program whose weights are in SB already."""
    steps = [step for step in timed.steps if not _loads_weights(step.item)]
    return simulate(steps, timed.machine, costs=timed.costs)


def _loads_weights(item: Item | None) -> bool:
    if not isinstance(item, Command) or item.function is not Function.LOAD:
        return False
    return item.target.descriptor.space is Space.SB and item.target.descriptor.dtype is DataType.UINT8


def _shares(timing: Timing, members: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the share of each node in a run."""
    return tuple(sum(timing.layers[one] for one in layers if one < len(timing.layers)) for layers in members)


def _weight_bytes(layer: HardwareLayer, machine: Machine) -> int:
    """Return the size of the weights of a layer that pass through SB."""
    return packed_bytes(layer, machine) if uses_weight_buffer(layer) and layer.weights is not None else 0


def _members(graph: Graph, producers: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each node in order; a layer without layers or inputs before it joins its first reader."""
    readers: dict[int, int] = {}
    for reader, found in enumerate(producers):
        for producer in found:
            readers.setdefault(producer, reader)
    inputs = set(graph.inputs)
    joins: dict[int, list[int]] = {}
    alone = []
    for place, layer in enumerate(graph.layers):
        is_free = not producers[place] and not inputs & {view.value for view in layer.reads}
        if is_free and place in readers:
            joins.setdefault(readers[place], []).append(place)
        else:
            alone.append(place)

    def gathered(place: int) -> list[int]:
        return [*(one for joined in joins.get(place, ()) for one in gathered(joined)), place]

    return tuple(tuple(gathered(place)) for place in alone)


def _busy_ps(timing: Timing, count: int) -> list[int]:
    """Return the time that the units of a core work for each layer."""
    busy = [0] * count
    for step, duration in zip(timing.schedule.steps, timing.schedule.durations_ps, strict=True):
        item = step.item
        if isinstance(item, Command) and not item.function.is_transfer and item.layer >= 0:
            busy[item.layer] += duration
    return busy


def _storage(
    graph: Graph, machine: Machine, layers: Sequence[HardwareLayer], producers: Sequence[frozenset[int]]
) -> tuple[int, int, int, int]:
    """Return the bytes of inputs, outputs, static data, and inputs from other nodes."""
    own = {layer.index for layer in layers}
    taken = static = routed = 0
    for layer in layers:
        for view in layer.reads:
            size = _bytes(graph, machine, view)
            if graph.values[view.value].kind == "constant":
                static += size
                continue
            writers = {one for one in producers[layer.index] if graph.layers[one].output.value == view.value}
            if writers <= own and writers:
                continue
            taken += size
            routed += size if writers else 0
        static += _weight_bytes(layer, machine)
        static += sum(depthwise_bytes(layer, machine).values())
    return taken, _bytes(graph, machine, layers[-1].output), static, routed


def _bytes(graph: Graph, machine: Machine, view: View) -> int:
    return buffer_bytes(view.shape, element_type(graph.values[view.value], machine))
