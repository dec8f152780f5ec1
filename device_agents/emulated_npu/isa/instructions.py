"""The instruction set: its instructions and the meaning of their fields.

docs/isa.md describes every field; encoding.py encodes and decodes instructions, settings_words.py settings. There are
two formats: the control format (CONTROL and CONFIG: three bytes, a 32-bit word, a 64-bit immediate) and the data format
(IO and CP: five operands, each a register with the address and a descriptor slot with the shape, and a settings slot).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.isa.settings_words import WORDS
from device_agents.emulated_npu.unit_commands import MAX_RANK, NO_PEER, SOURCES, DataType, Function, Queue, Space

INSTRUCTION_BYTES = 16
REGISTERS = 256  # 64 bits, two's complement; register 0 is always 0
DESCRIPTOR_SLOTS = 128
SETTINGS_SLOTS = 32  # slot 0 always holds Settings()
SEMAPHORES = 16
MAX_DIM = 2**31 - 1
MAX_COUNT = 2**31 - 1
MAX_PEER = 2**16 - 1


class Opcode(enum.IntEnum):
    """CONTROL (0x01 to 0x0f) and CONFIG (0x10 to 0x1f); data instructions use the numbers of Function.

    Zero is not an opcode, so memory that was never written does not run.
    """

    HALT = 0x01
    WAIT = 0x02
    POST = 0x03
    FENCE = 0x04
    JUMP = 0x05
    BRANCH_NOT_ZERO = 0x06
    BRANCH_LESS = 0x07
    SET = 0x10
    ADD_IMMEDIATE = 0x11
    ADD = 0x12
    LOAD_REGISTER = 0x13
    DESCRIPTOR = 0x14
    AXIS = 0x15
    SETTINGS = 0x16


class ControlInstruction(NamedTuple):
    """An instruction in the control format; CONTROL_FIELDS defines x, y, z, word and immediate."""

    opcode: Opcode
    x: int = 0
    y: int = 0
    z: int = 0
    word: int = 0
    immediate: int = 0


class OperandReference(NamedTuple):
    """An operand of an instruction: the register that holds its address and the slot that holds its descriptor."""

    register: int
    slot: int


class DataInstruction(NamedTuple):
    """An instruction in the data format: a Command before its registers and slots are read."""

    function: Function
    target: OperandReference
    first: OperandReference | None = None
    second: OperandReference | None = None
    third: OperandReference | None = None
    fourth: OperandReference | None = None
    settings: int = 0
    accumulate: bool = False
    peer: int = NO_PEER
    own_queue: bool = False


Instruction = ControlInstruction | DataInstruction


@dataclass(frozen=True, eq=False)
class FieldKind:
    """The meaning of a field: its lowest and highest value, and its form in assembly (a prefix, or names)."""

    low: int
    high: int
    prefix: str = ""
    names: tuple[str, ...] = ()


def _named(members: type[enum.IntEnum]) -> FieldKind:
    return FieldKind(0, max(members), names=tuple(member.name.lower() for member in members))


_WRITTEN_REGISTER = FieldKind(1, REGISTERS - 1, "r")
_REGISTER = FieldKind(0, REGISTERS - 1, "r")
_SPACE = _named(Space)
_INTEGER = FieldKind(-(2**63), 2**63 - 1)
BITS = FieldKind(-(2**63), 2**63 - 1)
JUMP_TARGET = FieldKind(0, 2**32 - 1)  # index of an instruction
INTEGER_TYPE = _named(DataType)
INTEGER_TYPES = (DataType.INT8, DataType.INT32, DataType.INT64, DataType.BOOL, DataType.UINT8)


class Field(NamedTuple):
    """A field of the control format; its place is x, y, z, word or immediate."""

    name: str
    place: str
    kind: FieldKind


_SYNCHRONISATION = (
    Field("queue", "x", _named(Queue)),
    Field("semaphore", "y", FieldKind(0, SEMAPHORES - 1, "m")),
    Field("count", "word", FieldKind(1, MAX_COUNT)),
)
_RD = Field("rd", "x", _WRITTEN_REGISTER)
_RA = Field("ra", "y", _REGISTER)
_SLOT = Field("slot", "x", FieldKind(0, DESCRIPTOR_SLOTS - 1, "d"))
_TARGET = Field("target", "word", JUMP_TARGET)

CONTROL_FIELDS: Mapping[Opcode, tuple[Field, ...]] = {
    Opcode.HALT: (),
    Opcode.WAIT: _SYNCHRONISATION,
    Opcode.POST: _SYNCHRONISATION,
    Opcode.FENCE: (),
    Opcode.JUMP: (_TARGET,),
    Opcode.BRANCH_NOT_ZERO: (Field("ra", "x", _REGISTER), _TARGET),
    Opcode.BRANCH_LESS: (Field("ra", "x", _REGISTER), Field("rb", "y", _REGISTER), _TARGET),
    Opcode.SET: (_RD, Field("value", "immediate", _INTEGER)),
    Opcode.ADD_IMMEDIATE: (_RD, _RA, Field("value", "immediate", _INTEGER)),
    Opcode.ADD: (_RD, _RA, Field("rb", "z", _REGISTER)),
    Opcode.LOAD_REGISTER: (
        _RD,
        Field("space", "word", _SPACE),
        Field("dtype", "z", INTEGER_TYPE),
        _RA,
        Field("offset", "immediate", _INTEGER),
    ),
    Opcode.DESCRIPTOR: (
        _SLOT,
        Field("space", "y", _SPACE),
        Field("dtype", "z", _named(DataType)),
        Field("rank", "word", FieldKind(0, MAX_RANK)),
    ),
    Opcode.AXIS: (
        _SLOT,
        Field("axis", "y", FieldKind(0, MAX_RANK - 1)),
        Field("dim", "word", FieldKind(1, MAX_DIM)),
        Field("stride", "immediate", _INTEGER),
    ),
    Opcode.SETTINGS: (
        Field("slot", "x", FieldKind(1, SETTINGS_SLOTS - 1, "s")),
        Field("word", "y", FieldKind(0, len(WORDS) - 1, names=WORDS)),
        Field("bits", "immediate", BITS),
    ),
}
"""The fields of every CONTROL and CONFIG instruction, in assembly order; all other bits are zero."""


def control(opcode: Opcode, *values: int) -> ControlInstruction:
    """Return an instruction in the control format; `values` are in the order of CONTROL_FIELDS."""
    fields = CONTROL_FIELDS[opcode]
    if len(fields) != len(values):
        raise TypeError(f"{opcode.name} has the fields {[field.name for field in fields]}, not {len(values)} values")
    return ControlInstruction(opcode, **{field.place: value for field, value in zip(fields, values, strict=True)})


ACCUMULATE_FLAG = 1
OWN_QUEUE_FLAG = 32
SOURCE_FLAGS: Mapping[str, int] = {name: 2 << index for index, name in enumerate(SOURCES)}
