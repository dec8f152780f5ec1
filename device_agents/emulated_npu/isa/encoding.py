"""The strict codec of instructions: 16 bytes each, little-endian; docs/isa.md lists the position of every field."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable

import numpy as np

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.instructions import (
    ACCUMULATE_FLAG,
    CONTROL_FIELDS,
    DESCRIPTOR_SLOTS,
    INSTRUCTION_BYTES,
    INTEGER_TYPES,
    OWN_QUEUE_FLAG,
    SETTINGS_SLOTS,
    SOURCE_FLAGS,
    ControlInstruction,
    DataInstruction,
    Instruction,
    Opcode,
    OperandReference,
)
from device_agents.emulated_npu.isa.settings_words import invalid_words
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import NO_PEER, Function

_CONTROL_STRUCT = struct.Struct("<BBBBIq")
_DATA_STRUCT = struct.Struct("<13BHx")
_CONTROL_ROW = np.dtype(
    [("opcode", "u1"), ("x", "u1"), ("y", "u1"), ("z", "u1"), ("word", "<u4"), ("immediate", "<i8")]
)
_DATA_ROW = np.dtype(
    [("opcode", "u1"), ("flags", "u1"), ("operands", "u1", (5, 2)), ("settings", "u1"), ("peer", "<u2"), ("zero", "u1")]
)
_ABSENT = (0, 0)
_AGAIN = "Compile the network again"


class InvalidInstruction(InvalidProgram):
    """The instruction at `index` is not valid, for the reason `fault`."""

    def __init__(self, index: int, fault: str) -> None:
        super().__init__(f"instruction {index} {fault}", "the code is damaged or of another instruction set", _AGAIN)
        self.index, self.fault = index, fault


def encode(instructions: Iterable[Instruction]) -> bytes:
    """Return the instructions as binary code; raise InvalidInstruction for one that could not be decoded again."""
    packed = []
    for index, instruction in enumerate(instructions):
        try:
            packed.append(_pack(instruction))
        except struct.error as error:
            raise InvalidInstruction(index, f"cannot be encoded: {error}") from error
    code = b"".join(packed)
    _check(code)
    return code


def decode(code: bytes) -> list[Instruction]:
    """Return the instructions of binary code.

    Raises InvalidInstruction for an unknown opcode, a reserved bit that is set, a field out of range, a jump out of the
    code, and operands that the function does not take; InvalidProgram for a truncated instruction.
    """
    control, data = _check(code)
    found: list[Instruction | None] = [None] * (len(code) // INSTRUCTION_BYTES)
    rows = np.frombuffer(code, _CONTROL_ROW)[control]
    opcodes = [_OPCODES[number] for number in rows["opcode"].tolist()]
    columns = [rows[name].tolist() for name in ("x", "y", "z", "word", "immediate")]
    for index, one in zip(control.tolist(), map(ControlInstruction, opcodes, *columns), strict=True):
        found[index] = one
    rows = np.frombuffer(code, _DATA_ROW)[data]
    for index, other in zip(data.tolist(), _data_instructions(rows), strict=True):
        found[index] = other
    return found  # type: ignore[return-value]  # _check leaves no row without a class


_OPCODES = {int(opcode): opcode for opcode in Opcode}
_FUNCTIONS = {int(function): function for function in Function}
_BYTES = np.arange(256)
_IS_CONTROL, _IS_DATA = np.isin(_BYTES, list(Opcode)), np.isin(_BYTES, list(Function))
_NAMES_PEER = np.isin(_BYTES, [function for function in Function if function.rule.names_peer])
"""By the byte of an opcode: `isin` takes far longer than a lookup in a short program."""


def _data_instructions(rows: Array) -> Iterable[DataInstruction]:
    functions = [_FUNCTIONS[number] for number in rows["opcode"].tolist()]
    flags = rows["flags"]
    operands = [_references(rows["operands"][:, 0], np.ones(len(rows), bool))]
    operands += [_references(rows["operands"][:, k], flags & (1 << k) != 0) for k in range(1, 5)]
    accumulates = (flags & ACCUMULATE_FLAG).astype(bool).tolist()
    in_own_queue = (flags & OWN_QUEUE_FLAG).astype(bool).tolist()
    peers = np.where(_NAMES_PEER[rows["opcode"]], rows["peer"].astype(np.int64), NO_PEER).tolist()
    return map(DataInstruction, functions, *operands, rows["settings"].tolist(), accumulates, peers, in_own_queue)


def _references(pairs: Array, present: Array) -> list[OperandReference | None]:
    packed = np.where(present, pairs[:, 0].astype(np.int64) << 8 | pairs[:, 1], -1).tolist()
    # Few pairs are distinct, and a lookup is faster than a new object.
    table = {key: None if key < 0 else OperandReference(key >> 8, key & 0xFF) for key in set(packed)}
    return [table[key] for key in packed]


def _pack(instruction: Instruction) -> bytes:
    if isinstance(instruction, ControlInstruction):
        return _CONTROL_STRUCT.pack(*instruction)
    function, target, first, second, third, fourth, settings, accumulate, peer, own_queue = instruction
    rule = function.rule
    if rule.names_peer != (peer != NO_PEER):
        raise struct.error(f"{function.name} {'names a' if rule.names_peer else 'takes no'} peer")
    flags = ACCUMULATE_FLAG * accumulate | OWN_QUEUE_FLAG * own_queue
    flags |= (first is not None) << 1 | (second is not None) << 2 | (third is not None) << 3 | (fourth is not None) << 4
    operands = (*target, *(first or _ABSENT), *(second or _ABSENT), *(third or _ABSENT), *(fourth or _ABSENT))
    return _DATA_STRUCT.pack(function, flags, *operands, settings, peer if rule.names_peer else 0)


@functools.lru_cache(maxsize=8)
def _check(code: bytes) -> tuple[Array, Array]:
    """Return the indices of the instructions in control and in data format; raise if one is invalid.

    Code that was just encoded is soon decoded.
    """
    if len(code) % INSTRUCTION_BYTES:
        what = f"code of {len(code)} bytes is not a whole number of {INSTRUCTION_BYTES}-byte instructions"
        raise InvalidProgram(what, "the last instruction is cut short", _AGAIN)
    opcodes = np.frombuffer(code, np.uint8)[::INSTRUCTION_BYTES]
    is_control, is_data = _IS_CONTROL[opcodes], _IS_DATA[opcodes]
    _reject(np.flatnonzero(~(is_control | is_data)), "has an unknown opcode", opcodes)
    control, data = np.flatnonzero(is_control), np.flatnonzero(is_data)
    _check_control(np.frombuffer(code, _CONTROL_ROW), control)
    _check_data(np.frombuffer(code, _DATA_ROW)[data], data)
    return control, data


def _check_control(rows: Array, control: Array) -> None:
    for opcode, fields in CONTROL_FIELDS.items():
        indices = control[rows["opcode"][control] == opcode]
        if not indices.size:
            continue
        of_opcode = rows[indices]
        limits = {one.place: (f"{opcode.name} {one.name}", one.kind.low, one.kind.high) for one in fields}
        for place in ("x", "y", "z", "word", "immediate"):
            name, low, high = limits.get(place, (f"{opcode.name}: a reserved bit", 0, 0))
            values = of_opcode[place]
            _reject(indices[(values < low) | (values > high)], f"{name} is not in {low}..{high}", rows[place])
    jumps = control[np.isin(rows["opcode"][control], (Opcode.JUMP, Opcode.BRANCH_NOT_ZERO, Opcode.BRANCH_LESS))]
    _reject(jumps[rows["word"][jumps] >= len(rows)], f"jumps out of the program of {len(rows)}", rows["word"])
    loads = control[rows["opcode"][control] == Opcode.LOAD_REGISTER]
    other = loads[~np.isin(rows["z"][loads], INTEGER_TYPES)]
    _reject(other, "loads a register from a type that is not an integer", rows["z"])
    settings = control[rows["opcode"][control] == Opcode.SETTINGS]
    wrong = invalid_words(rows["y"][settings], rows["immediate"][settings])
    _reject(settings[wrong], "SETTINGS bits are invalid for this word", rows["immediate"])


def _check_data(rows: Array, indices: Array) -> None:
    flags = rows["flags"]
    _reject(indices[rows["zero"] != 0], "has a reserved byte that is not zero")
    for function in [_FUNCTIONS[number] for number in sorted(set(rows["opcode"].tolist()))]:
        rule = function.rule
        required = sum(SOURCE_FLAGS[name] for name in rule.required)
        optional = sum(SOURCE_FLAGS[name] for name in rule.optional) + (ACCUMULATE_FLAG if rule.accumulates else 0)
        optional += OWN_QUEUE_FLAG if rule.has_own_queue else 0
        here, name = rows["opcode"] == function, function.name
        _reject(indices[here & (flags & required != required)], f"{name} lacks one of {', '.join(rule.required)}")
        if not rule.names_peer:
            _reject(indices[here & (rows["peer"] != 0)], f"{name} takes no peer")
        superfluous = here & (flags & ~np.uint8(required | optional) != 0)
        _reject(indices[superfluous], f"{name} has an operand or flag that it does not take")
    for position in range(5):
        registers, slots = rows["operands"][:, position, 0], rows["operands"][:, position, 1]
        _reject(indices[slots >= DESCRIPTOR_SLOTS], f"has a descriptor slot beyond {DESCRIPTOR_SLOTS - 1}")
        if position:
            absent = (flags & (1 << position)) == 0
            _reject(indices[absent & ((registers | slots) != 0)], "has an operand without its flag")
    _reject(indices[rows["settings"] >= SETTINGS_SLOTS], f"has a settings slot beyond {SETTINGS_SLOTS - 1}")


def _reject(indices: Array, why: str, values: Array | None = None) -> None:
    if indices.size:
        index = int(indices[0])
        value = "" if values is None else f" ({int(values[index]):#x})"
        raise InvalidInstruction(index, why + value)
