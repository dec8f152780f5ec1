"""Networks on a machine whose VFU has a queue of its own: the same values in every order, and no slower."""

import math
import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from command_cases import commands, compute, conflicting_pairs, dense
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import (
    ORDERS,
    TOLERANCE,
    NetworkCase,
    builtin_model,
    builtin_network,
    execute,
    network_of,
    relative_error,
    small_machine,
)
from onnx import helper
from random_networks import all_options, machines_for, random_networks

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering import order
from device_agents.emulated_npu.compiler.ordering.hazards import STORES, stream_of
from device_agents.emulated_npu.compiler.ordering.list_schedules import overlap_units
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Queue, Space

ANY_GAIN = patch.object(order, "_WORTH_OWN_QUEUES", math.inf)
"""The compiler uses the queues of the VFU and of the cache even where they bring nothing."""


def _compiled(network: NetworkCase, machine: Machine, options: Options) -> Compiled:
    try:
        return compile_model(network.model, machine, options)
    except DoesNotFit:
        assume(False)
        raise


def _queues(compiled: Compiled) -> set[Queue]:
    return {step.item.queue for step in sequence(compiled.program.code) if isinstance(step.item, Command)}


def _makespan_ps(program: Program, machine: Machine) -> int:
    return simulate_program(program, machine).makespan_ps


def _faster_memory(machine: Machine) -> Machine:
    """Return the machine with four times the bandwidth, so that computing limits it more often."""
    ddr, llc = (replace(one, bytes_per_s=4 * one.bytes_per_s) for one in (machine.ddr, machine.llc))
    return replace(machine, ddr=ddr, llc=llc)


def depthwise_and_dense(blocks: int = 2, channels: int = 8, size: int = 24) -> NetworkCase:
    """Return blocks of a depthwise convolution with HardSwish and a dense convolution."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {}
    for block in range(blocks):
        constants[f"d{block}"] = rng.standard_normal((channels, 1, 3, 3)).astype(np.float32)
        constants[f"p{block}"] = rng.standard_normal((channels, channels, 1, 1)).astype(np.float32)
        source = f"x{block}" if block else "x"
        nodes += [
            helper.make_node("Conv", [source, f"d{block}"], [f"a{block}"], group=channels, pads=[1] * 4),
            helper.make_node("HardSwish", [f"a{block}"], [f"b{block}"]),
            helper.make_node("Conv", [f"b{block}", f"p{block}"], [f"x{block + 1}"]),
        ]
    inputs = {"x": rng.standard_normal((1, channels, size, size)).astype(np.float32)}
    return network_of(nodes, inputs, constants, [f"x{blocks}"])


@given(st.data())
@settings(max_examples=12)
def test_values_are_the_same_in_every_order(data: st.DataObject) -> None:
    """Whichever queue runs ahead, random networks have ONNX Runtime's values, and the bits of every other order.

    The machine has a queue for the VFU, one for a last-level cache that holds some of the network, or both.
    """
    network = data.draw(random_networks())
    machine, depths = data.draw(machines_for(network)), st.sampled_from((16, 1, 3))
    with_vfu, with_cache = data.draw(st.sampled_from(((True, False), (False, True), (True, True))))
    if with_vfu:
        machine = replace(machine, vfu_queue_depth=data.draw(depths))
    if with_cache:
        cache = replace(find_machine("edge").llc, bytes=data.draw(st.sampled_from((1 << 10, 16 << 10))))
        machine = replace(machine, llc=cache, llc_queue_depth=data.draw(depths))
    with ANY_GAIN, patch.object(order, "_WORTH_BY_TIME", data.draw(st.sampled_from((0.0, math.inf)))):
        compiled = _compiled(network, machine, data.draw(all_options()))
    found = [execute(compiled, network, way) for way in ORDERS]
    assert relative_error(found[0], network.expected) <= TOLERANCE
    for outputs in found[1:]:
        assert all(outputs[name].tobytes() == array.tobytes() for name, array in found[0].items())


@pytest.mark.parametrize("name", ["dscnn", pytest.param("mobilenetv2", marks=pytest.mark.long)])
def test_values_of_networks_do_not_change(name: str) -> None:
    """Networks whose units overlap have ONNX Runtime's values in every order."""
    network = builtin_network(name)
    with ANY_GAIN:
        compiled = compile_model(network.model, replace(find_machine("edge"), vfu_queue_depth=16))
    assert _queues(compiled) == {Queue.IO, Queue.CP, Queue.VFU}
    found = [execute(compiled, network, way) for way in ORDERS]
    assert relative_error(found[0], network.expected) <= TOLERANCE
    for outputs in found[1:]:
        assert all(outputs[name].tobytes() == array.tobytes() for name, array in found[0].items())


@given(st.data())
@settings(max_examples=12)
def test_a_second_compute_queue_makes_no_random_network_slower(data: st.DataObject) -> None:
    """For two compute queues a network takes at most 1 % longer, and 16 instructions, whose time is not predicted."""
    network = data.draw(random_networks())
    machine, options = data.draw(machines_for(network)), data.draw(all_options())
    options = replace(options, reorder=True, fences=False)
    one, two = (_compiled(network, replace(machine, vfu_queue_depth=depth), options) for depth in (0, 16))
    unpredicted_ps = 16 * machine.issue_cycles * round(1e12 / machine.clock_hz)
    assert _makespan_ps(two.program, two.machine) <= 1.01 * _makespan_ps(one.program, one.machine) + unpredicted_ps


@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("dscnn", 0.1),
        pytest.param("squeezenet", 0.0, marks=pytest.mark.long),
        pytest.param("mobilenetv2", 0.15, marks=pytest.mark.long),
        pytest.param("shufflenet", 0.1, marks=pytest.mark.long),
        pytest.param("efficientnet_b0", 0.05, marks=pytest.mark.long),
    ],
)
def test_networks_with_work_for_both_units_are_faster(name: str, gain: float) -> None:
    """With four times the bandwidth of `edge`, networks with depthwise beside dense layers gain, and none loses."""
    model, machine = builtin_model(name).SerializeToString(), _faster_memory(find_machine("edge"))
    one, two = (compile_model(model, replace(machine, vfu_queue_depth=depth)) for depth in (0, 16))
    assert _makespan_ps(two.program, two.machine) <= (1 - gain) * _makespan_ps(one.program, one.machine)


def test_the_compiler_overlaps_depthwise_and_dense_layers() -> None:
    """In a chain of both kinds one unit works during more than half of the other's time; values stay right."""
    network = depthwise_and_dense()
    machine = _faster_memory(small_machine(nb_bytes=24 << 10, vfu_queue_depth=16))
    compiled = compile_model(network.model, machine)
    timing = simulate_program(compiled.program, machine)
    assert timing.makespan_ps < timing.mfu_ps + timing.vfu_ps - min(timing.mfu_ps, timing.vfu_ps) / 2
    for way in ORDERS:
        assert relative_error(execute(compiled, network, way), network.expected) <= TOLERANCE


def test_a_program_runs_on_machines_with_more_and_with_fewer_queues() -> None:
    """A program for one compute queue takes as long with two; one for two runs in order on a machine with one."""
    network = depthwise_and_dense()
    one = small_machine(nb_bytes=24 << 10)
    two = replace(one, vfu_queue_depth=16)
    shared, apart = compile_model(network.model, one), compile_model(network.model, two)
    assert (_queues(shared), _queues(apart)) == ({Queue.IO, Queue.CP}, {Queue.IO, Queue.CP, Queue.VFU})
    assert _makespan_ps(shared.program, two) == _makespan_ps(shared.program, one)
    in_order = simulate_program(apart.program, one)
    assert in_order.cp_ps == in_order.mfu_ps + in_order.vfu_ps
    assert in_order.makespan_ps > _makespan_ps(apart.program, two)


def _product(target: int, source: int, pixels: int, layer: int) -> Command:
    """Return a product of pixels of four channels with a matrix of weights, on the MFU."""
    features, weights = dense(Space.NB, 1, 1, pixels, 4), dense(Space.SB, 1, 1, 1, 4, 4)
    operands = Operand(features, target), Operand(features, source), Operand(weights, 0)
    return Command(Function.CONVOLVE, *operands, layer=layer)


def test_an_order_as_if_one_unit_were_half_as_fast_can_take_less_time() -> None:
    """The products of two tiles share a buffer; by time, the VFU begins other work before the map that frees it."""
    tiles = [
        command
        for tile in (0, 1 << 13)
        for command in (
            _product(0, 1 << 20, 16, 0),
            compute(1 << 16 | tile, 0, 512, 1),
            compute(1 << 17 | tile, 1 << 21, 512, 2),
        )
    ]
    machine = small_machine(vfu_queue_depth=16)
    best = order.order(tiles, machine, Options())
    with patch.object(order, "_HALF_AS_FAST", (None,)):
        by_time = order.order(tiles, machine, Options())
    assert best.predicted_ps < 0.9 * by_time.predicted_ps


@given(st.lists(commands(), max_size=14), st.integers(1, 14), st.integers(0, 2**32))
@settings(max_examples=150)
def test_an_order_keeps_conflicts_and_streams(program: list[Command], window: int, seed: int) -> None:
    """For any durations and window, conflicting commands keep their order, and so do loads, stores, and each layer."""
    numbered = [replace(each, peer=place) for place, each in enumerate(program)]  # equal commands differ
    chance = random.Random(seed)
    ordered = overlap_units(numbered, [chance.randrange(9) for _ in numbered], window=window)
    places = {each.peer: place for place, each in enumerate(ordered)}
    assert sorted(places) == list(range(len(program)))
    assert all(places[earlier] < places[later] for earlier, later in conflicting_pairs(program))
    kept: dict[object, int] = {}
    for each in ordered:
        key: object = (each.layer, each.queue)
        if each.function.is_transfer:
            key = "store" if stream_of(each) in STORES else "load"
        assert kept.get(key, -1) < each.peer
        kept[key] = each.peer
