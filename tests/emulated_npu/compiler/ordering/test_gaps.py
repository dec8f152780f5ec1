"""Transfers run in the order of time, and the order keeps every dependence."""

from __future__ import annotations

from dataclasses import replace

from command_cases import commands, compute, conflicting_pairs, dense, load, store
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.emulated_npu.compiler.ordering.hazards import dependencies, stream_of
from device_agents.emulated_npu.compiler.ordering.list_schedules import fill_gaps
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space


def _weights(target: int, source: int, size: int = 16) -> Command:
    """Return a LOAD from DDR to SB."""
    return Command(Function.LOAD, Operand(dense(Space.SB, size), target), Operand(dense(Space.DDR, size), source))


@settings(max_examples=150)
@given(st.lists(st.tuples(commands(), st.integers(0, 9)), max_size=14), st.sampled_from((0.0, 0.5, 1.0)), st.booleans())
def test_dependences_and_streams_keep_their_order(
    program: list[tuple[Command, int]], delay: float, urgent_first: bool
) -> None:
    """The order is a permutation in which conflicting commands, and those of each stream, stay in order."""
    drawn, durations = [command for command, _ in program], [duration for _, duration in program]
    order = fill_gaps(drawn, dependencies(drawn), durations, delay, urgent_first=urgent_first).order
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
