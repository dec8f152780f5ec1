"""Weights that stay in SB from input to input: the same values, no loads of them, and no slower pipelines."""

from dataclasses import replace

import pytest
from hypothesis import event, given, settings, strategies as st
from networks_on_npu import ORDERS, NetworkCase, network_of, relative_error, small_machine
from random_networks import WINDOWS, all_options, machines_for, random_networks
from small_models import node, values
from systems_of_cores import assignments, in_turn, with_cores

from device_agents.emulated_npu.compiler.compiled import CompiledCore, CompiledSystem
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.stages import WeightPolicy, compile_system
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.execution.stream_execution import run_stream
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.system_runs import group_programs, time_system
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Space

_LAYER_BYTES = 4 * 4 * 9 * 4


def _convolutions(count: int = 4) -> NetworkCase:
    """Return convolutions of 4 to 4 channels; the weights of each have 576 bytes."""
    nodes = [node("Conv", f"{f't{at - 1}' if at else 'x'} w{at}", f"t{at}", pads=[1, 1, 1, 1]) for at in range(count)]
    constants = {f"w{at}": values((4, 4, 3, 3), at, -0.5, 0.5) for at in range(count)}
    return network_of(nodes, {"x": values((1, 4, 24, 16))}, constants, [f"t{count - 1}"])


def _compiled(
    network: NetworkCase, machine: Machine, assignment: Assignment, weights: WeightPolicy = "resident"
) -> CompiledSystem:
    return compile_system(import_model(network.model), machine, assignment, weights=weights)


def _weight_loads(*cores: CompiledCore) -> list[Command]:
    """Return the loads of weights that cores run for every input."""
    items = (step.item for core in cores for step in sequence(core.program.code))
    return [
        item
        for item in items
        if isinstance(item, Command)
        and item.function is Function.LOAD
        and item.target.descriptor.space is Space.SB
        and item.target.descriptor.dtype is DataType.UINT8
    ]


def _read_bytes(core: CompiledCore) -> int:
    """Return the bytes that a core reads from DDR for an input."""
    commands = (step.item for step in sequence(core.program.code) if isinstance(step.item, Command))
    read = (operand.descriptor for command in commands for operand in command.sources)
    return sum(descriptor.bytes for descriptor in read if descriptor.space is Space.DDR)


def _check_stream(network: NetworkCase, compiled: CompiledSystem) -> None:
    """Assert that each of three inputs has the outputs of ONNX Runtime, in every order of the queues."""
    stream = [network.inputs] * 3
    for order in ORDERS:
        found = run_stream(group_programs(compiled, network.weights), compiled.machine, stream, order=order)
        for outputs in found:
            assert relative_error(outputs, network.expected) <= 1e-4


def test_weights_that_fit_are_loaded_once() -> None:
    """Two layers of 576 bytes on each core stay in SB; no input loads them again, and a run reads none of them."""
    network = _convolutions()
    machine = with_cores(small_machine(), 2)
    compiled = _compiled(network, machine, in_turn(import_model(network.model), 2))
    assert [group.resident_bytes for group in compiled.groups] == [2 * _LAYER_BYTES, 2 * _LAYER_BYTES]
    assert not _weight_loads(*compiled.cores)
    _check_stream(network, compiled)
    fetched = _compiled(network, machine, in_turn(import_model(network.model), 2), "fetched")
    for core, kept in zip(fetched.cores, compiled.cores, strict=True):
        saved = sum(load.target.descriptor.bytes for load in _weight_loads(core))
        assert _read_bytes(core) - _read_bytes(kept) == saved >= 2 * _LAYER_BYTES


@pytest.mark.parametrize("sb_bytes", [2304, 2303, 1216, 1152, 700, 576])
def test_sb_holds_what_stays_and_what_passes(sb_bytes: int) -> None:
    """For any size of SB the footprint stays within it and the values are right; all four layers fit in 2304 bytes."""
    network = _convolutions()
    machine = with_cores(small_machine(sb_bytes=sb_bytes), 1)
    compiled = _compiled(network, machine, in_turn(import_model(network.model)))
    (core,) = compiled.cores
    assert core.program.footprint.sb_bytes <= sb_bytes
    assert bool(_weight_loads(*compiled.cores)) == (sb_bytes < 4 * _LAYER_BYTES)
    _check_stream(network, compiled)


def test_one_buffer_for_features_and_weights_keeps_none() -> None:
    """Where chains divide one memory, weights are fetched."""
    network = _convolutions()
    machine = with_cores(small_machine(nb_bytes=16 << 10, sb_bytes=16 << 10, shared_buffer=True), 1)
    compiled = _compiled(network, machine, in_turn(import_model(network.model)))
    assert compiled.groups[0].resident_bytes == 0 and _weight_loads(*compiled.cores)
    _check_stream(network, compiled)


def test_cores_of_a_group_keep_their_own_weights() -> None:
    """Cores that share layers keep the weights of their slices."""
    network = _convolutions()
    machine = with_cores(small_machine(), 3)
    graph = import_model(network.model)
    groups = Assignment((GroupAssignment((0, 1), (0, 1)), GroupAssignment((2,), (2, 3))))
    compiled = compile_system(graph, machine, groups, weights="resident")
    assert not _weight_loads(*compiled.cores)
    _check_stream(network, compiled)


def test_a_pipeline_without_fetches_is_faster_where_memory_bounds_it() -> None:
    """On a slow DDR the interval without weight fetches is shorter, and the latency is no longer."""
    network = _convolutions()
    machine = with_cores(small_machine(), 2)
    machine = replace(machine, ddr=replace(machine.ddr, bytes_per_s=2e8))
    times = {
        policy: time_system(_compiled(network, machine, in_turn(import_model(network.model), 2), policy), 1).report
        for policy in ("resident", "fetched")
    }
    assert times["resident"].interval_ps < times["fetched"].interval_ps
    assert times["resident"].latency_ps <= times["fetched"].latency_ps


@given(st.data())
@settings(max_examples=15)
def test_random_networks_keep_their_values(data: st.DataObject) -> None:
    """Any network on any machine and division has ONNX Runtime's values for each of three inputs."""
    network = data.draw(random_networks(WINDOWS, 6, 24))
    machine: Machine = with_cores(data.draw(machines_for(network)), 4)
    options: Options = replace(data.draw(all_options()), chains="auto")
    graph = import_model(network.model)
    assignment = data.draw(assignments(graph, 4))
    try:
        compiled = compile_system(graph, machine, assignment, options, weights="resident")
    except DoesNotFit:
        return
    for core in compiled.cores:
        assert core.program.footprint.sb_bytes <= machine.sb_bytes
    event("some stay" if any(group.resident_bytes for group in compiled.groups) else "none stay")
    _check_stream(network, compiled)
