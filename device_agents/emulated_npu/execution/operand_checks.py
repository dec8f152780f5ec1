"""Checks of a command before it computes: its operands, its windows, and limits on its size."""

from __future__ import annotations

import math

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.unit_commands import SOURCES, Command, Function, Operand
from device_agents.emulated_npu.unit_settings import Triple

_OPTIONAL = {function: tuple(name in function.rule.optional for name in SOURCES) for function in Function}
_COUNTS = {function: len(function.rule.required) + len(function.rule.optional) for function in Function}
# The largest layers of known networks need 2^32 multiply-adds; a command with more than this is an error.
MOST_OPERATIONS = 1 << 37
# Elements of one temporary array: half a gibibyte in float32.
MOST_TEMPORARY_ELEMENTS = 1 << 27
# A convolution is divided into blocks of about this many window elements, which fit the processor's cache.
BLOCK_ELEMENTS = 1 << 19


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


def check_window(command: Command, operations: int) -> None:
    """Raise ExecutionFault for a kernel, stride or dilation below 1, and for more than 2^37 `operations`."""
    settings = command.settings
    if min(*settings.kernel, *settings.stride, *settings.dilation) < 1:
        raise fault(
            command,
            f"kernel {settings.kernel}, stride {settings.stride}, dilation {settings.dilation}: all must be at least 1",
        )
    if operations > MOST_OPERATIONS:
        raise fault(command, f"{operations} operations exceed the limit of {MOST_OPERATIONS}")


def outputs_inside(outputs: int, size: int, stride: int, offset: int) -> tuple[int, int]:
    """Return the range [low, high) of outputs whose input, `output * stride + offset`, lies in 0..size."""
    low = max(0, -(offset // stride))
    high = min(outputs, (size - 1 - offset) // stride + 1)
    return low, max(low, high)


def taps_inside(kernel: int, dilation: int, pad: int, size: int, last: int) -> range:
    """Return the taps that can meet an input; `last` is the first input of the last window, without padding."""
    first_tap = max(0, -((last - pad) // dilation))
    end_tap = min(kernel, (size - 1 + pad) // dilation + 1)
    return range(first_tap, max(first_tap, end_tap))


def reach(outputs: Triple, kernel: Triple, stride: Triple, dilation: Triple) -> Triple:
    """Return how many inputs the windows of `outputs` span along each axis, padding included."""
    d, h, w = ((o - 1) * s + (k - 1) * p + 1 for o, k, s, p in zip(outputs, kernel, stride, dilation, strict=True))
    return d, h, w


def check_temporary(command: Command, *sizes: int) -> None:
    """Raise ExecutionFault if an array of these sizes exceeds the limit for one command."""
    if math.prod(sizes) > MOST_TEMPORARY_ELEMENTS:
        raise fault(command, f"{math.prod(sizes)} elements at a time exceed the limit of {MOST_TEMPORARY_ELEMENTS}")
