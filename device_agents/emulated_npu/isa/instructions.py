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
from device_agents.emulated_npu.unit_commands import MAX_RANK, NO_PEER, DataType, Function, Queue, Space

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


Instruction = ControlInstruction | DataInstruction


class FieldKind(enum.Enum):
    """The meaning of a field; determines its range and its form in assembly."""

    WRITTEN_REGISTER = enum.auto()  # not register 0
    REGISTER = enum.auto()
    DESCRIPTOR_SLOT = enum.auto()
    SETTINGS_SLOT = enum.auto()  # not slot 0
    SETTINGS_WORD = enum.auto()
    SEMAPHORE = enum.auto()
    QUEUE = enum.auto()
    SPACE = enum.auto()
    DATA_TYPE = enum.auto()
    INTEGER_TYPE = enum.auto()
    RANK = enum.auto()
    AXIS = enum.auto()
    DIM = enum.auto()
    COUNT = enum.auto()
    TARGET = enum.auto()  # index of an instruction
    INTEGER = enum.auto()
    BITS = enum.auto()


INTEGER_TYPES = (DataType.INT8, DataType.INT32, DataType.INT64, DataType.BOOL, DataType.UINT8)

_INT64 = (-(2**63), 2**63 - 1)
_RANGES: Mapping[FieldKind, tuple[int, int]] = {
    FieldKind.WRITTEN_REGISTER: (1, REGISTERS - 1),
    FieldKind.REGISTER: (0, REGISTERS - 1),
    FieldKind.DESCRIPTOR_SLOT: (0, DESCRIPTOR_SLOTS - 1),
    FieldKind.SETTINGS_SLOT: (1, SETTINGS_SLOTS - 1),
    FieldKind.SETTINGS_WORD: (0, len(WORDS) - 1),
    FieldKind.SEMAPHORE: (0, SEMAPHORES - 1),
    FieldKind.QUEUE: (0, max(Queue)),
    FieldKind.SPACE: (0, max(Space)),
    FieldKind.DATA_TYPE: (0, max(DataType)),
    FieldKind.INTEGER_TYPE: (0, max(DataType)),
    FieldKind.RANK: (0, MAX_RANK),
    FieldKind.AXIS: (0, MAX_RANK - 1),
    FieldKind.DIM: (1, MAX_DIM),
    FieldKind.COUNT: (1, MAX_COUNT),
    FieldKind.TARGET: (0, 2**32 - 1),
    FieldKind.INTEGER: _INT64,
    FieldKind.BITS: _INT64,
}


class Field(NamedTuple):
    """A field of the control format; its place is x, y, z, word or immediate."""

    name: str
    place: str
    kind: FieldKind

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest value."""
        return _RANGES[self.kind]


_SYNCHRONISATION = (
    Field("queue", "x", FieldKind.QUEUE),
    Field("semaphore", "y", FieldKind.SEMAPHORE),
    Field("count", "word", FieldKind.COUNT),
)
_RD = Field("rd", "x", FieldKind.WRITTEN_REGISTER)
_RA = Field("ra", "y", FieldKind.REGISTER)
_SLOT = Field("slot", "x", FieldKind.DESCRIPTOR_SLOT)
_TARGET = Field("target", "word", FieldKind.TARGET)

CONTROL_FIELDS: Mapping[Opcode, tuple[Field, ...]] = {
    Opcode.HALT: (),
    Opcode.WAIT: _SYNCHRONISATION,
    Opcode.POST: _SYNCHRONISATION,
    Opcode.FENCE: (),
    Opcode.JUMP: (_TARGET,),
    Opcode.BRANCH_NOT_ZERO: (Field("ra", "x", FieldKind.REGISTER), _TARGET),
    Opcode.BRANCH_LESS: (Field("ra", "x", FieldKind.REGISTER), Field("rb", "y", FieldKind.REGISTER), _TARGET),
    Opcode.SET: (_RD, Field("value", "immediate", FieldKind.INTEGER)),
    Opcode.ADD_IMMEDIATE: (_RD, _RA, Field("value", "immediate", FieldKind.INTEGER)),
    Opcode.ADD: (_RD, _RA, Field("rb", "z", FieldKind.REGISTER)),
    Opcode.LOAD_REGISTER: (
        _RD,
        Field("space", "word", FieldKind.SPACE),
        Field("dtype", "z", FieldKind.INTEGER_TYPE),
        _RA,
        Field("offset", "immediate", FieldKind.INTEGER),
    ),
    Opcode.DESCRIPTOR: (
        _SLOT,
        Field("space", "y", FieldKind.SPACE),
        Field("dtype", "z", FieldKind.DATA_TYPE),
        Field("rank", "word", FieldKind.RANK),
    ),
    Opcode.AXIS: (
        _SLOT,
        Field("axis", "y", FieldKind.AXIS),
        Field("dim", "word", FieldKind.DIM),
        Field("stride", "immediate", FieldKind.INTEGER),
    ),
    Opcode.SETTINGS: (
        Field("slot", "x", FieldKind.SETTINGS_SLOT),
        Field("word", "y", FieldKind.SETTINGS_WORD),
        Field("bits", "immediate", FieldKind.BITS),
    ),
}
"""The fields of every CONTROL and CONFIG instruction, in assembly order; all other bits are zero."""


def control(opcode: Opcode, *values: int) -> ControlInstruction:
    """Return an instruction in the control format; `values` are in the order of CONTROL_FIELDS."""
    fields = CONTROL_FIELDS[opcode]
    if len(fields) != len(values):
        raise TypeError(f"{opcode.name} has the fields {[field.name for field in fields]}, not {len(values)} values")
    return ControlInstruction(opcode, **{field.place: value for field, value in zip(fields, values, strict=True)})


@dataclass(frozen=True)
class OperandRule:
    """The operands of a function beside the target: required and optional ones.

    `accumulate`: the function may add to its target. `peer`: it names another core.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    accumulate: bool = False
    peer: bool = False


SOURCES = ("first", "second", "third", "fourth")
_ONE, _TWO, _THREE = SOURCES[:1], SOURCES[:2], SOURCES[:3]

OPERAND_RULES: Mapping[Function, OperandRule] = {
    Function.LOAD: OperandRule(_ONE),
    Function.STORE: OperandRule(_ONE),
    Function.GATHER: OperandRule(_TWO),
    Function.SEND: OperandRule((), _ONE, peer=True),
    Function.RECEIVE: OperandRule((), peer=True),
    Function.CONVOLVE: OperandRule(_TWO, ("third", "fourth"), accumulate=True),
    Function.COPY: OperandRule(_ONE),
    Function.FILL: OperandRule(()),
    Function.MAP: OperandRule(_ONE),
    Function.BINARY: OperandRule(_TWO),
    Function.AFFINE: OperandRule(_THREE),
    Function.WHERE: OperandRule(_THREE),
    Function.REDUCE: OperandRule(_ONE),
    Function.SOFTMAX: OperandRule(_ONE),
    Function.NORMALIZE: OperandRule(_ONE, ("second", "third")),
    Function.LRN: OperandRule(_ONE),
    Function.POOL_MAX: OperandRule(_ONE),
    Function.POOL_AVERAGE: OperandRule(_ONE),
    Function.DEPTHWISE: OperandRule(_TWO, ("third", "fourth")),
}
"""The operands and flags of each function."""

ACCUMULATE_FLAG = 1
SOURCE_FLAGS: Mapping[str, int] = {name: 2 << index for index, name in enumerate(SOURCES)}
