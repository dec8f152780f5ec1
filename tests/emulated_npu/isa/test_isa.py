"""Instructions survive encoding; invalid bits are rejected with the number of the instruction."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from instruction_strategies import SETTINGS, programs

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.encoding import InvalidInstruction, decode, encode
from device_agents.emulated_npu.isa.instructions import (
    CONTROL_FIELDS,
    DESCRIPTOR_SLOTS,
    INSTRUCTION_BYTES,
    JUMP_TARGET,
    MAX_PEER,
    REGISTERS,
    SEMAPHORES,
    SETTINGS_SLOTS,
    ControlInstruction,
    DataInstruction,
    Instruction,
    Opcode,
    OperandReference,
    control,
)
from device_agents.emulated_npu.isa.settings_words import WORDS, settings_of_words, settings_words
from device_agents.emulated_npu.unit_commands import DataType, Function, Queue, Space
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

PAGE = Path(__file__).parents[3] / "docs" / "isa.md"
HALT = control(Opcode.HALT)
VIEW = OperandReference(1, 1)


@given(programs())
def test_decoding_inverts_encoding(instructions: list[Instruction]) -> None:
    """Every list of valid instructions decodes from its binary unchanged, at 16 bytes each."""
    code = encode(instructions)
    assert len(code) == INSTRUCTION_BYTES * len(instructions)
    assert decode(code) == instructions


@given(programs(), st.data())
def test_a_changed_bit_is_rejected_or_means_another_instruction(
    program: list[Instruction], data: st.DataObject
) -> None:
    """No bit is ignored: after any single flip the code is invalid or decodes to another instruction."""
    code = bytearray(encode(program))
    bit = data.draw(st.integers(0, 8 * len(code) - 1))
    code[bit // 8] ^= 1 << bit % 8
    try:
        changed = decode(bytes(code))
    except InvalidProgram:
        return
    assert changed != program
    assert encode(changed) == code


@given(st.binary(max_size=64))
def test_arbitrary_bytes_decode_exactly_or_not_at_all(code: bytes) -> None:
    """Decoding raises only InvalidProgram, and accepted bytes encode to themselves."""
    try:
        instructions = decode(code)
    except InvalidProgram:
        return
    assert encode(instructions) == code


@given(SETTINGS)
def test_settings_survive_their_words(settings: Settings) -> None:
    """Settings are restored exactly from their words, including signs of zero and infinities."""
    restored = settings_of_words(settings_words(settings))
    assert restored == settings
    assert settings_words(restored) == settings_words(settings)


BAD_CONTROL = [
    control(Opcode.SET, 0, 1),
    control(Opcode.ADD, 0, 1, 2),
    control(Opcode.WAIT, max(Queue) + 1, 0, 1),
    control(Opcode.WAIT, 0, SEMAPHORES, 1),
    control(Opcode.POST, 0, 0, 0),
    control(Opcode.JUMP, 3),
    control(Opcode.BRANCH_LESS, 1, 2, 3),
    control(Opcode.BRANCH_NOT_ZERO, 1, 2**32 - 1),
    control(Opcode.DESCRIPTOR, DESCRIPTOR_SLOTS, 0, 0, 1),
    control(Opcode.DESCRIPTOR, 0, max(Space) + 1, 0, 1),
    control(Opcode.DESCRIPTOR, 0, 0, max(DataType) + 1, 1),
    control(Opcode.DESCRIPTOR, 0, 0, 0, 7),
    control(Opcode.AXIS, 0, 6, 1, 1),
    control(Opcode.AXIS, 0, 0, 0, 1),
    control(Opcode.AXIS, 0, 0, 2**31, 1),
    control(Opcode.LOAD_REGISTER, 1, Space.NB, DataType.FLOAT32, 1, 0),
    control(Opcode.LOAD_REGISTER, 1, max(Space) + 1, DataType.INT32, 1, 0),
    control(Opcode.SETTINGS, 0, 0, settings_words(Settings())[0]),
    control(Opcode.SETTINGS, SETTINGS_SLOTS, 0, settings_words(Settings())[0]),
    control(Opcode.SETTINGS, 1, len(WORDS), 0),
    control(Opcode.SETTINGS, 1, WORDS.index("kernel"), 0),
    control(Opcode.SETTINGS, 1, WORDS.index("pad"), -1),
    control(Opcode.SETTINGS, 1, WORDS.index("modes"), max(Activation) + 1),
    control(Opcode.SETTINGS, 1, WORDS.index("modes"), 1 << 14),
    control(Opcode.SETTINGS, 1, WORDS.index("modes"), 1 << 16),
    ControlInstruction(Opcode.HALT, x=1),
    ControlInstruction(Opcode.FENCE, immediate=-1),
    control(Opcode.SET, REGISTERS, 1),
    control(Opcode.SET, 1, 2**63),
]
BAD_DATA = [
    DataInstruction(Function.LOAD, VIEW),
    DataInstruction(Function.LOAD, VIEW, VIEW, VIEW),
    DataInstruction(Function.BINARY, VIEW, VIEW),
    DataInstruction(Function.FILL, VIEW, VIEW),
    DataInstruction(Function.MAP, VIEW, VIEW, accumulate=True),
    DataInstruction(Function.SEND, VIEW, VIEW, peer=1, own_queue=True),
    DataInstruction(Function.CONVOLVE, VIEW, VIEW, VIEW, own_queue=True),
    DataInstruction(Function.CONVOLVE, VIEW, VIEW, None, VIEW),
    DataInstruction(Function.MAP, OperandReference(1, DESCRIPTOR_SLOTS), VIEW),
    DataInstruction(Function.MAP, VIEW, OperandReference(1, DESCRIPTOR_SLOTS)),
    DataInstruction(Function.MAP, VIEW, OperandReference(REGISTERS, 1)),
    DataInstruction(Function.MAP, VIEW, VIEW, settings=SETTINGS_SLOTS),
    DataInstruction(Function.MAP, VIEW, VIEW, peer=1),
    DataInstruction(Function.SEND, VIEW, VIEW),
    DataInstruction(Function.RECEIVE, VIEW, peer=MAX_PEER + 1),
]


@pytest.mark.parametrize("bad", [*BAD_CONTROL, *BAD_DATA], ids=str)
def test_a_field_out_of_range_names_the_instruction(bad: Instruction) -> None:
    """A field out of range is refused with the index of the instruction."""
    with pytest.raises(InvalidInstruction, match="instruction 2 ") as caught:
        encode([HALT, HALT, bad])
    assert caught.value.index == 2


@pytest.mark.parametrize(
    "word",
    [
        struct.pack("<QQ", 0, 0),
        struct.pack("<QQ", 0x0F, 0),
        struct.pack("<QQ", 0x25, 0),
        struct.pack("<QQ", 0xFF, 0),
        struct.pack("<BB11x3B", Function.FILL, 0, 0, 0, 1),
        struct.pack("<BB11xH1x", Function.FILL, 0, 1),
        struct.pack("<BB12B2x", Function.FILL, 1 << 6, *[0] * 12),
        struct.pack("<BB2xB11x", Function.FILL, 0, 9),
    ],
    ids=[
        "never written",
        "control",
        "data",
        "all ones",
        "reserved byte",
        "needless peer",
        "reserved flag",
        "absent operand",
    ],
)
def test_invalid_words_are_rejected(word: bytes) -> None:
    """Unknown opcodes, reserved bits and operands without a flag are rejected."""
    with pytest.raises(InvalidInstruction, match="instruction 1 "):
        decode(encode([HALT]) + word)


def test_a_part_of_an_instruction_is_rejected() -> None:
    """Code that is not a whole number of instructions is rejected."""
    with pytest.raises(InvalidProgram, match="whole number"):
        decode(encode([HALT]) + b"\x01")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(kernel=(1, 1, 2**21)),
        Settings(stride=(0, 1, 1)),
        Settings(pad=(-(2**20) - 1, 0, 0)),
        Settings(pad=(0, 2**20, 0)),
        Settings(axes=64),
        Settings(mode=-1),
        Settings(mode=2**31),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_rejected(settings: Settings) -> None:
    """A settings value that its bits cannot hold is an error."""
    with pytest.raises(InvalidProgram):
        settings_words(settings)


def test_the_tables_cover_the_instruction_set() -> None:
    """Every opcode has fields, and the numbers of opcodes and functions are distinct."""
    assert set(CONTROL_FIELDS) == set(Opcode)
    assert not set(map(int, Opcode)) & set(map(int, Function))


@pytest.mark.parametrize(
    "name",
    [
        *(f"`{member.name}`" for kind in (Opcode, Function, Activation, Binary, Reduction) for member in kind),
        *(f"`{member.name}`" for kind in (Space, DataType, Queue) for member in kind),
        *(f"`{word}`" for word in WORDS),
    ],
)
def test_the_page_names_everything(name: str) -> None:
    """docs/isa.md lists every instruction, function, activation, mode, memory, type, queue and settings word."""
    assert name in PAGE.read_text("utf-8")


@pytest.mark.parametrize("opcode", list(Opcode), ids=lambda opcode: opcode.name)
def test_the_page_has_every_field(opcode: Opcode) -> None:
    """The row of an instruction in docs/isa.md has its number and its fields at their bytes."""
    places = {"x": "1", "y": "2", "z": "3", "word": "4..7", "immediate": "8..15"}
    (row,) = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{opcode.name}` | "))
    assert f"| {int(opcode):#04x} |" in row
    for field in CONTROL_FIELDS[opcode]:
        assert f"{places[field.place]}: {field.name}" in row
    assert (JUMP_TARGET in {field.kind for field in CONTROL_FIELDS[opcode]}) == ("target" in row.split("|")[3])


@pytest.mark.parametrize("function", list(Function), ids=lambda function: function.name)
def test_the_page_has_the_operands_of_every_function(function: Function) -> None:
    """The row of a function in docs/isa.md has its number, operands, accumulation and peer."""
    (row,) = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{function.name}` | "))
    _, _, number, operands, *_ = row.split("|")
    rule = function.rule
    expected = ["target", *rule.required, *(f"[{name}]" for name in rule.optional)]
    assert number.strip() == f"{int(function):#04x}"
    assert operands.strip() == ", ".join(expected + ["[accumulate]"] * rule.accumulates + ["peer"] * rule.names_peer)
