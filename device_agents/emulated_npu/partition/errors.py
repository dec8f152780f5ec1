"""What can be wrong with what is asked of a partition; what does not fit is `DoesNotFit`, as elsewhere."""

from __future__ import annotations

from device_agents.emulated_npu.errors import EmulatorError


class InvalidPartition(EmulatorError):
    """A graph, core list, coefficient or threshold that contradicts itself; names the value and its limit."""
