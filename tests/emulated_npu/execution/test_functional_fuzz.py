"""Random and mutated commands and programs end with a result or an error, and never touch a byte outside.

Memories lie between guard bytes. A write outside changes a guard; a read outside gives different results when the run
is repeated with other guards.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from scratchpad import Array, dense
from test_functional import DOUBLE, X, program

from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.execution.functional import EVALUATORS, FunctionalMachine, run
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import Activation, Quantisation, Settings

SIZE = 4096
GUARD = 4096
INDICES = 3 * SIZE // 4
"""From here on memories hold zeros, which are indices of rows in every type."""
HUGE = 1 << 62


class Guarded:
    """Memories with reproducible contents between guards of a given byte."""

    def __init__(self, guard: int) -> None:
        self.guard = guard
        rng = np.random.default_rng(0)
        self.whole = {space: np.full(SIZE + 2 * GUARD, guard, np.uint8) for space in Space}
        for array in self.whole.values():
            array[GUARD : GUARD + INDICES] = rng.integers(0, 3, INDICES)
            array[GUARD + INDICES : -GUARD] = 0
        self.inner = {space: array[GUARD:-GUARD] for space, array in self.whole.items()}
        self.machine = FunctionalMachine(Memories.over(self.inner), budget_instructions=150)

    def assert_intact(self) -> None:
        """Assert that no guard byte has changed."""
        for array in self.whole.values():
            assert (array[:GUARD] == self.guard).all() and (array[-GUARD:] == self.guard).all()


def attempt(command: Command, guard: int) -> tuple[str, dict[Space, Array]]:
    """Return the result or error of a command, and the memories after it."""
    guarded = Guarded(guard)
    try:
        guarded.machine.execute(command)
        ended = "done"
    except EmulatorError as error:
        ended = f"{type(error).__name__} {error.what} {error.why}"
    guarded.assert_intact()
    return ended, guarded.inner


def check(command: Command) -> str:
    """Return the result or error of a command; assert that it touches nothing outside."""
    ended, first = attempt(command, 0xA5)
    again, second = attempt(command, 0x3C)
    assert ended == again
    for space in Space:
        np.testing.assert_array_equal(first[space], second[space])
    if ended != "done":
        for space, array in Guarded(0).inner.items():
            np.testing.assert_array_equal(first[space], array)
    return ended


DIMS = st.lists(st.integers(1, 4), min_size=4, max_size=4).map(tuple)
SMALL_SETTINGS = st.builds(
    Settings,
    kernel=st.tuples(*[st.integers(1, 2)] * 3),
    stride=st.tuples(*[st.integers(1, 2)] * 3),
    dilation=st.tuples(*[st.integers(1, 2)] * 3),
    pad=st.tuples(*[st.integers(-1, 2)] * 3),
    activation=st.sampled_from(Activation),
    axes=st.integers(0, 15),
    mode=st.integers(0, 17),
    alpha=st.floats(),
    beta=st.floats(),
    gamma=st.floats(),
)


@st.composite
def meaningful(draw: st.DrawFn, functions: Iterable[Function] = EVALUATORS) -> Command:
    """Draw a command whose operands match, most of the time."""
    function = draw(st.sampled_from(sorted(functions)))
    dtype = draw(st.sampled_from([DataType.FLOAT32, DataType.FLOAT32, *DataType]))
    chosen, dims = draw(SMALL_SETTINGS), draw(DIMS)
    if function in (Function.SOFTMAX, Function.POOL_AVERAGE):
        chosen = replace(chosen, mode=chosen.mode % 2)
    kernel, m = chosen.kernel, draw(st.integers(1, 3))
    here, there = Space.NB, Space.NB
    shapes: list[tuple[int, ...]] = [dims] * 5
    if function is Function.CONVOLVE:
        there, shapes = Space.SB, [(*dims[:3], m), dims, (*kernel, dims[3], m), (*dims[:3], m), (2, m)]
    elif function is Function.DEPTHWISE:
        wide = (*dims, m)
        shapes = [wide, wide, (*kernel, dims[3], m), wide, (2, dims[3], m)]
    elif function is Function.REDUCE:
        shapes[0] = tuple(1 if chosen.axes >> axis & 1 else size for axis, size in enumerate(dims))
    elif function is Function.TABLE:
        shapes[2] = (2, m + 1)
    elif function is Function.GATHER:
        shapes = [(m, *dims[1:]), dims, (m,), (), ()]
    count = draw(st.sampled_from(_COUNTS[function]))
    spaces = [here, here, there, here, there]
    if function in (Function.LOAD, Function.STORE):
        spaces[1 if function is Function.LOAD else 0] = Space.DDR
    places = []
    for index, shape in enumerate(shapes[: count + 1]):
        kind = (
            draw(st.sampled_from([DataType.INT32, DataType.INT64]))
            if (function, index) == (Function.GATHER, 2)
            else dtype
        )
        if (function, index) == (Function.WHERE, 1):
            kind = DataType.BOOL
        start = INDICES if (function, index) == (Function.GATHER, 2) else draw(st.integers(0, SIZE // 2))
        places.append(Operand(dense(spaces[index], kind, *shape), start))
    absent: list[Operand | None] = [None] * (5 - len(places))
    operands = [*places, *absent]
    return Command(
        function, places[0], *operands[1:], chosen, accumulate=function is Function.CONVOLVE and draw(st.booleans())
    )


_COUNTS: dict[Function, tuple[int, ...]] = dict.fromkeys(Function, (1,)) | {
    Function.FILL: (0,),
    Function.BINARY: (2,),
    Function.GATHER: (2,),
    Function.AFFINE: (3,),
    Function.WHERE: (3,),
    Function.NORMALIZE: (1, 2, 3),
    Function.CONVOLVE: (2, 3, 4),
    Function.DEPTHWISE: (2, 3, 4),
    Function.TABLE: (2,),
}

NUMBERS = st.one_of(
    st.integers(-5, 9), st.sampled_from([0, SIZE, -SIZE, 1 << 31, HUGE, -HUGE]), st.integers(-HUGE, HUGE)
)


def _changed(draw: st.DrawFn, numbers: tuple[int, ...]) -> tuple[int, ...]:
    index = draw(st.integers(0, len(numbers) - 1))
    return (*numbers[:index], draw(NUMBERS), *numbers[index + 1 :])


@st.composite
def operands(draw: st.DrawFn, source: Operand) -> Operand:
    """Draw an operand with one field changed."""
    descriptor, what = (
        source.descriptor,
        draw(st.sampled_from(["address", "space", "dtype", "dims", "strides", "rank"])),
    )
    if what == "address":
        return replace(source, address=draw(NUMBERS))
    if what == "space":
        return replace(source, descriptor=replace(descriptor, space=draw(st.sampled_from(Space))))
    if what == "dtype":
        return replace(source, descriptor=replace(descriptor, dtype=draw(st.sampled_from(DataType))))
    if what == "rank" or not descriptor.dims:
        return replace(
            source,
            descriptor=Descriptor(descriptor.space, descriptor.dtype, descriptor.dims[1:], descriptor.strides[1:]),
        )
    return replace(source, descriptor=replace(descriptor, **{what: _changed(draw, getattr(descriptor, what))}))


_OPERANDS = ("target", "first", "second", "third", "fourth")


@st.composite
def mutated(draw: st.DrawFn) -> Command:
    """Draw a command with up to three fields changed."""
    command = draw(meaningful())
    for _ in range(draw(st.integers(1, 3))):
        present = [name for name in _OPERANDS if getattr(command, name) is not None]
        name = draw(st.sampled_from([*present, *present, "settings", "settings", "function", *_OPERANDS]))
        if name == "function":
            command = replace(command, function=draw(st.sampled_from(Function)))
        elif name == "settings":
            field = draw(st.sampled_from([field.name for field in fields(Settings)]))
            old: Any = getattr(command.settings, field)
            new: Any = draw(st.floats()) if isinstance(old, float) else draw(NUMBERS)
            if isinstance(old, tuple):
                new = _changed(draw, old)
            elif isinstance(old, Activation):
                new = draw(st.sampled_from(Activation))
            elif isinstance(old, Quantisation):
                new = Quantisation(draw(st.floats(0, width=32)), draw(st.integers(-128, 255)))
            command = replace(command, settings=replace(command.settings, **{field: new}))
        else:
            change = operands(getattr(command, name) or command.target)
            command = replace(command, **{name: draw(change)})
    return command


BUSY = settings(max_examples=200)


@BUSY
@given(meaningful())
def test_meaningful_commands(command: Command) -> None:
    """Commands with nearly matching operands compute or are refused, reproducibly and inside their memories."""
    check(command)


@BUSY
@given(mutated())
def test_mutated_commands(command: Command) -> None:
    """Commands with sizes, strides, addresses, spaces and settings out of bounds touch nothing outside."""
    check(command)


@given(meaningful((Function.COPY, Function.FILL, Function.LOAD)))
def test_meaningful_commands_mostly_compute(command: Command) -> None:
    """The fuzzed commands reach the evaluators: an element-wise command on floats is not refused."""
    assert check(command) == "done"


CONVOLUTION = """
    descriptor d2, nb, float32, 4
    axis d2, 0, 1, 64
    axis d2, 1, 2, 32
    axis d2, 2, 2, 16
    axis d2, 3, 1, 4
    descriptor d3, sb, float32, 5
    axis d3, 0, 1, 4
    axis d3, 1, 2, 4
    axis d3, 2, 2, 4
    axis d3, 3, 1, 4
    axis d3, 4, 1, 4
    settings s1, kernel, 0x0000080000400001
    settings s1, modes, 0x0000000000000001
    set r3, 2
again:
    convolve target=r0:d2, first=r0:d2, second=r0:d3, settings=s1
    add_immediate r3, r3, -1
    branch_not_zero r3, again
"""


def _loaded(code: bytes) -> Program:
    return replace(program(DOUBLE), code=code, layer_of=(0,) * (len(code) // INSTRUCTION_BYTES))


def run_guarded(code: bytes, guard: int) -> tuple[str, list[float]]:
    """Return how a program ended, and its output."""
    guarded = Guarded(guard)
    ended, output = "done", np.zeros(0)
    try:
        output = run(_loaded(code), guarded.machine, (), {"x": X})["y"]
    except EmulatorError as error:
        ended = type(error).__name__
    guarded.assert_intact()
    return ended, output.ravel().tolist()


SOUND = assemble(DOUBLE.replace("    set r1, 64\n", CONVOLUTION + "    set r1, 64\n"))


def test_the_program_that_is_mutated_runs() -> None:
    """The unmutated program succeeds."""
    assert run_guarded(SOUND, 1)[0] == "done"


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_programs(changes: list[tuple[int, int]]) -> None:
    """A program with some bytes replaced ends with outputs or an emulator error, inside its memories."""
    code = bytearray(SOUND)
    for place, value in changes:
        code[place] = value
    first, second = run_guarded(bytes(code), 0xA5), run_guarded(bytes(code), 0x3C)
    assert repr(first) == repr(second)
