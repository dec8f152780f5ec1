"""Loads are hoisted as early as dependences and the window allow."""

from command_cases import commands, compute, conflicting_pairs, load, store
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.ordering.hazards import LOADS, UNITS, stream_of
from device_agents.emulated_npu.compiler.ordering.order import hoist_loads
from device_agents.emulated_npu.unit_commands import Command


def _places(program: list[Command], window: int) -> list[int]:
    """Return the position of every command of the program in the new order."""
    order = [id(command) for command in hoist_loads(program, window=window)]
    assert sorted(order) == sorted(map(id, program))
    return [order.index(id(command)) for command in program]


@settings(max_examples=150)
@given(st.lists(commands(), max_size=14), st.integers(0, 4))
def test_conflicting_commands_keep_their_order(program: list[Command], window: int) -> None:
    """The new order is a permutation in which every two commands that share a written byte stay in order."""
    program = [Command(**vars(command)) for command in program]  # no two of them one object
    place = _places(program, window)
    assert all(place[earlier] < place[later] for earlier, later in conflicting_pairs(program))


@settings(max_examples=100)
@given(st.lists(commands(), max_size=14), st.integers(0, 4))
def test_only_loads_move_and_only_up(program: list[Command], window: int) -> None:
    """Loads keep their order, so do all other commands, and a load passes at most `window` computes."""
    program = [Command(**vars(command)) for command in program]
    place = _places(program, window)
    loads = [index for index, command in enumerate(program) if stream_of(command) in LOADS]
    others = [index for index, command in enumerate(program) if stream_of(command) not in LOADS]
    assert all(group == sorted(group, key=place.__getitem__) for group in (loads, others))
    for index in loads:
        assert all(place[earlier] < place[index] for earlier in loads if earlier < index)
        assert not any(place[later] < place[index] for later in others if later > index)
        passed = [other for other in others if other < index and place[other] > place[index]]
        assert sum(stream_of(program[other]) in UNITS for other in passed) <= window


def _tiles(count: int) -> list[Command]:
    """Return load, compute and store of `count` tiles through two input and two output buffers."""
    return [
        command
        for tile in range(count)
        for command in (
            load(100 * (tile % 2), 1000 * tile),
            compute(400 + 100 * (tile % 2), 100 * (tile % 2)),
            store(50000 + 1000 * tile, 400 + 100 * (tile % 2)),
        )
    ]


def test_double_buffered_tiles_overlap() -> None:
    """The load of a tile moves over compute and store of the tile before, up to the compute that frees its buffer."""
    program = _tiles(4)
    l0, c0, s0, l1, c1, s1, l2, c2, s2, l3, c3, s3 = program
    assert hoist_loads(program, window=8) == [l0, l1, c0, s0, l2, c1, s1, l3, c2, s2, c3, s3]
    assert hoist_loads(program, window=0) == [l0, c0, l1, s0, c1, l2, s1, c2, l3, s2, c3, s3]


def test_window_limits_how_far_a_load_runs_ahead() -> None:
    """A load that depends on nothing passes no more computes than the window has."""
    computes = [compute(16 * k, 16 * k) for k in range(5)]
    last = load(4096, 0)
    assert hoist_loads([*computes, last], window=2) == [*computes[:3], last, *computes[3:]]


def test_load_of_what_a_store_writes_stays_behind_it() -> None:
    """A layer's output that goes through external memory is loaded after it was stored."""
    program = [compute(0, 100), store(5000, 0), compute(300, 300), load(400, 5000)]
    assert hoist_loads(program, window=8) == [program[0], program[1], program[3], program[2]]
