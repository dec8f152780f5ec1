"""The assembler: one instruction per line, labels for jump targets, comments after a hash.

`assemble(disassemble(code)) == code` for all valid code, and `disassemble(assemble(text)) == text` for every text that
`disassemble` writes. docs/isa.md describes the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.encoding import InvalidInstruction, decode, encode
from device_agents.emulated_npu.isa.instructions import (
    BITS,
    CONTROL_FIELDS,
    JUMP_TARGET,
    ControlInstruction,
    DataInstruction,
    Field,
    Instruction,
    Opcode,
    OperandReference,
    control,
)
from device_agents.emulated_npu.isa.settings_words import (
    QUANTISED,
    WORDS,
    bits_float,
    unpack_quantisation,
    unpack_signed_triple,
    unpack_triple,
)
from device_agents.emulated_npu.unit_commands import NO_PEER, SOURCES, Function
from device_agents.emulated_npu.unit_settings import Activation

_JUMPS = (Opcode.JUMP, Opcode.BRANCH_NOT_ZERO, Opcode.BRANCH_LESS)
_OPCODES = {opcode.name.lower(): opcode for opcode in Opcode}
_FUNCTIONS = {function.name.lower(): function for function in Function}
_LABEL = re.compile(r"\s*([A-Za-z_]\w*):")
_OPERAND = re.compile(r"r([0-9]{1,4}):d([0-9]{1,4})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,19})|0x[0-9a-fA-F]{1,16}")


def disassemble(code: bytes) -> str:
    """Return the code as text, with a final newline unless it is empty; raise InvalidProgram if it does not decode."""
    instructions = decode(code)
    targets = {one.word for one in instructions if isinstance(one, ControlInstruction) and one.opcode in _JUMPS}
    lines = []
    for index, one in enumerate(instructions):
        if index in targets:
            lines.append(f"L{index}:\n")
        lines.append(f"    {_data_text(one) if isinstance(one, DataInstruction) else _control_text(one)}\n")
    return "".join(lines)


def _control_text(instruction: ControlInstruction) -> str:
    opcode = instruction.opcode
    values = [_field_text(field, getattr(instruction, field.place)) for field in CONTROL_FIELDS[opcode]]
    comment = f"  # {_meaning(instruction.y, instruction.immediate)}" if opcode is Opcode.SETTINGS else ""
    return f"{opcode.name.lower()} {', '.join(values)}".rstrip() + comment


def _field_text(field: Field, value: int) -> str:
    kind = field.kind
    if kind.names:
        return kind.names[value]
    if kind is BITS:
        return f"0x{value & (1 << 64) - 1:016x}"
    return f"{'L' if kind is JUMP_TARGET else kind.prefix}{value}"


def _meaning(word: int, bits: int) -> str:
    """Return the meaning of a settings word, for the comment of its line."""
    name = WORDS[word]
    if name == "modes":
        return f"activation {Activation(bits & 0xFF).name}, axes {bits >> 8 & 0xFF:#08b}, mode {bits >> 32}"
    if name in ("alpha", "beta", "gamma"):
        return repr(bits_float(bits))
    if name in QUANTISED:
        quantisation = unpack_quantisation(bits)
        return f"scale {quantisation.scale!r}, zero point {quantisation.zero_point}"
    triple = unpack_signed_triple(bits) if name == "pad" else unpack_triple(bits)
    return " x ".join(map(str, triple))


def _data_text(instruction: DataInstruction) -> str:
    parts = []
    for name in ("target", *SOURCES):
        operand: OperandReference | None = getattr(instruction, name)
        if operand is not None:
            parts.append(f"{name}=r{operand.register}:d{operand.slot}")
    if instruction.peer != NO_PEER:
        parts.append(f"peer=c{instruction.peer}")
    if instruction.settings:
        parts.append(f"settings=s{instruction.settings}")
    if instruction.accumulate:
        parts.append("accumulate")
    if instruction.own_queue:
        parts.append("own_queue")
    return f"{instruction.function.name.lower()} {', '.join(parts)}"


def assemble(text: str) -> bytes:
    """Return the code of a text; raise InvalidProgram, naming the line, if the text is invalid."""
    statements: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        rest = line.partition("#")[0]
        while match := _LABEL.match(rest):
            if match[1] in labels:
                raise _invalid(number, f"the label {match[1]} is defined twice")
            labels[match[1]] = len(statements)
            rest = rest[match.end() :]
        if rest.strip():
            statements.append((number, rest.strip()))
    instructions = [_instruction(number, statement, labels) for number, statement in statements]
    try:
        return encode(instructions)
    except InvalidInstruction as error:
        number, statement = statements[error.index]
        raise _invalid(number, f"`{statement}` {error.fault}") from error


def _invalid(number: int, what: str) -> InvalidProgram:
    return InvalidProgram(f"line {number}: {what}", next_step="Correct the line; docs/isa.md has the syntax")


def _instruction(number: int, statement: str, labels: Mapping[str, int]) -> Instruction:
    mnemonic, *rest = statement.split(maxsplit=1)
    parts = [part.strip() for part in rest[0].split(",")] if rest else []
    try:
        if mnemonic in _FUNCTIONS:
            return _data_instruction(_FUNCTIONS[mnemonic], parts)
        if mnemonic in _OPCODES:
            return _control_instruction(_OPCODES[mnemonic], parts, labels)
    except ValueError as error:
        raise _invalid(number, f"`{statement}`: {error}") from error
    raise _invalid(number, f"there is no instruction `{mnemonic}`")


def _control_instruction(opcode: Opcode, parts: list[str], labels: Mapping[str, int]) -> ControlInstruction:
    fields = CONTROL_FIELDS[opcode]
    if len(parts) != len(fields):
        expected = ", ".join(field.name for field in fields) or "nothing"
        raise ValueError(f"{opcode.name.lower()} is followed by {expected}")
    return control(opcode, *(_field_value(field, part, labels) for field, part in zip(fields, parts, strict=True)))


def _field_value(field: Field, text: str, labels: Mapping[str, int]) -> int:
    kind = field.kind
    if kind.names:
        if text not in kind.names:
            raise ValueError(f"{field.name} is one of {', '.join(kind.names)}")
        return kind.names.index(text)
    if kind is JUMP_TARGET:
        if text not in labels:
            raise ValueError(f"there is no label {text}")
        return labels[text]
    value = _number(field.name, kind.prefix, text)
    if kind is BITS and value >= 1 << 63:
        value -= 1 << 64
    if not kind.low <= value <= kind.high:
        raise ValueError(f"{field.name} is not in {kind.low}..{kind.high}")
    return value


def _data_instruction(function: Function, parts: list[str]) -> DataInstruction:
    operands: dict[str, OperandReference] = {}
    settings, accumulate, own_queue, peer, seen = 0, False, False, NO_PEER, set()
    for part in parts:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)
        if name in ("target", *SOURCES):
            if not (match := _OPERAND.fullmatch(value)):
                raise ValueError(f"{name} is written {name}=rN:dN, a register and a descriptor slot")
            operands[name] = OperandReference(int(match[1]), int(match[2]))
        elif name == "settings":
            settings = _number("settings", "s", value)
        elif name == "peer":
            peer = _number("peer", "c", value)
        elif part == "accumulate":
            accumulate = True
        elif part == "own_queue":
            own_queue = True
        else:
            raise ValueError(f"{part!r} is not an operand, peer, settings, accumulate or own_queue")
    if "target" not in operands:
        raise ValueError("there is no target")
    return DataInstruction(
        function, **operands, settings=settings, accumulate=accumulate, peer=peer, own_queue=own_queue
    )


def _number(name: str, prefix: str, text: str) -> int:
    digits = text.removeprefix(prefix)
    if not text.startswith(prefix) or not _NUMBER.fullmatch(digits):
        raise ValueError(f"{name} is written {prefix or 'as a number'}{'N' if prefix else ''}")
    return int(digits, 0)
