"""The function of a table that a user gives: linear between its breakpoints."""

from __future__ import annotations

import numpy as np

from device_agents.emulated_npu.execution.activations import activate_own
from device_agents.emulated_npu.execution.operand_memories import fault
from device_agents.emulated_npu.execution.vector_unit import check_dims, check_floating, computing
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command

_FEWEST_BREAKPOINTS = 2


def piecewise_linear(command: Command, target: Array, first: Array, second: Array) -> Array:
    """TABLE: return the function of every element; the first and the last segment continue without end."""
    check_dims(command, target, first)
    check_floating(command, first)
    check_floating(command, second)
    if second.ndim != 2 or len(second) != 2 or second.shape[1] < _FEWEST_BREAKPOINTS:
        raise fault(command, f"a table of dims {second.shape}")
    x, (breakpoints, values) = computing(first), computing(second)
    widths = np.diff(breakpoints)
    if not (widths > 0).all():
        raise fault(command, "the breakpoints of the table do not ascend")
    slopes = np.diff(values) / widths
    segment = np.clip(np.searchsorted(breakpoints, x, side="right") - 1, 0, slopes.size - 1)
    found = np.asarray(x - breakpoints[segment])
    found *= slopes[segment]
    found += values[segment]
    return activate_own(found, command.settings)
