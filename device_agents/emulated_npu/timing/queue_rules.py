"""Rules of queues that all engines share: hidden latency (`Machine.io_outstanding`), and what a queue may feed.

The IO queue stays in order: data move one transfer after the other. But the latency of a transfer begins with its
request to memory. That is sent once the transfer is issued, the WAIT and message before it in its queue are satisfied,
and fewer than `io_outstanding` transfers are in flight. A POST before it delays nothing.

The LLC queue moves only data of the last-level cache, and each unit takes from one queue; MFU and VFU have separate
queues only on some machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CommandCost
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Queue, Wait

_MESSAGES = (Function.SEND, Function.RECEIVE)


class TransferWindow:
    """The transfers in flight of one IO queue, at most `depth`."""

    __slots__ = ("_ends", "_not_before_ps")

    def __init__(self, depth: int) -> None:
        self._ends = deque([0] * depth, maxlen=depth)
        self._not_before_ps = 0

    def asked_ps(self, issued_ps: int) -> int:
        """Return when the next transfer is requested."""
        return max(issued_ps, self._not_before_ps, self._ends[0])

    def end(self, now_ps: int) -> None:
        """Note the end of a transfer."""
        self._ends.append(now_ps)

    def block(self, now_ps: int) -> None:
        """Ask for no transfer before this time."""
        self._not_before_ps = now_ps

    def end_ps(self, item: Item | None, served_ps: int, issued_ps: int, demands: Sequence[Demand]) -> int:
        """Return the end of an entry that leaves its queue at `served_ps`, without other users of the memories."""
        if isinstance(item, Command):
            is_message = item.function in _MESSAGES
            asked_ps = served_ps if is_message else self.asked_ps(issued_ps)
            ends = (max(served_ps, asked_ps + one.latency_ps) + one.work_ps for one in demands)
            end_ps = max(ends, default=served_ps)
            self.end(end_ps)
            if is_message:
                self.block(end_ps)
            return end_ps
        if isinstance(item, Wait):
            self.block(served_ps)
        return served_ps


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
