"""A functional machine that counts what it executes, for comparison with the counts of reports."""

from device_agents.emulated_npu.execution.functional import FunctionalMachine
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.timing.cost.command_cost import macs
from device_agents.emulated_npu.unit_commands import Command


class CountingMachine(FunctionalMachine):
    """Counts commands, and multiply-adds of the matrix unit and of depthwise windows, taps on padding included."""

    def __init__(self, memories: Memories) -> None:
        super().__init__(memories)
        self.commands = self.multiply_adds = 0

    def execute(self, command: Command) -> None:
        """Execute a command, and count it."""
        super().execute(command)
        self.commands += 1
        self.multiply_adds += macs(command)
