"""The memories in which the operands of each function may lie; isa/instructions.py lists the operands."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.instructions import OPERAND_RULES, SOURCES
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

ANYWHERE = frozenset(Space)
EXTERNAL = frozenset({Space.DDR, Space.LLC})
NEURONS = frozenset({Space.NB, Space.HALO})
WEIGHTS = frozenset({Space.SB})
SCRATCHPAD = NEURONS | WEIGHTS


# The memories in which the target and each source may lie; the operands of the vector unit lie in NEURONS.
_REACHES: Mapping[Function, tuple[frozenset[Space], ...]] = dict.fromkeys(Function, (NEURONS,) * 5) | {
    Function.LOAD: (ANYWHERE, EXTERNAL),
    Function.STORE: (EXTERNAL, ANYWHERE),
    Function.SEND: (EXTERNAL, ANYWHERE),
    Function.RECEIVE: (EXTERNAL,),
    Function.GATHER: (ANYWHERE, ANYWHERE, ANYWHERE),
    Function.CONVOLVE: (NEURONS, NEURONS, WEIGHTS, NEURONS, WEIGHTS),
    Function.COPY: (SCRATCHPAD, SCRATCHPAD),
    Function.FILL: (SCRATCHPAD,),
}

_OPTIONAL = {function: tuple(name in rule.optional for name in SOURCES) for function, rule in OPERAND_RULES.items()}
_COUNTS = {function: len(rule.required) + len(rule.optional) for function, rule in OPERAND_RULES.items()}


def fault(command: Command, why: str) -> ExecutionFault:
    """Return the error for a command with invalid operands or settings."""
    return ExecutionFault(f"{command.function.name} has invalid operands or settings", why)


def operands_of(command: Command) -> tuple[Operand | None, ...]:
    """Return the sources that the command's function takes, None for an absent optional one.

    Raises ExecutionFault if one is missing, superfluous or in a memory that the unit cannot reach.
    """
    function = command.function
    reach, optional, count = _REACHES[function], _OPTIONAL[function], _COUNTS[function]
    given = (command.first, command.second, command.third, command.fourth)
    if command.target.descriptor.space not in reach[0]:
        raise fault(command, f"the target lies in {command.target.descriptor.space.name}")
    if command.accumulate and not OPERAND_RULES[function].accumulate:
        raise fault(command, "it does not accumulate")
    for index in range(count):
        operand = given[index]
        if operand is None:
            if not optional[index]:
                raise fault(command, f"the operand {SOURCES[index]} is missing")
        elif operand.descriptor.space not in reach[index + 1]:
            raise fault(command, f"the operand {SOURCES[index]} lies in {operand.descriptor.space.name}")
    for operand in given[count:]:
        if operand is not None:
            raise fault(command, f"it takes {count} operands beside the target")
    return given[:count]
