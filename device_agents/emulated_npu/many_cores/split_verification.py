"""What split layers and split networks take, by running the programs of their cores event by event (S2.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.pipeline import compile_system
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.pipeline_timing import core_steps
from device_agents.emulated_npu.timing.stream_timing import simulate_cores


def layer_ps(
    layer: HardwareLayer, split: LayerSplit, graph: Graph, machine: Machine, cores: int, options: Options = DEFAULT
) -> int:
    """The time of a layer alone, split over so many cores of a chip: from memory, where its inputs are, to memory.

    Raises DoesNotFit.
    """
    return network_ps(_alone(layer, graph), {0: split}, machine, cores, options)


def network_ps(
    graph: Graph, splits: Mapping[int, LayerSplit], machine: Machine, cores: int, options: Options = DEFAULT
) -> int:
    """The time of a network whose layers are split so over a group of cores, for one input.

    `splits` are those of the layers by index. Raises DoesNotFit.
    """
    group = GroupAssignment(tuple(range(cores)), tuple(range(len(graph.layers))))
    compiled = compile_system(graph, machine, Assignment((group,)), options, splits=splits)
    return simulate_cores(core_steps(compiled), machine, inputs=1, depths={0: 1}).makespan_ps


def _alone(layer: HardwareLayer, graph: Graph) -> Graph:
    """A layer as a graph: what it reads is in memory already, and somebody else reads what it writes."""
    touched = {view.value for view in (*layer.reads, layer.output)}
    name = layer.output.value
    values = {each: graph.values[each] for each in touched}
    if not values[name].is_output:
        values[name] = replace(values[name], kind="received")
    return replace(
        graph,
        values=values,
        layers=(replace(layer, index=0),),
        inputs=tuple(each for each in graph.inputs if each in touched),
        outputs=tuple(each for each in graph.outputs if each == name),
        shared=frozenset({name}),
    )
