"""Sliding windows: which outputs see which inputs, and limits on what one command may ask for."""

from __future__ import annotations

import math

from device_agents.emulated_npu.execution.signatures import fault
from device_agents.emulated_npu.unit_commands import Command, Triple

# The largest layers of known networks need 2^32 multiply-adds; a command that asks for more than this is an error.
MOST_OPERATIONS = 1 << 37
# Elements of one temporary array: half a gibibyte in float32.
MOST_TEMPORARY_ELEMENTS = 1 << 27
# A convolution is cut into blocks of about this many elements of its windows, which fit a processor's cache
BLOCK_ELEMENTS = 1 << 19


def check_window(command: Command, operations: int) -> None:
    """Raises ExecutionFault for a step below 1, or for more than 2^37 `operations`."""
    settings = command.settings
    if min(*settings.kernel, *settings.stride, *settings.dilation) < 1:
        raise fault(
            command, f"kernel {settings.kernel}, stride {settings.stride}, dilation {settings.dilation}: all from 1"
        )
    if operations > MOST_OPERATIONS:
        raise fault(command, f"{operations} operations are more than the limit of {MOST_OPERATIONS}")


def outputs_inside(outputs: int, size: int, stride: int, offset: int) -> tuple[int, int]:
    """The outputs [low, high) of `outputs` whose input, at `output * stride + offset`, is one of `size`."""
    low = max(0, -(offset // stride))
    high = min(outputs, (size - 1 - offset) // stride + 1)
    return low, max(low, high)


def taps_inside(kernel: int, dilation: int, pad: int, size: int, last: int) -> range:
    """The taps that can meet an input: `last` is the first input under the last output's window, before padding."""
    first_tap = max(0, -((last - pad) // dilation))
    end_tap = min(kernel, (size - 1 + pad) // dilation + 1)
    return range(first_tap, max(first_tap, end_tap))


def reach(outputs: Triple, kernel: Triple, stride: Triple, dilation: Triple) -> Triple:
    """Inputs from the first to the last that the windows of `outputs` span along each axis, with padding."""
    d, h, w = ((o - 1) * s + (k - 1) * p + 1 for o, k, s, p in zip(outputs, kernel, stride, dilation, strict=True))
    return d, h, w


def check_temporary(command: Command, *sizes: int) -> None:
    """Raises ExecutionFault if an array of these sizes would be larger than a command may need."""
    if math.prod(sizes) > MOST_TEMPORARY_ELEMENTS:
        raise fault(command, f"{math.prod(sizes)} elements at a time are more than {MOST_TEMPORARY_ELEMENTS}")
