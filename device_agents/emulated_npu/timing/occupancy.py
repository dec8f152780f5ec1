"""The live bytes of an on-chip memory over the time of a run, computed from its commands.

A byte is live from its first write (the start of the writing command) to its last read before the next write (the end
of the reading command). A write that follows no read extends the life, because tensors are written in parts; so does a
write during a read, as in place. A strided view counts from its first byte to its last, gaps included.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from device_agents.emulated_npu.numpy_types import Int64Array
from device_agents.emulated_npu.timing.single_core import Schedule
from device_agents.emulated_npu.unit_commands import Command, Space

_NEVER = -1


class Occupancy(NamedTuple):
    """Live bytes from each time until the next; times ascend."""

    times_ps: Int64Array
    live_bytes: Int64Array


class _TimedAccess(NamedTuple):
    first: int
    end: int
    is_write: bool
    begin_ps: int
    end_ps: int


def occupancy(schedule: Schedule, space: Space) -> Occupancy:
    """Return the live bytes of one memory; both arrays are empty if nothing written is ever read."""
    accesses = _accesses(schedule, space)
    edges = np.unique(np.array([edge for access in accesses for edge in access[:2]], np.int64))
    lives = _Lives(np.diff(edges))
    firsts = np.searchsorted(edges, [access.first for access in accesses])
    ends = np.searchsorted(edges, [access.end for access in accesses])
    for access, first, end in zip(accesses, firsts.tolist(), ends.tolist(), strict=True):
        if access.is_write:
            lives.write(slice(first, end), access.begin_ps)
        else:
            lives.read(slice(first, end), access.end_ps)
    return lives.occupancy()


def _accesses(schedule: Schedule, space: Space) -> list[_TimedAccess]:
    """Return reads and writes in order of time; for one command, reads first."""
    found = []
    for index, step in enumerate(schedule.steps):
        if not isinstance(step.item, Command):
            continue
        begin, end = schedule.served_ps[index], schedule.finished_ps[index]
        command = step.item
        operands = [(operand, False) for operand in command.sources] + [(command.target, True)]
        if command.accumulate:
            operands.insert(0, (command.target, False))
        for operand, is_write in operands:
            if operand.descriptor.space is space:
                found.append(_TimedAccess(*operand.span, is_write, begin, end))
    return sorted(found, key=lambda access: access.begin_ps)


class _Lives:
    """The ranges between the edges of all accesses: since when each is live, and when it was last read."""

    def __init__(self, sizes: Int64Array) -> None:
        self._sizes = sizes
        self._born: Int64Array = np.full(len(sizes), _NEVER, np.int64)
        self._read: Int64Array = np.full(len(sizes), _NEVER, np.int64)
        self._over: list[tuple[int, int, int]] = []  # born, last read, bytes

    def write(self, where: slice, now_ps: int) -> None:
        born, read = self._born[where], self._read[where]
        over = (read != _NEVER) & (read <= now_ps)
        if over.any():
            self._end(born[over], read[over], self._sizes[where][over])
            born[over] = read[over] = _NEVER
        born[born == _NEVER] = now_ps

    def read(self, where: slice, until_ps: int) -> None:
        # A range that was never written holds nothing.
        read = self._read[where]
        np.maximum(read, until_ps, out=read, where=self._born[where] != _NEVER)

    def occupancy(self) -> Occupancy:
        over = self._read != _NEVER
        if over.any():
            self._end(self._born[over], self._read[over], self._sizes[over])
        lives: Int64Array = np.array(self._over, np.int64).reshape(-1, 3)
        times, places = np.unique(np.concatenate([lives[:, 0], lives[:, 1]]), return_inverse=True)
        changes = np.zeros(len(times), np.int64)
        np.add.at(changes, places, np.concatenate([lives[:, 2], -lives[:, 2]]))
        return Occupancy(times, np.cumsum(changes))

    def _end(self, born: Int64Array, read: Int64Array, sizes: Int64Array) -> None:
        """Record ended lives; neighbours with the same times become one."""
        starts = np.flatnonzero(np.r_[True, (np.diff(born) != 0) | (np.diff(read) != 0)])
        totals = np.add.reduceat(sizes, starts)
        self._over.extend(zip(born[starts].tolist(), read[starts].tolist(), totals.tolist(), strict=True))
