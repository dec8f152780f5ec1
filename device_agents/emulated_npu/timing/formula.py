"""The network time of S2.6 from the static program: decoded and unrolled, but not run.

`network time = wait time + max(sum of IO times, sum of CP times)`; wait time is how long the queue with the larger sum
is idle until the end. Queues of the VFU and of the last-level cache have separate sums. It is a recurrence over the
items in program order. The control unit takes no time: the time of CONFIG and CONTROL instructions is in no sum. Queue
depths and semaphores are respected. The k-th unit taken is the k-th unit posted, in program order; this is exact if
only one queue posts a semaphore and only one waits for it, as in the compiler's programs.

Independent of single_core.py on purpose: each checks the other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.failures import locked
from device_agents.emulated_npu.timing.queue_rules import TransferWindow, UnitFeeds
from device_agents.emulated_npu.unit_commands import Command, Fence, Post, Queue, Wait


@dataclass(frozen=True)
class Formula:
    """The terms of S2.6 in picoseconds: total = wait + max(io, cp, vfu_queue, llc_queue)."""

    io_ps: int
    cp_ps: int
    wait_ps: int
    total_ps: int
    vfu_queue_ps: int = 0
    llc_queue_ps: int = 0


def formula(
    steps: Iterable[IssuedStep],
    machine: Machine,
    *,
    costs: CostModel | None = None,
    durations: dict[int, tuple[Command, int]] | None = None,
) -> Formula:
    """Evaluate the formula of S2.6 for the steps of a program.

    `durations` keeps the times of commands, by their identity, from one evaluation to the next on the same machine.

    Raises `Deadlock` if a WAIT has no POST that can be issued, naming its instruction, and `ExecutionFault` for an
    invalid command.
    """
    recurrence = _Recurrence(machine, costs or CostModel(machine), {} if durations is None else durations)
    for step in steps:
        recurrence.add(step)
    return recurrence.result()


class _QueueState:
    """One queue: when it is free, when its last entries left, and the entries from an unresolved WAIT on."""

    __slots__ = ("busy_ps", "free_ps", "left_ps", "pending", "window")

    def __init__(self, depth: int, window: TransferWindow | None) -> None:
        self.window = window
        self.busy_ps = 0
        self.free_ps = 0
        self.left_ps = deque([0] * depth, maxlen=depth)
        self.pending: deque[tuple[IssuedStep, int]] = deque()


@dataclass(slots=True)
class _Units:
    """The units of one semaphore in program order, with the times they were posted."""

    _posts: deque[tuple[int, int]] = field(default_factory=deque)
    spare: int = 0

    def post(self, count: int, at_ps: int) -> None:
        self._posts.append((count, at_ps))
        self.spare += count

    def take(self, count: int) -> int | None:
        """Return when the last of the next `count` units was posted; None if not all are posted yet."""
        if count > self.spare:
            return None
        self.spare -= count
        at_ps = 0
        while count:
            there, posted_ps = self._posts.popleft()
            at_ps = max(at_ps, posted_ps)
            if there > count:
                self._posts.appendleft((there - count, posted_ps))
            count -= min(there, count)
        return at_ps


class _Recurrence:
    def __init__(self, machine: Machine, costs: CostModel, durations: dict[int, tuple[Command, int]]) -> None:
        self._costs = costs
        self._of_queue = {
            queue: _QueueState(depth, _window(machine, queue)) for queue, depth in machine.queue_depths.items()
        }
        self._lanes = tuple(self._of_queue.values())
        self._lane_of = tuple(self._of_queue[machine.queue_of(queue)] for queue in Queue)
        self._feeds = UnitFeeds(machine)
        self._units: defaultdict[int, _Units] = defaultdict(_Units)
        self._durations = durations
        self._issue_ps = 0

    def add(self, step: IssuedStep) -> None:
        """Add the next item in program order; it leaves its queue immediately if its time is known."""
        item = step.item
        if item is None:
            return
        if isinstance(item, Fence):
            if any(lane.pending for lane in self._lanes):
                raise self._stuck()
            self._issue_ps = max(self._issue_ps, *(lane.free_ps for lane in self._lanes))
            return
        lane = self._lane_of[item.queue]
        if lane.pending:
            # It takes the place of the entry that left `depth` entries ago, before the pending ones.
            behind = len(lane.pending)
            if behind >= len(lane.left_ps):
                raise self._stuck()
            self._issue_ps = max(self._issue_ps, lane.left_ps[behind])
            lane.pending.append((step, self._issue_ps))
        else:
            if lane.left_ps[0] > self._issue_ps:
                self._issue_ps = lane.left_ps[0]
            if not self._serve(lane, item, self._issue_ps):
                lane.pending.append((step, self._issue_ps))
            elif isinstance(item, Post):
                self._resume()

    def result(self) -> Formula:
        if any(lane.pending for lane in self._lanes):
            raise self._stuck()
        end_ps = max(self._issue_ps, *(lane.free_ps for lane in self._lanes))
        busy_ps = {queue: lane.busy_ps for queue, lane in self._of_queue.items()}
        wait_ps = end_ps - max(busy_ps.values())
        vfu_queue_ps, llc_queue_ps = busy_ps.get(Queue.VFU, 0), busy_ps.get(Queue.LLC, 0)
        return Formula(busy_ps[Queue.IO], busy_ps[Queue.CP], wait_ps, end_ps, vfu_queue_ps, llc_queue_ps)

    def _serve(self, lane: _QueueState, item: Command | Wait | Post, issue_ps: int) -> bool:
        """Serve an entry; return False for a WAIT whose units are not posted yet."""
        at_ps = issue_ps if issue_ps > lane.free_ps else lane.free_ps
        duration_ps = 0
        if isinstance(item, Command):
            duration_ps = self._duration_ps(lane, item, at_ps, issue_ps)
            lane.busy_ps += duration_ps
        elif isinstance(item, Post):
            self._units[item.semaphore].post(item.count, at_ps)
        else:
            there_ps = self._units[item.semaphore].take(item.count)
            if there_ps is None:
                return False
            at_ps = max(at_ps, there_ps)
            if lane.window is not None:
                lane.window.block(at_ps)
        lane.left_ps.append(at_ps)
        lane.free_ps = at_ps + duration_ps
        return True

    def _resume(self) -> None:
        """After a POST, serve the pending entries of all queues as far as possible."""
        served = True
        while served:
            served = False
            for lane in self._lanes:
                while lane.pending:
                    step, issue_ps = lane.pending[0]
                    item = step.item
                    if item is None or isinstance(item, Fence) or not self._serve(lane, item, issue_ps):
                        break
                    lane.pending.popleft()
                    served = True

    def _duration_ps(self, lane: _QueueState, command: Command, at_ps: int, issue_ps: int) -> int:
        if lane.window is not None:
            return lane.window.end_ps(command, at_ps, issue_ps, self._costs.demands(command)) - at_ps
        # A loop issues the same object again; the entry keeps it alive, so its id stays unique.
        known = self._durations.get(id(command))
        if known is None:
            cost = self._costs.cost(command)
            self._feeds.add(command.queue, cost)
            known = self._durations[id(command)] = (command, cost.duration_ps)
        return known[1]

    def _stuck(self) -> Deadlock:
        heads = {queue: lane.pending[0][0] if lane.pending else None for queue, lane in self._of_queue.items()}
        return locked(heads, None, lambda number: self._units[number].spare)


def _window(machine: Machine, queue: Queue) -> TransferWindow | None:
    """Return the transfers in flight of a queue, where the latency of one passes while others move their data."""
    moves = queue in (Queue.IO, Queue.LLC) and machine.io_outstanding > 1
    return TransferWindow(machine.io_outstanding) if moves else None
