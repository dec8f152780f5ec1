"""Registers, slots and loops become the right commands, or the error names the wrong instruction."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from instruction_strategies import SETTINGS, programs

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, ExecutionFault, InvalidProgram
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.encoding import encode
from device_agents.emulated_npu.isa.instructions import DataInstruction, Instruction, Opcode, OperandReference, control
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.isa.settings_words import settings_words
from device_agents.emulated_npu.unit_commands import (
    Command,
    DataType,
    Descriptor,
    Fence,
    Function,
    Item,
    Operand,
    Post,
    Queue,
    Space,
    Wait,
)
from device_agents.emulated_npu.unit_settings import Settings

ROW = Descriptor(Space.NB, DataType.FLOAT32, (8,), (4,))
SLOT = "descriptor d0, nb, float32, 1\naxis d0, 0, 8, 4\n"


def _items(text: str) -> list[Item]:
    return [step.item for step in sequence(assemble(text)) if step.item is not None]


def _fill(address: int) -> Command:
    return Command(Function.FILL, Operand(ROW, address))


def test_a_loop_is_unrolled() -> None:
    """A counted loop with an advancing address gives one command per round."""
    body = "again: fill target=r1:d0\nadd_immediate r1, r1, -32\nadd_immediate r2, r2, -1\nbranch_not_zero r2, again\n"
    items = _items(f"{SLOT}set r1, 100\nset r2, 3\n{body}halt")
    assert items == [_fill(100), _fill(68), _fill(36)]


def test_nested_loops_by_comparison() -> None:
    """Loops nest, BRANCH_LESS compares signed numbers, ADD adds registers, and JUMP goes to its target."""
    items = _items(
        SLOT
        + """
            set r1, -2
            set r10, 0
        outer:
            set r2, 0
        inner:
            add r3, r1, r2
            fill target=r3:d0
            add_immediate r2, r2, 10
            set r4, 20
            branch_less r2, r4, inner
            add_immediate r1, r1, 1
            branch_less r1, r10, outer
            jump end
            fill target=r0:d0
        end:
            halt
        """
    )
    assert items == [_fill(address) for address in (-2, 8, -1, 9)]


@pytest.mark.parametrize("step", ["add_immediate r1, r1, 1", "set r2, 1\nadd r1, r1, r2"])
def test_registers_wrap(step: str) -> None:
    """Arithmetic is 64-bit two's complement."""
    (item,) = _items(SLOT + f"set r1, 9223372036854775807\n{step}\nfill target=r1:d0\nhalt")
    assert item == _fill(-(2**63))


def test_slots_are_read_at_issue() -> None:
    """A later write to a slot or register does not change an earlier command."""
    first, second, third = _items(
        SLOT + "set r1, 4\nfill target=r1:d0\naxis d0, 0, 2, -4\nset r1, 12\nfill target=r1:d0\n"
        "descriptor d0, halo, int8, 0\nfill target=r1:d0\nhalt"
    )
    assert first == _fill(4)
    assert second == Command(Function.FILL, Operand(Descriptor(Space.NB, DataType.FLOAT32, (2,), (-4,)), 12))
    assert third == Command(Function.FILL, Operand(Descriptor(Space.HALO, DataType.INT8, (), ()), 12))


def test_the_rank_alone_decides_which_axes_count() -> None:
    """A header keeps the axes of its slot, so a rank can shrink and grow again."""
    text = SLOT + "axis d0, 1, 5, 7\ndescriptor d0, nb, float32, 2\nfill target=r0:d0\nhalt"
    assert _items(text) == [Command(Function.FILL, Operand(Descriptor(Space.NB, DataType.FLOAT32, (8, 5), (4, 7)), 0))]


@given(st.lists(SETTINGS, min_size=1, max_size=4))
def test_settings_reach_the_command(values: list[Settings]) -> None:
    """The words of a slot become the settings of the command; slot 0 holds the defaults."""
    code: list[Instruction] = [control(Opcode.DESCRIPTOR, 0, Space.NB, DataType.FLOAT32, 0)]
    for settings in values:
        code += [control(Opcode.SETTINGS, 5, word, bits) for word, bits in enumerate(settings_words(settings))]
        code.append(DataInstruction(Function.FILL, OperandReference(0, 0), settings=5))
    code += [DataInstruction(Function.FILL, OperandReference(0, 0)), control(Opcode.HALT)]
    found = [step.item.settings for step in sequence(code) if isinstance(step.item, Command)]
    assert found == [*values, Settings()]


def test_settings_not_written_are_the_defaults() -> None:
    """The first word written to a slot leaves the others at their defaults."""
    (item,) = _items(SLOT + "settings s1, alpha, 0x3ff0000000000000\nfill target=r0:d0, settings=s1\nhalt")
    assert isinstance(item, Command)
    assert item.settings == Settings(alpha=1.0)


def test_control_instructions_are_counted() -> None:
    """Each CONFIG or CONTROL instruction counts for the next item; HALT counts at the end; items do not count."""
    text = SLOT + "fill target=r0:d0\nwait cp, m3, 2\nset r1, 1\npost io, m4, 5\nfence\njump end\nend: halt"
    steps = list(sequence(assemble(text), layer_of=range(9)))
    assert steps == [
        IssuedStep(2, Command(Function.FILL, Operand(ROW, 0), layer=2), 2),
        IssuedStep(3, Wait(Queue.CP, 3, 2, layer=3), 0),
        IssuedStep(5, Post(Queue.IO, 4, 5, layer=5), 1),
        IssuedStep(6, Fence(layer=6), 0),
        IssuedStep(8, None, 2),
    ]


@given(programs())
def test_every_executed_instruction_is_counted_once(program: list[Instruction]) -> None:
    """Items and control counts add up to the instructions executed, and the budget is exact."""
    budget = 200
    executed = 0
    try:
        for step in sequence(program, budget_instructions=budget, registers_from_memory=lambda *_: 0):
            loads = step.item is not None and program[step.pc][0] is Opcode.LOAD_REGISTER
            executed += step.control + (step.item is not None and not loads)
    except ExecutionFault:
        assert executed <= budget
    else:
        replay = sequence(program, budget_instructions=executed, registers_from_memory=lambda *_: 0)
        assert list(replay)[-1].item is None
        if executed > 1:
            with pytest.raises(BudgetExceeded):
                list(sequence(program, budget_instructions=executed - 1, registers_from_memory=lambda *_: 0))


def test_a_register_from_memory() -> None:
    """LOAD_REGISTER issues a fence, then reads the element, whose value may end a loop."""
    memory = iter([-1, 7, 0])
    asked = []

    def read(space: Space, dtype: DataType, address: int) -> int:
        asked.append((space, dtype, address))
        return next(memory)

    code = assemble("set r2, 100\nagain: load_register r1, llc, int8, r2, -4\nbranch_not_zero r1, again\nhalt")
    steps = list(sequence(code, registers_from_memory=read))
    assert asked == [(Space.LLC, DataType.INT8, 96)] * 3
    assert steps == [
        IssuedStep(1, Fence(), 1),
        IssuedStep(1, Fence(), 2),
        IssuedStep(1, Fence(), 2),
        IssuedStep(3, None, 3),
    ]


def test_the_load_happens_after_the_fence() -> None:
    """The value is read only when the step after the fence is requested, when the fence has taken effect."""
    reads: list[int] = []

    def read(_: Space, __: DataType, address: int) -> int:
        reads.append(address)
        return 0

    steps: Iterator[IssuedStep] = sequence(
        assemble("load_register r1, nb, int32, r0, 8\nhalt"), registers_from_memory=read
    )
    assert next(steps).item == Fence()
    assert reads == []
    assert next(steps).item is None
    assert reads == [8]


def test_a_value_from_memory_without_a_memory_is_a_fault() -> None:
    """Timing a program that depends on values raises an error that says so."""
    steps = sequence(assemble("fence\nload_register r1, nb, int32, r0, 0\nhalt"))
    with pytest.raises(ExecutionFault, match="instruction 1") as caught:
        list(steps)
    assert "time of this program depends on values" in caught.value.why


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fill target=r0:d3", "instruction 1 uses descriptor slot 3, which no DESCRIPTOR has set"),
        ("descriptor d3, nb, int8, 1\nfill target=r0:d3", "instruction 2 uses descriptor slot 3, whose axis 0"),
        (SLOT + "fill target=r0:d0, settings=s2", "instruction 3 uses settings slot 2"),
        ("", "runs off its end after instruction 0"),
        (
            SLOT + "settings s1, modes, 0x1300000000\nbinary target=r0:d0, first=r0:d0, second=r0:d0, settings=s1",
            "instruction 4: BINARY has no mode 19",
        ),
        (
            SLOT + "settings s1, modes, 0x900000000\nreduce target=r0:d0, first=r0:d0, settings=s1",
            "instruction 4: REDUCE has no mode 9",
        ),
    ],
)
def test_a_fault_names_its_instruction(text: str, complaint: str) -> None:
    """Unset slots, invalid modes and a missing HALT are reported with the instruction."""
    with pytest.raises(ExecutionFault, match=complaint):
        list(sequence(assemble("fence\n" + text)))


def test_empty_code_is_refused() -> None:
    """Empty code has a message of its own, which names no instruction."""
    with pytest.raises(ExecutionFault, match="has no instructions"):
        list(sequence(b""))


def test_an_endless_loop_exceeds_the_budget() -> None:
    """An endless loop stops at the budget, with or without items in it."""
    with pytest.raises(BudgetExceeded, match="after 1000 instructions"):
        list(sequence(assemble("here: jump here"), budget_instructions=1000))
    steps = sequence(assemble("here: fence\njump here"), budget_instructions=1000)
    assert len(list(itertools.islice(steps, 500))) == 500
    with pytest.raises(BudgetExceeded):
        next(steps)


def test_a_jump_out_of_the_program_does_not_decode() -> None:
    """Code that jumps out of itself is rejected before it runs."""
    code = encode([control(Opcode.JUMP, 1), control(Opcode.HALT)])
    with pytest.raises(InvalidProgram, match="instruction 0 jumps out"):
        sequence(code[:16])


def test_equal_views_are_one_object() -> None:
    """Equal descriptors and settings are the same object, so caches may compare by identity."""
    first, second = _items(
        SLOT + SLOT.replace("d0", "d1") + "settings s1, alpha, 0x0\nsettings s2, beta, 0x0\n"
        "fill target=r0:d0, settings=s1\nfill target=r0:d1, settings=s2\nhalt"
    )
    assert isinstance(first, Command)
    assert isinstance(second, Command)
    assert first.target.descriptor is second.target.descriptor
    assert first.settings is second.settings
