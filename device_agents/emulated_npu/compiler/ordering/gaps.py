"""Orders transfers by time: while one waits for a computation, later ones of its queue run (S2.5).

A list schedule of all queues with the durations of the commands. In each queue, loads of features, loads into SB,
stores and computes keep their order. Where the next transfer of the program would wait for a compute, the first
transfer of another stream that can start runs before it: weights arrive as long before their use as SB has room for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from device_agents.emulated_npu.compiler.ordering.hazards import CACHED_LOAD, LOADS, STORES, UNITS, Conflicts, stream_of
from device_agents.emulated_npu.unit_commands import Command


_UNKNOWN = -1


class Filled(NamedTuple):
    """The positions of commands by start, and the end of all."""

    end_ps: int
    order: list[int]


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
    behind_ps = _times_behind(streams, conflicts, durations_ps) if urgent_first else [0] * len(streams)
    return _Schedule(streams, conflicts, durations_ps, behind_ps).run(delay)


def _times_behind(streams: Sequence[int], conflicts: Sequence[Conflicts], durations_ps: Sequence[int]) -> list[int]:
    """Return for each command the time of the longest sequence of commands that wait for its end.

    The order of computes counts; that of transfers does not, because the schedule decides it.
    """
    behind_ps = [0] * len(streams)
    next_ps = dict.fromkeys(UNITS, 0)
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
        self._waiting: list[list[int]] = [[] for _ in (*LOADS, *STORES, *UNITS)]
        for position, stream in enumerate(streams):
            self._waiting[stream].append(position)
        for waiting in self._waiting:
            waiting.reverse()  # the next command is the last
        self._transfers = [stream for stream in (*LOADS, *STORES) if self._waiting[stream]]
        self._units = [stream for stream in UNITS if self._waiting[stream]]
        self._ready = [_UNKNOWN] * len(self._waiting)  # by stream: when all that its next command follows has ended
        self._free = [0] * len(self._waiting)
        self._ends = [_UNKNOWN] * len(streams)
        self._starts: list[tuple[int, int]] = []

    def run(self, delay: float) -> Filled:
        """Place all commands."""
        while True:
            while any([self._compute(unit) for unit in self._units]):
                pass
            ready = [stream for stream in self._transfers if self._is_ready(stream)]
            if not ready:
                break
            stream = min(ready, key=self._urgency)
            queue = [other for other in ready if (other >= CACHED_LOAD) is (stream >= CACHED_LOAD)]
            first = min(queue, key=lambda other: self._waiting[other][-1])
            start, duration = self._start(stream), self._durations[self._waiting[stream][-1]]
            chosen = stream if start + duration <= self._start(first) + delay * duration else first
            end = self._place(chosen)
            for other in (*LOADS, *STORES):
                if (other >= CACHED_LOAD) is (chosen >= CACHED_LOAD):
                    self._free[other] = end
        order = [position for _, position in sorted(self._starts, key=lambda placed: placed[0])]
        return Filled(max(self._ends, default=0), order)

    def _compute(self, unit: int) -> bool:
        """Place the computes of a unit whose operands are placed; return whether there are any."""
        count = len(self._starts)
        while self._is_ready(unit):
            self._free[unit] = self._place(unit)
        return len(self._starts) > count

    def _is_ready(self, stream: int) -> bool:
        """Return whether everything is placed that the next command of a stream follows."""
        if self._ready[stream] == _UNKNOWN and self._waiting[stream]:
            ends = [self._ends[before] for before in self._conflicts[self._waiting[stream][-1]] if before >= 0]
            if _UNKNOWN not in ends:
                self._ready[stream] = max(ends, default=0)
        return self._ready[stream] != _UNKNOWN

    def _start(self, stream: int) -> int:
        """Return when the next command of a stream, which is ready, can start."""
        return max(self._free[stream], self._ready[stream])

    def _urgency(self, stream: int) -> tuple[int, int, int]:
        """Return a key that is smallest for the transfer that runs first."""
        position = self._waiting[stream][-1]
        return self._start(stream), -self._behind[position], position

    def _place(self, stream: int) -> int:
        """Place the next command of a stream, which is ready, and return its end."""
        start, position = self._start(stream), self._waiting[stream].pop()
        self._starts.append((start, position))
        self._ready[stream] = _UNKNOWN
        self._ends[position] = end = start + self._durations[position]
        return end
