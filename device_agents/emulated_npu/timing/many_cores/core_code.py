"""The steps of many cores, translated into the numbers that their engine runs on.

The translation computes, once per step, everything that is the same in every run: durations, shared resources, the
message that a RECEIVE takes, the ring whose slots a SEND waits for.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand, demands_across, message_ps
from device_agents.emulated_npu.timing.queue_rules import UnitFeeds
from device_agents.emulated_npu.timing.resources import TICKET_BITS, Resource, SharedResource, transfer_key
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Post, Queue, Wait

# The kind of a step is the number of its queue, or one of these.
FENCE, NO_ITEM = 3, 4
# The operation of a queue entry. A value from 0 on is a simple command: in a compute queue its duration, in the IO
# queue the ticket of its only transfer and, above TICKET_BITS, the latency before the transfer.
WAIT, POST, TRANSFERS, SEND, RECEIVE = -1, -2, -3, -4, -5
NONE = -1


@dataclass(frozen=True)
class CoreSteps:
    """The work of one core for one input: its number on the machine, its group, its steps in program order."""

    core: int
    group: int
    steps: Sequence[IssuedStep]


@dataclass(slots=True)
class GroupState:
    """Cores that start the next input together, and a ring of `depth` slots for data that other groups send them."""

    depth: int
    members: list[int] = field(default_factory=list)  # indices of its cores
    running: int = 0
    latest_ps: int = 0
    ends_ps: list[int] = field(default_factory=list)
    waiting: dict[int, list[int]] = field(default_factory=dict)  # by run: cores whose SEND waits for its end


@dataclass(slots=True)
class Channel:
    """Messages on their way from one core to another, by arrival time."""

    receiver: int  # index of the core
    arrivals: deque[int] = field(default_factory=deque)
    parked: bool = False  # the receiver waits for the next message


class MessageTransfer(NamedTuple):
    """The message of a SEND or RECEIVE.

    `joins`: the transfers of a SEND, encoded as in `ops`. `ring`: the group whose ring slot it fills. `channel`:
    None if no core takes the message, or none sends it. `delay_ps`: the latency of the links. `is_foreign`: the peer
    belongs to another group.
    """

    joins: tuple[int, ...]
    ring: GroupState | None
    channel: Channel | None
    delay_ps: int
    is_foreign: bool


@dataclass(slots=True)
class CoreCode:
    """The translated steps of one core.

    `machine` is that of its kind. By step: `kinds` and `gaps` (issue time). By queue, then entry: the operation
    (`ops`), and semaphore and count of WAIT and POST (`units`). By entry of the IO queue: the `transfers` of a command
    with several, and `messages`. `mfu_ps`, `vfu_ps` and `vfu_queue_ps` are the times of the units and of the VFU queue.
    """

    index: int
    source: CoreSteps
    group: GroupState
    machine: Machine
    kinds: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    ops: tuple[list[int], ...] = field(default_factory=lambda: ([], [], []))
    units: tuple[list[tuple[int, int]], ...] = field(default_factory=lambda: ([], [], []))
    transfers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    messages: dict[int, MessageTransfer] = field(default_factory=dict)
    semaphores: dict[int, int] = field(default_factory=dict)  # index by number
    mfu_ps: int = 0
    vfu_ps: int = 0
    vfu_queue_ps: int = 0

    def add(self, queue: Queue, op: int, units: tuple[int, int] = (NONE, 0)) -> None:
        """Append an entry to a queue."""
        self.ops[queue].append(op)
        self.units[queue].append(units)

    def step_of(self, queue: Queue, entry: int) -> IssuedStep:
        """Return the step of a queue entry."""
        of_queue = (step for step, kind in zip(self.source.steps, self.kinds, strict=True) if kind == queue)
        return next(itertools.islice(of_queue, entry, None))


@dataclass(slots=True)
class ResourceUse:
    """The load of all cores on one resource in one run."""

    work_ps: int = 0
    moved_bytes: int = 0


class Translation:
    """All cores of a stream. Resources have the numbers chip x 4 + Resource; tickets follow after them.

    `owners`, `keys` and `places` hold the core, the key (resources.py) and the resource of each ticket; `reads` holds
    the reads that may reach several cores. Raises `ExecutionFault` for an invalid command.
    """

    def __init__(
        self, cores: Sequence[CoreSteps], machine: Machine, costs: CostModel, depths: Mapping[int, int]
    ) -> None:
        self.machine, self._costs = machine, {machine: costs}
        self.resources = len(Resource) * machine.cores.chips
        self.owners, self.keys = [0] * self.resources, [0] * self.resources
        self.places = list(range(self.resources))
        self.uses = [ResourceUse() for _ in range(self.resources)]
        self.reads: dict[int, Read] = {}
        self._tickets: dict[tuple[int, int, int, object], int] = {}
        self._indices = {each.core: index for index, each in enumerate(cores)}
        self.groups = _groups(cores, depths)
        self.codes = [
            CoreCode(index, each, self.groups[each.group], machine.of_core(each.core))
            for index, each in enumerate(cores)
        ]
        self._sent, self._taken = _messages(cores)
        self._channels = {pair: Channel(self._indices[pair[1]]) for pair in self._sent}
        for code in self.codes:
            self._translate(code)

    def _translate(self, code: CoreCode) -> None:
        passed: Counter[tuple[int, int, Function]] = Counter()
        machine = code.machine
        feeds, costs = UnitFeeds(machine), self._costs.setdefault(machine, CostModel(machine))
        issue_ps = machine.issue_cycles * costs.cycle_ps
        for step in code.source.steps:
            item = step.item
            code.gaps.append((step.control + (item is not None)) * issue_ps)
            if isinstance(item, (Wait, Post)):
                queue = machine.queue_of(item.queue)
                code.kinds.append(queue)
                place = code.semaphores.setdefault(item.semaphore, len(code.semaphores))
                code.add(queue, WAIT if isinstance(item, Wait) else POST, (place, item.count))
            elif isinstance(item, Command):
                queue = machine.queue_of(item.queue)
                code.kinds.append(queue)
                try:
                    if queue is not Queue.IO:
                        cost = costs.cost(item)
                        feeds.add(queue, cost)
                        code.add(queue, cost.duration_ps)
                        code.mfu_ps += cost.duration_ps * cost.on_mfu
                        code.vfu_ps += cost.duration_ps * (not cost.on_mfu)
                        code.vfu_queue_ps += cost.duration_ps * (queue is Queue.VFU)
                    elif item.function in (Function.SEND, Function.RECEIVE):
                        self._add_message(code, item, passed, costs)
                    else:
                        self._add_transfers(code, item, costs)
                except ExecutionFault as fault:
                    raise fault.at(f"core {code.source.core}: instruction {step.pc}") from fault
            else:
                code.kinds.append(FENCE if isinstance(item, Fence) else NO_ITEM)

    def _add_transfers(self, code: CoreCode, command: Command, costs: CostModel) -> None:
        cores, demands = self.machine.cores, costs.demands(command)
        # A load from one memory off chip to another reads and writes.
        to_one_core = cores.multicast and command.function is Function.LOAD and len(demands) == 1
        bytes_read = (code.source.group, command.first) if to_one_core else None
        joins = self._joins(code, demands, cores.chip_of(code.source.core), bytes_read)
        if len(joins) == 1:
            code.add(Queue.IO, joins[0])
        else:
            code.transfers[len(code.ops[Queue.IO])] = joins
            code.add(Queue.IO, TRANSFERS)

    def _add_message(
        self, code: CoreCode, command: Command, passed: Counter[tuple[int, int, Function]], costs: CostModel
    ) -> None:
        own, cores = code.source.core, self.machine.cores
        other, is_sent = self.codes[self._indices[command.peer]].group, command.function is Function.SEND
        pair = (own, command.peer) if is_sent else (command.peer, own)
        # A message that the other side does not send or take in a run has no channel: it would shift the next run's.
        way = (*pair, command.function)
        channel = self._channels.get(pair) if passed[way] < min(self._sent[pair], self._taken[pair]) else None
        passed[way] += 1
        here, there = cores.chip_of(own), cores.chip_of(command.peer)
        near, far = (costs.demands(command), ()) if here == there else demands_across(self.machine, command)
        joins = (*self._joins(code, near, here), *self._joins(code, far, there))
        ring = other if joins and other is not code.group else None
        delay_ps = message_ps(self.machine, own, command.peer)
        code.messages[len(code.ops[Queue.IO])] = MessageTransfer(
            joins, ring, channel, delay_ps, other is not code.group
        )
        code.add(Queue.IO, SEND if is_sent else RECEIVE)

    def _joins(
        self, code: CoreCode, demands: Iterable[Demand], chip: int, bytes_read: object = None
    ) -> tuple[int, ...]:
        joins = []
        for resource, latency_ps, work_ps, moved_bytes in demands:
            place = len(Resource) * chip + resource
            use = self.uses[place]
            use.work_ps += work_ps
            use.moved_bytes += moved_bytes
            ticket = self._tickets.setdefault((code.index, place, work_ps, bytes_read), len(self.owners))
            if ticket == len(self.owners):
                self.owners.append(code.index)
                self.keys.append(transfer_key(work_ps, ticket))
                self.places.append(place)
                if bytes_read is not None:
                    self.reads[ticket] = Read(bytes_read, work_ps, moved_bytes)
            joins.append((latency_ps << TICKET_BITS) | ticket)
        return tuple(joins)


def _groups(cores: Sequence[CoreSteps], depths: Mapping[int, int]) -> dict[int, GroupState]:
    found: dict[int, GroupState] = {}
    for index, each in enumerate(cores):
        found.setdefault(each.group, GroupState(depths[each.group])).members.append(index)
    return found


def _messages(cores: Iterable[CoreSteps]) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Count the messages that a run sends, and takes, by sender and receiver."""
    sent: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    for each in cores:
        for _, item, _ in each.steps:
            if type(item) is Command:
                if item.function is Function.SEND:
                    sent[each.core, item.peer] += 1
                elif item.function is Function.RECEIVE:
                    taken[item.peer, each.core] += 1
    return sent, taken


class Read(NamedTuple):
    """A read of a memory of the chip: the key of its bytes, and its work and bytes if no other core has it."""

    key: object
    work_ps: int
    moved_bytes: int


class Multicast:
    """The reads that are on their way, by the key of their bytes, and the transfers of others that end with them."""

    def __init__(self, reads: Mapping[int, Read]) -> None:
        self._reads = reads
        self._flights: dict[object, int] = {}
        self._joined: dict[int, list[int]] = {}

    def joins(self, ticket: int, resource: SharedResource) -> bool:
        """Note that a transfer begins; return whether its bytes are on their way, and it needs no separate read."""
        read = self._reads.get(ticket)
        if read is None:
            return False
        first = self._flights.setdefault(read.key, ticket)
        if first == ticket:
            return False
        self._joined.setdefault(first, []).append(ticket)
        resource.saved_ps += read.work_ps
        resource.saved_bytes += read.moved_bytes
        return True

    def ended(self, ticket: int) -> list[int]:
        """Return the transfers that end with one, itself first."""
        read = self._reads.get(ticket)
        if read is not None and self._flights.get(read.key) == ticket:
            del self._flights[read.key]
        return [ticket, *self._joined.pop(ticket, ())]
