"""The state that the cores of a stream of inputs share, and the record of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.timing.many_cores.core_code import CoreCode, GroupState, Translation


class InputRun(NamedTuple):
    """One run of one core, in picoseconds.

    `io_ps` is the time of its transfers. The others are the time that its IO queue waited for a message of another
    group (`starved_ps`), for a message of its own group (`exchange_ps`), and for a free ring slot (`blocked_ps`).
    """

    begin_ps: int
    end_ps: int
    io_ps: int
    starved_ps: int
    exchange_ps: int
    blocked_ps: int


@dataclass(frozen=True)
class EntryTimes:
    """One run of one core: times of the entries of its queues; `issued_ps` also of steps that enter no queue, last."""

    begin_ps: int
    issued_ps: tuple[list[int], ...]
    served_ps: tuple[list[int], ...]
    finished_ps: tuple[list[int], ...]


class StreamState:
    """The state that the cores of a stream of inputs share.

    - `events`: a heap of times with, in the lowest TICKET_BITS, the ticket of a transfer that begins its data phase, or
      the number of a resource to check.
    - `ready`: cores that continue, with the time they waited for.
    - `pending`: by core, the transfers of its current IO command that have not ended.
    - `stops`: the IO entry at which a core waits for another core.
    - `runs`: by core; `kept`: the times of run `kept_run` by core.
    - `ahead`: how many inputs may be under way at a time.
    - `ended`: by input, how many groups have ended it, and when the last did.
    - `held`: groups that wait for all groups to end an earlier input.
    """

    def __init__(self, translation: Translation, inputs: int, limit_ps: int, kept_run: int | None = None) -> None:
        cores, self.groups = len(translation.codes), len(translation.groups)
        self.ahead = 2 * self.groups + 2
        self.ended: dict[int, tuple[int, int]] = {}
        self.held: list[GroupState] = []
        self.inputs, self.limit_ps, self.kept_run = inputs, limit_ps, kept_run
        self.events: list[int] = []
        self.ready: list[tuple[int, int]] = []
        self.pending = [1] * cores
        self.stops: dict[int, int] = {}
        self.runs: list[list[InputRun]] = [[] for _ in range(cores)]
        self.kept: dict[int, EntryTimes] = {}


def begin_input(stream: StreamState, group: GroupState, now_ps: int) -> None:
    """Start the next run of all cores of a group."""
    group.running = len(group.members)
    stream.ready.extend((index, now_ps) for index in group.members)


def end_run(stream: StreamState, code: CoreCode, run: InputRun) -> None:
    """Record a run; the last core of a group frees a ring slot and starts the next input as soon as it may."""
    stream.runs[code.index].append(run)
    group = code.group
    group.latest_ps = max(group.latest_ps, run.end_ps)
    group.running -= 1
    if group.running:
        return
    stream.ready.extend((index, group.latest_ps) for index in group.waiting.pop(len(group.ends_ps), ()))
    number = len(group.ends_ps)
    group.ends_ps.append(group.latest_ps)
    if number + 1 < stream.inputs:
        stream.held.append(group)
    groups, latest_ps = stream.ended.get(number, (0, 0))
    stream.ended[number] = groups + 1, max(latest_ps, group.latest_ps)
    held, stream.held = stream.held, []
    for each in held:
        awaited = len(each.ends_ps) - stream.ahead
        groups, through_ps = stream.ended.get(awaited, (0, 0))
        if awaited < 0 or groups == stream.groups:
            begin_input(stream, each, max(each.latest_ps, through_ps))
        else:
            stream.held.append(each)
