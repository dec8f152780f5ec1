"""Blocks in SB get other addresses with the same content, and may arrive while others are in use."""

from collections.abc import Sequence

from command_cases import dense
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.compiler.ordering.hazards import COMPUTE, dependencies
from device_agents.emulated_npu.compiler.ordering.weight_places import HeldBytes, SpreadWeights
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

_SB_BYTES = 1024
_UNKNOWN = -1


def _load(target: int, source: int, size: int) -> Command:
    return Command(Function.LOAD, Operand(dense(Space.SB, size), target), Operand(dense(Space.DDR, size), source))


def _multiply(weights: int, size: int) -> Command:
    """Return a product that reads `size` bytes of SB."""
    features = Operand(dense(Space.NB, size), 0)
    return Command(Function.CONVOLVE, features, features, Operand(dense(Space.SB, size), weights))


def _read_bytes(program: list[Command]) -> list[list[int]]:
    """Return for every command the sources in DDR of the bytes of SB that it reads."""
    content = [_UNKNOWN] * _SB_BYTES
    found = []
    for command in program:
        found.append([content[byte] for each in command.sources for byte in _bytes_in_sb(each)])
        if command.target.descriptor.space is Space.SB and command.first is not None:
            for byte, source in zip(_bytes_in_sb(command.target), range(*command.first.span), strict=True):
                content[byte] = source
    return found


def _bytes_in_sb(operand: Operand) -> range:
    return range(*operand.span) if operand.descriptor.space is Space.SB else range(0)


@st.composite
def _programs(draw: st.DrawFn) -> list[Command]:
    """Draw loads into SB at 64-byte places, and products that read a part of what a load has written."""
    program: list[Command] = []
    source = 0
    for _ in range(draw(st.integers(1, 12))):
        size = draw(st.integers(1, 256))
        start = 64 * draw(st.integers(0, (_SB_BYTES - 256) // 64))
        program.append(_load(start, source, size))
        source += size
        for _ in range(draw(st.integers(0, 3))):
            loads = [each.target for each in program if each.function is Function.LOAD]
            start, stop = draw(st.sampled_from(loads)).span
            first = draw(st.integers(start, stop - 1))
            program.append(_multiply(first, draw(st.integers(1, stop - first))))
    return program


@settings(max_examples=150)
@given(_programs())
def test_every_product_reads_the_same_bytes(program: list[Command]) -> None:
    """Products read what they read before, and no block leaves SB."""
    spread = SpreadWeights(_SB_BYTES).commands(program)
    assert _read_bytes(spread) == _read_bytes(program)
    assert all(0 <= byte < _SB_BYTES for each in spread for byte in _bytes_in_sb(each.target))


@given(st.lists(st.integers(65, 256), min_size=4, max_size=12))
def test_a_block_waits_for_no_product_while_there_is_room(sizes: list[int]) -> None:
    """Blocks that all go through the same place need not wait for each other until SB is full."""
    program = [each for place, size in enumerate(sizes) for each in (_load(0, 1000 * place, size), _multiply(0, size))]
    loads = [2 * place for place in range(len(sizes))]
    spread = SpreadWeights(_SB_BYTES).commands(program)
    assert [dependencies(program)[place][COMPUTE] for place in loads[1:]] == [place - 1 for place in loads[1:]]
    assert [dependencies(spread)[place][COMPUTE] for place in loads[:4]] == [-1] * 4


def test_bytes_that_no_command_loads_stay() -> None:
    """Weights that stay in SB from input to input keep their place, and no block goes there."""
    program = [_load(0, 0, 128), _multiply(0, 128), _multiply(256, 64), _load(64, 128, 128), _multiply(64, 128)]
    spread = SpreadWeights(_SB_BYTES).commands(program)
    assert spread[2] == program[2]
    assert all(each.target.span[1] <= 256 for each in spread if each.function is Function.LOAD)


def test_nothing_moves_if_a_product_reads_two_blocks() -> None:
    """Blocks that are read together keep their addresses, because they must lie side by side."""
    program = [_load(64, 0, 64), _load(128, 64, 64), _multiply(64, 128), _load(64, 128, 64), _multiply(64, 64)]
    assert SpreadWeights(_SB_BYTES).commands(program) == program


_SIZE = 24


_INTERVALS = st.tuples(st.integers(0, _SIZE - 1), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(_INTERVALS, max_size=12), _INTERVALS)
def test_each_byte_has_what_was_written_there_last(writes: Sequence[tuple[int, int]], asked: tuple[int, int]) -> None:
    """The parts are disjoint and ordered, and agree byte by byte with an array; parts elsewhere are not touched."""
    held: HeldBytes[int] = HeldBytes()
    array: dict[int, int] = {}
    for number, (start, stop) in enumerate(writes):
        held = held.written(start, stop, number)
        array.update(dict.fromkeys(range(start, stop), number))
    found = [(at, content) for start, stop, content in held.parts for at in range(start, stop)]
    assert found == sorted(array.items())
    touched = {content for _, _, content in held.touched(*asked)}
    assert touched == {array[at] for at in range(*asked) if at in array}
