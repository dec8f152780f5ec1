"""List schedules of all queues with the durations of the commands: of transfers, and of both units (S2.5, S3.5).

`fill_gaps` orders transfers by time: while one waits for a computation, later ones of its queue run. In each queue,
loads of features, loads into SB, stores and computes keep their order. Where the next transfer of the program would
wait for a compute, the first transfer of another stream that can start runs before it: weights arrive as long before
their use as SB has room for them.

`overlap_units` lets MFU and VFU work at the same time, if each has a separate queue. In program order a pass runs
through all its layers before the next pass begins, so that each unit waits for the other. The schedule takes, out of a
window of commands, the one that can begin first: while the VFU works on a tile, the MFU begins the next one. The
commands of a layer on one unit, loads, and stores each keep their order; loads into SB are loads. `fill_gaps` may then
order the transfers once more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from device_agents.emulated_npu.compiler.ordering.hazards import (
    CACHED_LOAD,
    LOAD,
    LOADS,
    SEPARATE,
    STORE,
    STORES,
    UNITS,
    WEIGHTS,
    Conflicts,
    latest_conflicts,
    stream_of,
)
from device_agents.emulated_npu.unit_commands import Command, Queue

_ALL = range(len((*LOADS, *STORES, *UNITS)))
"""All streams."""
_OF_IO_QUEUE = (LOAD, WEIGHTS, STORE)
_NEVER_PS = 1 << 62
_LAYERS = 32
"""How many layers `overlap_units` distinguishes; those with the same number modulo this one also keep their order."""


class Filled(NamedTuple):
    """The positions of commands by start, the end of all, and the delay below which a larger one changes nothing."""

    end_ps: int
    order: list[int]
    alike_below: float


def fill_gaps(
    commands: Sequence[Command],
    conflicts: Sequence[Conflicts],
    durations_ps: Sequence[int],
    delay: float,
    *,
    urgent_first: bool = False,
) -> Filled:
    """Return the positions of all commands in the order in which they start, and when the last ends.

    `conflicts` are those of the commands in program order. A transfer that runs before an earlier one of the program
    may delay it by at most the share `delay` of its own duration. Of transfers that can start at the same time, the
    first of the program runs first, or with `urgent_first` the one that the longest work waits for.
    """
    streams = [stream_of(command) for command in commands]
    behind_ps = _times_behind(streams, conflicts, durations_ps, UNITS) if urgent_first else [0] * len(streams)
    return _Schedule(streams, conflicts, durations_ps, behind_ps).run(delay)


def _times_behind(
    streams: Sequence[int], conflicts: Sequence[Conflicts], durations_ps: Sequence[int], kept: Collection[int]
) -> list[int]:
    """Return for each command the time of the longest sequence of commands that wait for its end.

    Besides conflicts the order of the streams in `kept` counts; that of others does not, because a schedule decides it.
    """
    behind_ps = [0] * len(streams)
    next_ps = dict.fromkeys(kept, 0)
    for position in reversed(range(len(streams))):
        stream = streams[position]
        if stream in next_ps:
            behind_ps[position] = max(behind_ps[position], next_ps[stream])
        from_start_ps = behind_ps[position] + durations_ps[position]
        if stream in next_ps:
            next_ps[stream] = from_start_ps
        for before in conflicts[position]:
            if before >= 0 and behind_ps[before] < from_start_ps:
                behind_ps[before] = from_start_ps
    return behind_ps


def least_end_ps(commands: Sequence[Command], conflicts: Sequence[Conflicts], durations_ps: Sequence[int]) -> int:
    """Return a time before which no order of the commands ends that keeps conflicts and streams.

    It is that of the longest sequence of commands that wait for each other, or what the IO queue would take if it could
    interrupt its transfers: of those whose turn it is, it would move the one that the longest sequence waits for.
    """
    streams = [stream_of(command) for command in commands]
    behind_ps = _times_behind(streams, conflicts, durations_ps, _ALL)
    ends_ps: list[int] = []
    free_ps = [0] * len(_ALL)
    transfers: list[tuple[int, int, int]] = []
    least_ps = 0
    for stream, found, duration_ps, after_ps in zip(streams, conflicts, durations_ps, behind_ps, strict=True):
        start_ps = free_ps[stream]
        for before in found:
            if before >= 0 and ends_ps[before] > start_ps:
                start_ps = ends_ps[before]
        if stream in _OF_IO_QUEUE:
            transfers.append((start_ps, duration_ps, after_ps))
        free_ps[stream] = end_ps = start_ps + duration_ps
        ends_ps.append(end_ps)
        if end_ps + after_ps > least_ps:
            least_ps = end_ps + after_ps
    return max(least_ps, _interrupted_end_ps(transfers))


def _interrupted_end_ps(transfers: Sequence[tuple[int, int, int]]) -> int:
    """Return when all is done if one queue moves transfers, and may interrupt one for another.

    They are given by the earliest start, the duration, and the time that must pass after the end.
    """
    waiting: list[tuple[int, int]] = []
    now_ps = done_ps = 0
    for start_ps, duration_ps, after_ps in (*sorted(transfers), (_NEVER_PS, 0, 0)):
        while waiting and now_ps < start_ps:
            negated_ps, left_ps = waiting[0]
            if left_ps <= start_ps - now_ps:
                now_ps += left_ps
                done_ps = max(done_ps, now_ps - negated_ps)
                heappop(waiting)
            else:
                waiting[0] = negated_ps, left_ps - (start_ps - now_ps)
                now_ps = start_ps
        now_ps = max(now_ps, start_ps)
        heappush(waiting, (-after_ps, duration_ps))
    return done_ps


class _Schedule:
    """The state of a schedule: the next command of every stream, and when commands that are placed start and end."""

    def __init__(
        self,
        streams: Sequence[int],
        conflicts: Sequence[Conflicts],
        durations_ps: Sequence[int],
        behind_ps: Sequence[int],
    ) -> None:
        self._conflicts, self._durations, self._behind = conflicts, durations_ps, behind_ps
        self._streams: list[list[int]] = [[] for _ in (*LOADS, *STORES, *UNITS)]
        for position, stream in enumerate(streams):
            self._streams[stream].append(position)
        for waiting in self._streams:
            waiting.reverse()  # the next command is the last
        self._transfers = [stream for stream in (*LOADS, *STORES) if self._streams[stream]]
        self._ready = [-1] * len(self._streams)  # when everything before its next command has ended, once that is known
        self._ends = [-1] * len(streams)
        self._transfers_free = [0, 0]  # of the IO queue, and of the LLC queue
        self._unit_free = dict.fromkeys(UNITS, 0)
        self._starts: list[tuple[int, int]] = []

    def run(self, delay: float) -> Filled:
        """Place all commands."""
        alike_below = math.inf
        while True:
            self._compute()
            ready = [found for found in map(self._next_transfer, self._transfers) if found is not None]
            if not ready:
                break
            start, position, stream = min(ready, key=lambda found: (found[0], -self._behind[found[1]], found[1]))
            cached = stream >= CACHED_LOAD
            rivals = [found for found in ready if (found[2] >= CACHED_LOAD) is cached]
            first_start, _, first_stream = min(rivals, key=lambda found: found[1])
            end = start + self._durations[position]
            if end > first_start + delay * self._durations[position]:
                if stream != first_stream:
                    alike_below = min(alike_below, (end - first_start) / self._durations[position])
                start, stream = first_start, first_stream
            self._transfers_free[cached] = self._place(stream, start)
        order = [position for _, position in sorted(self._starts, key=lambda placed: placed[0])]
        return Filled(max(self._ends, default=0), order, alike_below)

    def _compute(self) -> None:
        """Place all computes whose operands are placed."""
        progress = True
        while progress:
            progress = False
            for unit in UNITS:
                while (found := self._next(unit, self._unit_free[unit])) is not None:
                    self._unit_free[unit] = self._place(unit, found[0])
                    progress = True

    def _next_transfer(self, stream: int) -> tuple[int, int, int] | None:
        return self._next(stream, self._transfers_free[stream >= CACHED_LOAD])

    def _next(self, stream: int, free: int) -> tuple[int, int, int] | None:
        """Return start, position and stream of the next command of a stream, if everything before it is placed."""
        if not self._streams[stream]:
            return None
        position = self._streams[stream][-1]
        start = self._ready[stream]
        if start < 0:
            start = 0
            for before in self._conflicts[position]:
                if before >= 0:
                    end = self._ends[before]
                    if end < 0:
                        return None
                    if end > start:
                        start = end
            self._ready[stream] = start
        return (start if start > free else free), position, stream

    def _place(self, stream: int, start: int) -> int:
        """Place the next command of a stream and return its end."""
        position = self._streams[stream].pop()
        self._ready[stream] = -1
        self._starts.append((start, position))
        self._ends[position] = end = start + self._durations[position]
        return end


def overlap_units(
    commands: Sequence[Command], durations_ps: Sequence[int], *, window: int, memory_of: Sequence[int] = SEPARATE
) -> list[Command]:
    """Return the commands in the order in which they begin if each begins as early as its queue and conflicts allow.

    At any time only the first `window` commands that have not begun are considered.
    """
    streams = [_stream_of_layer(command) for command in commands]
    earlier = [tuple(each for each in found if each >= 0) for found in latest_conflicts(commands, streams, memory_of)]
    ends_ps: dict[int, int] = {}
    free_ps = dict.fromkeys(Queue, 0)
    waiting: dict[int, deque[int]] = {}
    result: list[Command] = []
    oldest = entered = 0
    while len(result) < len(commands):
        while entered < min(len(commands), oldest + window):
            waiting.setdefault(streams[entered], deque()).append(entered)
            entered += 1
        heads = [each[0] for each in waiting.values() if all(one in ends_ps for one in earlier[each[0]])]
        begins = [(_begin_ps(free_ps[commands[one].queue], earlier[one], ends_ps), one) for one in heads]
        begin_ps, position = min(begins)
        own = waiting[streams[position]]
        own.popleft()
        if not own:
            del waiting[streams[position]]
        free_ps[commands[position].queue] = ends_ps[position] = begin_ps + durations_ps[position]
        result.append(commands[position])
        while oldest in ends_ps:
            oldest += 1
    return result


def _begin_ps(free_ps: int, earlier: Sequence[int], ends_ps: dict[int, int]) -> int:
    return max(free_ps, *(ends_ps[one] for one in earlier)) if earlier else free_ps


def _stream_of_layer(command: Command) -> int:
    """Return the stream of a command whose order `overlap_units` keeps: loads, stores, or a layer on a unit."""
    if command.function.is_transfer:
        return STORE if stream_of(command) in STORES else LOAD
    return max(LOAD, STORE) + 1 + 2 * (command.layer % _LAYERS) + command.own_queue
