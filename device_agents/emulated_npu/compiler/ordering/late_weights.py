"""Finds the loads of weights that units wait for: those that are worth an earlier start.

While the IO queue works without a pause and the units do not, the units wait for transfers. Loads in such a stretch are
late. Those at its end save time for certain: a load at its beginning may wait for room in SB instead.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from device_agents.emulated_npu.compiler.ordering.hazards import Conflicts
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Command, Queue


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
