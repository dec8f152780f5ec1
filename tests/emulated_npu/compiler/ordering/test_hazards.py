"""Dependences between commands miss no conflict, and views that interleave do not depend on each other."""

from command_cases import commands, compute, conflicting_pairs, dense, load, store
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.ordering.hazards import STORE, dependencies, stream_of
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space


def _conflicts(load: int = -1, store: int = -1, compute: int = -1) -> list[int]:
    """Return conflicts with streams of the IO and the CP queue, without loads into SB."""
    return [load, store, compute, -1]


def _ordered(program: list[Command]) -> list[set[int]]:
    """Return for every command all earlier ones that dependences and stream order put before it."""
    before: list[set[int]] = []
    last: dict[int, int] = {}
    for position, found in enumerate(dependencies(program)):
        direct = {index for index in (*found, last.get(stream_of(program[position]), -1)) if index >= 0}
        before.append(direct.union(*(before[index] for index in direct)))
        last[stream_of(program[position])] = position
    return before


@settings(max_examples=200)
@given(st.lists(commands(), max_size=14))
def test_every_conflict_is_ordered(program: list[Command]) -> None:
    """Commands that share a byte which one of them writes are ordered by dependences and stream order."""
    before = _ordered(program)
    assert all(earlier in before[later] for earlier, later in conflicting_pairs(program))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from((load, store, compute)), st.integers(0, 8), st.integers(0, 8)), max_size=14))
def test_dense_views_depend_only_on_what_they_share(program: list[tuple]) -> None:  # type: ignore[type-arg]
    """Views without gaps have no false dependences."""
    made = [kind(8 * target, 8 * source) for kind, target, source in program]
    pairs = set(conflicting_pairs(made))
    assert all(
        (earlier, later) in pairs for later, found in enumerate(dependencies(made)) for earlier in found if earlier >= 0
    )


def test_latest_of_every_stream() -> None:
    """A command names the latest command of each stream that it must follow."""
    program = [load(0, 0), compute(32, 0), store(64, 32), load(32, 0), load(96, 64)]
    assert dependencies(program)[1:] == [
        _conflicts(load=0),
        _conflicts(compute=1),
        _conflicts(store=2, compute=1),
        _conflicts(store=2),
    ]


def _slice(space: Space, first_channel: int, channels: int, base: int = 0) -> Operand:
    """Return channels of a map of 6 x 5 pixels with 48 channels, channels innermost."""
    return Operand(Descriptor(space, DataType.INT8, (6, 5, channels), (5 * 48, 48, 1)), base + first_channel)


@st.composite
def _slice_writers(draw: st.DrawFn) -> Command:
    """Draw a load, store or copy of some rows and channels of the map of `_slice`."""
    row, channel = draw(st.integers(0, 4)), draw(st.integers(0, 40))
    rows, channels = draw(st.integers(1, 6 - row)), draw(st.sampled_from((4, 8, 16, 48 - channel)))
    shape = Descriptor(Space.NB, DataType.INT8, (rows, 5, min(channels, 48 - channel)), (5 * 48, 48, 1))
    part = Operand(shape, 5 * 48 * row + channel)
    elsewhere = Operand(dense(Space.NB, *shape.dims), 8192)
    function = draw(st.sampled_from((Function.LOAD, Function.STORE, Function.COPY)))
    if function is Function.COPY:
        return draw(st.sampled_from((Command(function, part, elsewhere), Command(function, elsewhere, part))))
    outside = Operand(dense(Space.DDR, *shape.dims), 0)
    return Command(function, part, outside) if function is Function.LOAD else Command(function, outside, part)


@settings(max_examples=48)
@given(st.lists(_slice_writers(), max_size=8))
def test_every_conflict_between_slices_is_ordered(program: list[Command]) -> None:
    """Conflicting rows and channels of one map, most of which interleave, are ordered."""
    before = _ordered(program)
    assert all(earlier in before[later] for earlier, later in conflicting_pairs(program))


def test_a_narrow_slice_does_not_hide_a_wider_one() -> None:
    """A read of the rest after writes of a wide and a narrow slice depends on the wide one."""
    source = Operand(dense(Space.DDR, 6, 5, 32), 0)
    wide = Command(Function.LOAD, _slice(Space.NB, 0, 32), source)
    narrow = Command(Function.COPY, _slice(Space.NB, 0, 16), Operand(dense(Space.NB, 6, 5, 16), 4096))
    rest = Command(Function.STORE, Operand(dense(Space.DDR, 6, 5, 16), 9000), _slice(Space.NB, 16, 16))
    after_wide = _conflicts(load=0)
    assert dependencies([wide, narrow, rest])[1:] == [after_wide, after_wide]


def test_parts_of_a_concatenation_are_independent() -> None:
    """Writes of channel slices of a map do not depend on each other; a read of the map depends on all."""
    source = Operand(dense(Space.NB, 6, 5, 16), 4096)
    parts = [Command(Function.COPY, _slice(Space.NB, 16 * k, 16), source) for k in (1, 0, 2)]
    parts.append(Command(Function.STORE, Operand(dense(Space.DDR, 6, 5, 48), 0), _slice(Space.NB, 0, 48)))
    stores = [Command(Function.STORE, _slice(Space.DDR, 16 * k, 16, 8192), source) for k in range(3)]
    loads = [
        Command(Function.LOAD, Operand(dense(Space.NB, 6, 5, 16), 5000 + 480 * k), _slice(Space.DDR, 16 * k, 16, 8192))
        for k in range(3)
    ]
    nothing = _conflicts()
    assert dependencies(parts) == [nothing, nothing, nothing, _conflicts(compute=2)]
    assert [found[STORE] for found in dependencies([*stores, *loads])[3:]] == [0, 1, 2]
