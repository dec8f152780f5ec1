"""The operands of a command, checked against the rule of its function: their number and memories."""

from __future__ import annotations

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.unit_commands import SOURCES, Command, Function, Operand

_OPTIONAL = {function: tuple(name in function.rule.optional for name in SOURCES) for function in Function}
_COUNTS = {function: len(function.rule.required) + len(function.rule.optional) for function in Function}


def fault(command: Command, why: str) -> ExecutionFault:
    """Return the error for a command with invalid operands or settings."""
    return ExecutionFault(f"{command.function.name} has invalid operands or settings", why)


def operands_of(command: Command) -> tuple[Operand | None, ...]:
    """Return the sources that the command's function takes, None for an absent optional one.

    Raises ExecutionFault if one is missing, superfluous or in a memory that the unit cannot reach.
    """
    function = command.function
    reach, optional, count = function.rule.reaches, _OPTIONAL[function], _COUNTS[function]
    given = (command.first, command.second, command.third, command.fourth)
    if command.target.descriptor.space not in reach[0]:
        raise fault(command, f"the target lies in {command.target.descriptor.space.name}")
    if command.accumulate and not function.rule.accumulates:
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
