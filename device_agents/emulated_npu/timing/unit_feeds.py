"""What queues feed: the LLC queue moves only data of the last-level cache, and each unit takes from one queue.

MFU and VFU have separate queues only on some machines.
"""

from __future__ import annotations

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CommandCost
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import Queue


class UnitFeeds:
    """The queues of the commands of a program, by the unit that executes them."""

    __slots__ = ("_apart", "_queues")

    def __init__(self, machine: Machine) -> None:
        self._apart = machine.vfu_queue_depth > 0
        self._queues: dict[bool, Queue] = {}

    def add(self, queue: Queue, cost: CommandCost) -> None:
        """Note a command; raise ExecutionFault if its unit has had one from the other compute queue.

        Also raise it for a command of the LLC queue that uses another memory.
        """
        if queue is Queue.LLC and any(each.resource is not Resource.LLC for each in cost.demands):
            what = "a command of the LLC queue uses DDR"
            raise ExecutionFault(what, "its server moves data of the last-level cache", "Issue it to the IO queue")
        if not self._apart or queue in (Queue.IO, Queue.LLC):
            return
        known = self._queues.setdefault(cost.on_mfu, queue)
        if known is not queue:
            unit = "MFU" if cost.on_mfu else "VFU"
            what = f"the {unit} has commands in the {known.name} queue and in the {queue.name} queue"
            raise ExecutionFault(what, "a unit takes its commands from one queue", "Issue all of them to one queue")
