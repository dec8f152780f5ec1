"""Transfers run in the order of time, and the order keeps every dependence.

Weights pass through the last-level cache while the IO queue would wait.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from command_cases import commands, compute, conflicting_pairs, dense, load, store
from hypothesis import given, settings, strategies as st
from small_models import model, node

from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.cache_ahead import bring_weights_ahead
from device_agents.emulated_npu.compiler.ordering.hazards import dependencies, stream_of
from device_agents.emulated_npu.compiler.ordering.list_schedules import fill_gaps, least_end_ps
from device_agents.emulated_npu.compiler.ordering.synchronise import synchronise
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.inference import compute_values
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Item, Operand, Space

EDGE = load_preset("edge")
_BLOCK, _BLOCKS = 8 << 10, 8
_STEP = 64
"""Bytes that the test follows as one: a burst."""
_MACHINE = replace(EDGE, llc=replace(EDGE.llc, bytes=_BLOCKS * _BLOCK))
_Layer = tuple[int, int, int]


def _blocks(space: Space, first: int, count: int = 1) -> Operand:
    return Operand(dense(space, count * _BLOCK, dtype=DataType.UINT8), first * _BLOCK)


def _slice(operand: Operand) -> slice:
    return slice(*(byte // _STEP for byte in operand.span))


def _program(layers: list[_Layer], slots: int) -> tuple[list[Command], list[CachedValue]]:
    """Return layers of (size of the computation, first block, blocks): each stores blocks of the cache for the next.

    Each loads a block of weights into one of `slots` in turn.
    """
    commands: list[Command] = []
    values = []
    stored: tuple[int, int] | None = None
    for place, (size, first, count) in enumerate(layers):
        weights, work = _blocks(Space.SB, place % slots), Operand(dense(Space.NB, size), 0)
        commands.append(Command(Function.LOAD, weights, _blocks(Space.DDR, place), layer=place))
        if stored is not None:
            buffer, source = _blocks(Space.NB, 0, stored[1]), _blocks(Space.LLC, *stored)
            commands.append(Command(Function.LOAD, buffer, source, layer=place))
        commands.append(Command(Function.MAP, work, work, weights, layer=place))
        stored = (first, min(count, _BLOCKS - first)) if count else None
        if stored is not None:
            target = _blocks(Space.LLC, *stored)
            commands.append(Command(Function.STORE, target, _blocks(Space.NB, 0, stored[1]), layer=place))
            values.append(CachedValue(*target.span, frozenset((place, place + 1))))
    return commands, values


def _seen(items: Sequence[Item]) -> list[tuple[int, str, list[int]]]:
    """Return what every computation reads of SB, and every load of features of the cache: DDR or storing layer."""
    memories = {space: np.full(_BLOCKS * _BLOCK // _STEP, -1) for space in (Space.SB, Space.LLC)}
    found = []
    for command in (item for item in items if isinstance(item, Command)):
        target, source = command.target, command.first
        space = target.descriptor.space
        assert source is not None
        if command.function is Function.STORE:
            memories[space][_slice(target)] = 10**9 + command.layer
        elif command.function is Function.MAP and command.second is not None:
            found.append((command.layer, "weights", memories[Space.SB][_slice(command.second)].tolist()))
        elif space is Space.NB:
            found.append((command.layer, "features", memories[Space.LLC][_slice(source)].tolist()))
        elif source.descriptor.space is Space.DDR:
            memories[space][_slice(target)] = np.arange(*source.span, _STEP)
        else:
            memories[space][_slice(target)] = memories[Space.LLC][_slice(source)]
    return found


@given(
    st.lists(st.tuples(st.sampled_from((64, 640, 64_000, 640_000)), st.integers(0, 7), st.integers(0, 4)), max_size=12),
    st.integers(1, 3),
)
def test_weights_through_the_cache_keep_what_every_command_reads(layers: list[_Layer], slots: int) -> None:
    """Every computation reads the same weights as before, and no feature in the cache is overwritten."""
    commands, values = _program(layers, slots)
    items = synchronise(commands)
    ahead = bring_weights_ahead(commands, dependencies(commands), values, CostModel(_MACHINE))
    if ahead is not None:
        assert _through_cache(ahead[1])
        assert _seen(synchronise(ahead[1])) == _seen(items)


def _through_cache(items: Sequence[Item]) -> list[Command]:
    """Return the commands that move bytes from DDR to the cache."""
    found = [item for item in items if isinstance(item, Command) and item.function is Function.LOAD]
    return [command for command in found if command.target.descriptor.space is Space.LLC]


def test_a_network_with_many_weights_behind_much_computation_is_faster_with_the_same_values() -> None:
    """A long convolution in front of large products leaves DDR idle: weights wait in the cache if options allow it."""
    rng = np.random.default_rng(3)
    inputs = {"x": rng.standard_normal((1, 32, 32, 32)).astype(np.float32)}
    weights = {
        "k": rng.standard_normal((32, 32, 3, 3)).astype(np.float32),
        "a": rng.standard_normal((32, 512)).astype(np.float32),
        "b": rng.standard_normal((512, 512)).astype(np.float32),
    }
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "c", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f a", "h"),
        node("MatMul", "h b", "y"),
    ]
    network = model(nodes, inputs, weights).SerializeToString()
    machine = replace(EDGE, sb_bytes=128 << 10)
    ahead, plain = (compile_model(network, machine, options) for options in (Options(), Options(cached_weights=False)))
    moved = [
        _through_cache([step.item for step in sequence(each.program.code) if step.item is not None])
        for each in (ahead, plain)
    ]
    assert moved[0]
    assert not moved[1]
    times = [simulate_program(each.program, machine).makespan_ps for each in (ahead, plain)]
    assert times[0] < times[1]
    first, second = (compute_values(each, weights, inputs)["y"] for each in (ahead, plain))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-4)


def _weights(target: int, source: int, size: int = 16) -> Command:
    """Return a LOAD from DDR to SB."""
    return Command(Function.LOAD, Operand(dense(Space.SB, size), target), Operand(dense(Space.DDR, size), source))


@settings(max_examples=150)
@given(st.lists(st.tuples(commands(), st.integers(0, 9)), max_size=14), st.sampled_from((0.0, 0.5, 1.0)), st.booleans())
def test_dependences_and_streams_keep_their_order(
    program: list[tuple[Command, int]], delay: float, urgent_first: bool
) -> None:
    """The order is a permutation in which conflicting commands, and those of each stream, stay in order.

    It does not end before the time that bounds all such orders.
    """
    drawn, durations = [command for command, _ in program], [duration for _, duration in program]
    filled = fill_gaps(drawn, dependencies(drawn), durations, delay, urgent_first=urgent_first)
    assert least_end_ps(drawn, dependencies(drawn), durations) <= filled.end_ps
    order = filled.order
    assert sorted(order) == list(range(len(drawn)))
    place = {position: index for index, position in enumerate(order)}
    assert all(place[earlier] < place[later] for earlier, later in conflicting_pairs(drawn))
    for stream in {stream_of(command) for command in drawn}:
        own = [position for position in order if stream_of(drawn[position]) == stream]
        assert own == sorted(own)


def test_weights_arrive_while_features_wait() -> None:
    """A load into SB runs before a load of features that a compute and a store hold up."""
    program = [load(0, 0), compute(100, 0), store(900, 100), load(200, 900), _weights(0, 2000), compute(300, 200)]
    assert fill_gaps(program, dependencies(program), [5, 50, 5, 5, 30, 5], 0.5).order == [0, 1, 4, 2, 3, 5]


def test_computes_of_two_queues_start_at_the_same_time() -> None:
    """A compute of the VFU queue and one of the CP queue that need nothing of each other do not wait for each other."""
    vector = replace(compute(300, 0), own_queue=True)
    program = [load(0, 0), compute(100, 0), vector, store(900, 300), _weights(0, 2000)]
    assert fill_gaps(program, dependencies(program), [5, 50, 10, 5, 30], 0.0).order == [0, 1, 2, 3, 4]
    in_one_queue = [program[0], program[1], compute(300, 0), *program[3:]]
    assert fill_gaps(in_one_queue, dependencies(in_one_queue), [5, 50, 10, 5, 30], 0.0).order == [0, 1, 4, 2, 3]


def test_a_transfer_that_would_delay_earlier_ones_waits() -> None:
    """A long load does not run in a short gap, unless a delay of most of its length is allowed."""
    program = [load(0, 0), compute(100, 0), store(900, 100), _weights(0, 2000)]
    durations = [5, 10, 5, 100]
    assert fill_gaps(program, dependencies(program), durations, 0.5).order == [0, 1, 2, 3]
    assert fill_gaps(program, dependencies(program), durations, 1.0).order == [0, 1, 3, 2]


def test_of_transfers_that_can_start_the_most_urgent_runs_first() -> None:
    """A short load for a long compute runs before a long store that nothing waits for, and the program ends sooner."""
    program = [load(0, 0), compute(100, 0), load(50, 500), store(900, 100), load(200, 2000), compute(300, 200)]
    durations = [10, 2, 5, 100, 5, 80]
    filled = fill_gaps(program, dependencies(program), durations, 1.0, urgent_first=True)
    assert filled.order.index(4) < filled.order.index(3)
    assert filled.end_ps < fill_gaps(program, dependencies(program), durations, 1.0).end_ps
    assert filled.end_ps == least_end_ps(program, dependencies(program), durations)
