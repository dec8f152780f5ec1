"""Assignments of networks to core groups, and their results compared with one core."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st
from networks_on_npu import ORDERS, TOLERANCE, NetworkCase, execute, relative_error

from device_agents.emulated_npu.compiler.compiled import Compiled, CompiledSystem
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.regions import layer_producers
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.stages import compile_graph, compile_system
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.machine.parts import Cores, Interconnect
from device_agents.emulated_npu.many_cores.system_runs import run_system
from device_agents.emulated_npu.numpy_types import Array

NO_LINK = Interconnect(0.0, 0.0)
NEAR = Interconnect(64e9, 20.0)
FAR = Interconnect(16e9, 100.0)


def with_cores(machine: Machine, per_chip: int, chips: int = 1) -> Machine:
    """Return the machine with several cores."""
    return replace(
        machine, cores=Cores(per_chip, chips, NEAR if per_chip > 1 else NO_LINK, FAR if chips > 1 else NO_LINK)
    )


def in_turn(graph: Graph, *ends: int) -> Assignment:
    """Return groups of one core with the layers up to each end, and the rest."""
    pairs = pairwise((0, *ends, len(graph.layers)))
    return Assignment(tuple(GroupAssignment((core,), tuple(range(*pair))) for core, pair in enumerate(pairs)))


def groups_of(*layers: Sequence[int]) -> Assignment:
    """Return groups of one core with these layers."""
    return Assignment(tuple(GroupAssignment((core,), tuple(own)) for core, own in enumerate(layers)))


@st.composite
def assignments(draw: st.DrawFn, graph: Graph, cores: int) -> Assignment:
    """Draw any order of the layers that respects data flow, cut anywhere, with groups and cores in any order."""
    producers = layer_producers(graph)
    waiting, order = list(range(len(graph.layers))), list[int]()
    while waiting:
        ready = [place for place in waiting if producers[place] <= set(order)]
        order.append(draw(st.sampled_from(ready)))
        waiting.remove(order[-1])
    count = draw(st.integers(1, min(cores, len(order))))
    ends = sorted(draw(st.permutations(range(1, len(order))))[: count - 1])
    runs = [tuple(order[low:high]) for low, high in pairwise((0, *ends, len(order)))]
    chosen = draw(st.permutations(range(cores)))
    groups = [GroupAssignment((core,), run) for core, run in zip(chosen, runs, strict=False)]
    return Assignment(tuple(draw(st.permutations(groups))))


def compiled_for(
    network: NetworkCase, machine: Machine, assignment: Assignment, options: Options = DEFAULT
) -> CompiledSystem:
    """Return a network compiled for several cores."""
    return compile_system(import_model(network.model), machine, assignment, options)


def checked_run(network: NetworkCase, compiled: CompiledSystem, tolerance: float = 1e-5) -> Mapping[str, Array]:
    """Return the outputs of a run; assert that they equal those of one core, in every order of the queues."""
    outputs = run_system(compiled, network.weights, network.inputs)
    assert set(outputs) == set(network.expected)
    try:
        assert relative_error(outputs, execute(alone(network, compiled), network)) <= tolerance
    except DoesNotFit:  # parts of a network may fit where all of it does not
        assert relative_error(outputs, network.expected) <= TOLERANCE
    for order in ORDERS[1:]:
        again = run_system(compiled, network.weights, network.inputs, order=order)
        for name, array in again.items():
            assert array.tobytes() == outputs[name].tobytes(), order
    return outputs


def alone(network: NetworkCase, compiled: CompiledSystem) -> Compiled:
    """Return the same network compiled for one of the cores."""
    options = replace(compiled.options, conv_algorithm="direct")
    return compile_graph(import_model(network.model), compiled.machine, options)
