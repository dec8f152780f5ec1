"""Sliding windows: which inputs each output reads, and limits on the size of one command."""

from __future__ import annotations

import math

from device_agents.emulated_npu.execution.operand_memories import fault
from device_agents.emulated_npu.unit_commands import Command
from device_agents.emulated_npu.unit_settings import Triple

# The largest layers of known networks need 2^32 multiply-adds; a command with more than this is an error.
MOST_OPERATIONS = 1 << 37
# Elements of one temporary array: half a gibibyte in float32.
MOST_TEMPORARY_ELEMENTS = 1 << 27
# A convolution is divided into blocks of about this many window elements, which fit the processor's cache.
BLOCK_ELEMENTS = 1 << 19


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
