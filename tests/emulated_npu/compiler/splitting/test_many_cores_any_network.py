"""Random and built-in networks on several core groups compute the values of one core."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, event, given, settings, strategies as st
from networks_on_npu import NetworkCase, builtin_network, execute, relative_error
from random_networks import all_options, machines_for, random_networks
from systems_of_cores import assignments, checked_run, compiled_for, with_cores

from device_agents.emulated_npu.compiler.compiled import Compiled, CompiledSystem
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.execution.stream_execution import run_stream
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.many_cores import stage_balancing as placing
from device_agents.emulated_npu.many_cores.core_groups import contended, fabric_of, form_groups
from device_agents.emulated_npu.many_cores.node_workloads import network_nodes
from device_agents.emulated_npu.many_cores.system_runs import group_programs
from device_agents.emulated_npu.partition.greedy import partition_by_score
from device_agents.emulated_npu.partition.node_graph import traverse
from device_agents.emulated_npu.partition.split_score import ShareScore, SplitRule

DIRECT = Options(conv_algorithm="direct")


@given(st.data())
@settings(max_examples=15)
def test_random_networks_cut_anywhere(data: st.DataObject) -> None:
    """Any division of any network, on one chip or two, computes one core's values in every order of the queues."""
    network = data.draw(random_networks(most_nodes=8, most_pixels=16))
    graph = import_model(network.model)
    assume(len(graph.layers) > 1)
    compiled = _random_system(data, network, data.draw(assignments(graph, 5)))
    if compiled is not None:
        event(f"{len(compiled.groups)} groups")
        checked_run(network, compiled)


@pytest.mark.long
@given(st.data())
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
def test_many_random_networks_cut_anywhere(data: st.DataObject) -> None:
    """The same at length."""
    network = data.draw(random_networks(most_nodes=10, most_pixels=24))
    compiled = _random_system(data, network, data.draw(assignments(import_model(network.model), 5)))
    if compiled is not None:
        checked_run(network, compiled)


def _random_system(data: st.DataObject, network: NetworkCase, assignment: Assignment) -> CompiledSystem | None:
    chips = data.draw(st.sampled_from((1, 2)))
    machine: Machine = data.draw(machines_for(network))
    machine = with_cores(replace(machine, llc=replace(machine.llc, bytes=6 * machine.llc.bytes)), 6 // chips, chips)
    options = data.draw(all_options())
    try:
        # A group of layers need not be one chain in any memory.
        return compiled_for(network, machine, assignment, replace(options, chains="auto"))
    except DoesNotFit:
        return None


LARGE = ("resnet50", "densenet121", "inception_v1")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("squeezenet", 4, marks=pytest.mark.long),
        *(pytest.param(name, count, marks=pytest.mark.long) for name in LARGE for count in (2, 4, 8, 16)),
    ],
)
def test_whole_networks(name: str, count: int) -> None:
    """Partitions by score and by balance, on separate chips, compute the outputs of one core for two inputs."""
    network, compiled = _whole(name)
    graph, machine = compiled.graph, compiled.machine
    groups = form_groups(fabric_of(machine), str(count))
    crowded = contended(machine, groups)
    here = compile_graph(graph, crowded, DIRECT)
    nodes = network_nodes(graph, crowded, time_program(here.program, crowded))
    alone_ps = time_program(compiled.program, machine).timing.makespan_ps
    ground = placing.PartitionTask(graph, machine, DIRECT, nodes, traverse(nodes.graph), alone_ps)
    by_score = partition_by_score(nodes.graph, ground.traversal, groups, SplitRule(ShareScore()))
    stream = [network.inputs, {each: array[..., ::-1].copy() for each, array in network.inputs.items()}]
    expected = [execute(compiled, replace(network, inputs=inputs)) for inputs in stream]
    for placed in (placing.compile_and_time(ground, by_score), placing.balance_stages(ground, groups)):
        assert len(placed.timed.compiled.groups) == count
        assert {group.chip for group in placed.timed.compiled.groups} == set(range(min(4, count)))
        system = placed.timed.compiled
        found = run_stream(group_programs(system, network.weights), system.machine, stream)
        for outputs, wanted in zip(found, expected, strict=True):
            assert relative_error(outputs, wanted) <= 1e-5


@cache
def _whole(name: str) -> tuple[NetworkCase, Compiled]:
    """Return a built-in network with its nodes on a machine of four chips."""
    network = builtin_network(name)
    builtin_network.cache_clear()
    return network, compile_graph(import_model(network.model), find_machine("chiplets-64"), DIRECT)
