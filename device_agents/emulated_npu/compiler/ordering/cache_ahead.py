"""Brings weights from DDR to the last-level cache while the IO queue would wait, and from there to SB when SB has room.

SB holds weights a short time ahead. Where layers with much computation come before layers with many weights, the IO
queue first waits for the units and the units later wait for weights. The bytes of the cache that hold no feature at
that time hold weights for later layers: DDR works while the units compute, and the later load reads the faster memory.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from device_agents.emulated_npu.arithmetic import PS_PER_S, aligned
from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.ordering.hazards import Conflicts
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.transfer_cost import present
from device_agents.emulated_npu.unit_commands import Command, Queue, Space, plain_bytes

_LEAST_BYTES = 4 << 10
"""Fewer bytes than this are not worth the latency of a transfer."""


def bring_weights_ahead(
    commands: Sequence[Command], conflicts: Sequence[Conflicts], values: Sequence[CachedValue], costs: CostModel
) -> tuple[float, list[Command]] | None:
    """Return commands with weights that pass through the cache, of all loads or of those that units wait for.

    Before them comes the share of the time that they take, without the limits of queues. On a machine with an LLC
    queue, SB is filled from the cache by either queue. The way that ends first counts; None if no weights pass through
    the cache.

    Requires: commands of one core that does not share the cache, and their conflicts; `values` are all values in it.
    Ensures: the same results. Loads into SB read the cache instead of DDR, in two parts where only a part is there.
    """
    machine = costs.machine
    loads = [place for place, command in enumerate(commands) if _is_weight_load(command)]
    saved = 1 - machine.ddr.bytes_per_s / machine.llc.bytes_per_s
    timeline = Timeline.of(commands, conflicts, costs)
    late = late_loads(commands, loads, timeline, _pause_ps(machine), saved, machine.llc.bytes)
    found = []
    ways = itertools.product((loads, late), (False, True) if machine.llc_queue_depth else (False,))
    for wanted, own_queue in ways:
        walk = _Walk(commands, wanted, _CacheSpace(commands, values, machine.llc.bytes), costs, own_queue)
        walked = walk.run(conflicts)
        if walk.is_changed:
            found.append(walked)
    if not found:
        return None
    end_ps, ahead = min(found, key=itemgetter(0))
    return end_ps / max(timeline.ends_ps), ahead


def has_faster_cache(machine: Machine) -> bool:
    """Return whether a machine has a cache that is faster than DDR, and both hold weights as they are."""
    llc, ddr = machine.llc, machine.ddr
    return llc.bytes > 0 and llc.bytes_per_s > ddr.bytes_per_s and llc.weight_compression == ddr.weight_compression == 1


def least_load_ps(command: Command, costs: CostModel) -> int:
    """Return the time of a command if its weights, in case it loads some, arrive from the cache."""
    if not _is_weight_load(command):
        return costs.duration_ps(command)
    return costs.duration_ps(replace(command, first=plain_bytes(Space.LLC, 0, command.target.descriptor.elements)))


def _pause_ps(machine: Machine) -> int:
    """Return the shortest time in which weights are moved to the cache."""
    return round((machine.ddr.latency_ns * 1e-9 + _LEAST_BYTES / machine.ddr.bytes_per_s) * PS_PER_S)


def _is_weight_load(command: Command) -> bool:
    """Return whether a command loads packed weights from DDR into SB."""
    spaces = [operand.descriptor.space for operand in (command.target, *command.sources)]
    return command.loads_packed_weights and spaces == [Space.SB, Space.DDR]


class _CacheSpace:
    """The bytes of the cache over the positions of the commands; features and weights occupy rectangles."""

    def __init__(self, commands: Sequence[Command], values: Sequence[CachedValue], size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken = list(_lives(commands, values))

    def reserve(self, size_bytes: int, first: int, last: int) -> int | None:
        """Return the address of bytes that are unused between two positions; None if there is no room."""
        taken = sorted((low, high) for low, high, start, end in self._taken if start <= last and first <= end)
        address = 0
        for low, high in taken:
            if low - address >= size_bytes:
                break
            address = max(address, high)
        if address + size_bytes > self._size_bytes:
            return None
        self._taken.append((address, address + size_bytes, first, last))
        return address


def _lives(commands: Sequence[Command], values: Sequence[CachedValue]) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each value its first byte, one past the last, and the first and last position that access it."""
    accesses = [
        (position, command.layer, *operand.span)
        for position, command in enumerate(commands)
        if command.function.is_transfer
        for operand in (command.target, *command.sources)
        if operand.descriptor.space is Space.LLC
    ]
    for value in values:
        found = [
            position
            for position, layer, low, high in accesses
            if layer in value.layers and low < value.stop and value.start < high
        ]
        if found:
            yield value.start, value.stop, min(found), max(found)


@dataclass(slots=True)
class _Ahead:
    """A load whose weights are in the cache at `address`, the first `bytes` of them so far."""

    position: int
    address: int
    bytes: int = 0


class _Walk:
    """Follows the commands in time and fills gaps of the IO queue with loads into the cache."""

    def __init__(
        self, commands: Sequence[Command], loads: Sequence[int], room: _CacheSpace, costs: CostModel, own_queue: bool
    ) -> None:
        self._own_queue = own_queue
        self._commands, self._loads, self._room, self._costs = commands, loads, room, costs
        self._turn = 0
        self._ahead: dict[int, _Ahead] = {}
        self._result: list[Command] = []

    @property
    def is_changed(self) -> bool:
        """Whether weights pass through the cache."""
        return any(ahead.bytes for ahead in self._ahead.values())

    def run(self, conflicts: Sequence[Conflicts]) -> tuple[int, list[Command]]:
        """Return the commands with those that move weights through the cache, and before them when the last ends."""
        free_ps = dict.fromkeys(Queue, 0)
        ends_ps: list[int] = []
        for position, command in enumerate(self._commands):
            queue = command.queue
            ready_ps = max((ends_ps[before] for before in conflicts[position] if before >= 0), default=0)
            if queue is Queue.IO and ready_ps > free_ps[queue]:
                free_ps[queue] = self._fill(position, free_ps[queue], ready_ps)
            parts = self._parts(position, command)
            self._result += parts
            for part in parts:
                free_ps[part.queue] = max(ready_ps, free_ps[part.queue]) + self._costs.duration_ps(part)
            ends_ps.append(max(free_ps[part.queue] for part in parts))
        return max(free_ps.values()), self._result

    def _fill(self, position: int, from_ps: int, until_ps: int) -> int:
        """Move weights of later loads into the cache, as long as that ends in time; return when the queue is free."""
        while (room_bytes := self._bytes_between(from_ps, until_ps)) >= _LEAST_BYTES:
            ahead = self._next(position)
            if ahead is None:
                break
            piece = self._piece(ahead, room_bytes)
            ahead.bytes += piece.target.descriptor.elements
            from_ps += self._costs.duration_ps(piece)
            self._result.append(piece)
        return from_ps

    def _bytes_between(self, from_ps: int, until_ps: int) -> int:
        """Return how many bytes DDR moves in this time, in whole bursts."""
        ddr = self._costs.machine.ddr
        moving_s = (until_ps - from_ps) / PS_PER_S - ddr.latency_ns * 1e-9
        return int(moving_s * ddr.bytes_per_s) // ddr.burst_bytes * ddr.burst_bytes

    def _next(self, position: int) -> _Ahead | None:
        """Return the next load that is not in the cache as a whole; None if there is none, or no room for it."""
        while self._turn < len(self._loads):
            place = self._loads[self._turn]
            known = self._ahead.get(place)
            size_bytes = self._commands[place].target.descriptor.elements
            if place > position and (known is None or known.bytes < size_bytes):
                if known is None:
                    address = self._room.reserve(aligned(size_bytes), position, place)
                    if address is None:
                        return None
                    known = self._ahead[place] = _Ahead(place, address)
                return known
            self._turn += 1
        return None

    def _piece(self, ahead: _Ahead, most_bytes: int) -> Command:
        """Return the command that moves the next piece of a load's weights into the cache."""
        load = self._commands[ahead.position]
        size_bytes = min(most_bytes, load.target.descriptor.elements - ahead.bytes)
        target = plain_bytes(Space.LLC, ahead.address + ahead.bytes, size_bytes)
        source = present(load, load.first).address + ahead.bytes
        return replace(load, target=target, first=plain_bytes(Space.DDR, source, size_bytes))

    def _parts(self, position: int, command: Command) -> list[Command]:
        """Return the commands of a load: one from the cache for what is there, and one from DDR for the rest."""
        ahead = self._ahead.get(position)
        if ahead is None or ahead.bytes == 0:
            return [command]
        target, source, there = command.target.address, present(command, command.first).address, ahead.bytes
        rest_bytes = command.target.descriptor.elements - there
        cached, first = plain_bytes(Space.SB, target, there), plain_bytes(Space.LLC, ahead.address, there)
        parts = [replace(command, target=cached, first=first, own_queue=self._own_queue)]
        if rest_bytes:
            first = plain_bytes(Space.DDR, source + there, rest_bytes)
            parts.append(replace(command, target=plain_bytes(Space.SB, target + there, rest_bytes), first=first))
        return parts


@dataclass(frozen=True)
class Timeline:
    """Start and end of every command, in picoseconds, if each queue is in order and its depth limits nothing."""

    starts_ps: Sequence[int]
    ends_ps: Sequence[int]

    @classmethod
    def of(cls, commands: Sequence[Command], conflicts: Sequence[Conflicts], costs: CostModel) -> Timeline:
        """Return the times of commands that run in this order."""
        free_ps = dict.fromkeys(Queue, 0)
        starts_ps: list[int] = []
        ends_ps: list[int] = []
        for command, found in zip(commands, conflicts, strict=True):
            queue = command.queue
            ready_ps = max((ends_ps[before] for before in found if before >= 0), default=0)
            starts_ps.append(max(free_ps[queue], ready_ps))
            free_ps[queue] = starts_ps[-1] + costs.duration_ps(command)
            ends_ps.append(free_ps[queue])
        return cls(starts_ps, ends_ps)


@dataclass(slots=True)
class _Stretch:
    """Transfers that follow each other with short pauses: positions, begin and end."""

    start_ps: int
    end_ps: int
    positions: list[int] = field(default_factory=list)


def late_loads(
    commands: Sequence[Command], loads: Sequence[int], timeline: Timeline, pause_ps: int, saved: float, most_bytes: int
) -> list[int]:
    """Return those of `loads` that units wait for, by position.

    Pauses of the IO queue shorter than `pause_ps` do not end a stretch. `saved` is the share of a load's time that an
    earlier start saves. Of each stretch, the loads save at most the time in which the units are idle, and move at most
    `most_bytes`.
    """
    busy = [_QueueTimes(commands, timeline, queue) for queue in (Queue.CP, Queue.VFU)]
    wanted = set(loads)
    found = []
    for stretch in _stretches(commands, timeline, pause_ps):
        length_ps = stretch.end_ps - stretch.start_ps
        idle_ps = length_ps - max(one.between(stretch.start_ps, stretch.end_ps) for one in busy)
        room_bytes = most_bytes
        for position in reversed(stretch.positions):
            if position in wanted:
                room_bytes -= commands[position].target.descriptor.bytes
                if idle_ps <= 0 or room_bytes < 0:
                    break
                found.append(position)
                idle_ps -= round(saved * (timeline.ends_ps[position] - timeline.starts_ps[position]))
    return sorted(found)


def _stretches(commands: Sequence[Command], timeline: Timeline, pause_ps: int) -> list[_Stretch]:
    found: list[_Stretch] = []
    for position, command in enumerate(commands):
        if command.queue is Queue.IO:
            start_ps, end_ps = timeline.starts_ps[position], timeline.ends_ps[position]
            if not found or start_ps - found[-1].end_ps >= pause_ps:
                found.append(_Stretch(start_ps, end_ps))
            found[-1].end_ps = end_ps
            found[-1].positions.append(position)
    return found


class _QueueTimes:
    """When the commands of one queue run."""

    def __init__(self, commands: Sequence[Command], timeline: Timeline, queue: Queue) -> None:
        places = [place for place, command in enumerate(commands) if command.queue is queue]
        self._starts = [timeline.starts_ps[place] for place in places]
        self._ends = [timeline.ends_ps[place] for place in places]
        spans = zip(self._starts, self._ends, strict=True)
        self._before = [0, *itertools.accumulate(end - start for start, end in spans)]

    def between(self, start_ps: int, end_ps: int) -> int:
        """Return how long commands run in an interval."""
        return self._until(end_ps) - self._until(start_ps)

    def _until(self, time_ps: int) -> int:
        """Return how long commands run before a time."""
        count = bisect_right(self._starts, time_ps)
        return self._before[count] - (max(0, self._ends[count - 1] - time_ps) if count else 0)
