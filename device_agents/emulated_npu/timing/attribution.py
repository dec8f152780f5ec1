"""The time of a run by layer: the walk back from its end through the binding predecessor of each step.

Each service time has one cause: the step before it in its queue ended, a POST released it, or the control unit issued
it only then; and each cause has one cause in turn. This chain, the binding path, covers the run from zero to its end
without gap or overlap, so every picosecond belongs to one layer.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.timing.single_core import NOTHING, Schedule
from device_agents.emulated_npu.unit_commands import Queue


class Activity(enum.IntEnum):
    """The activity in a segment of the binding path: a command of a queue of the program, or the control unit."""

    IO = 0
    CP = 1
    VFU = 2
    LLC = 3
    CONTROL = 4


class Segment(NamedTuple):
    """A segment of the binding path, in which the step at position `step` was busy or was being issued (CONTROL)."""

    step: int
    activity: Activity
    begin_ps: int
    end_ps: int


class WaitTime(NamedTuple):
    """Idle time of a queue: instruction `pc` at its head waited for instruction `due_pc`.

    `pc` is NOTHING if the queue had finished and the run went on. `layer` and `due_layer` are the layers of the two.
    Equal pairs (the rounds of a loop) are one entry.
    """

    pc: int
    layer: int
    due_pc: int
    due_layer: int
    ps: int


def layer_of(step: IssuedStep) -> int:
    """Return the hardware layer that a step belongs to; NOTHING for none."""
    return NOTHING if step.item is None else step.item.layer


def binding_path(schedule: Schedule, since_ps: int = 0) -> Iterator[Segment]:
    """Yield the path from the end of the run back to a time; consecutive segments adjoin and cover the makespan."""
    last = schedule.last
    if last == NOTHING:
        if schedule.steps:
            yield from _path(schedule, len(schedule.steps) - 1, True, since_ps)
        return
    begin = schedule.served_ps[last]
    if schedule.makespan_ps > begin:
        yield Segment(last, _activity(schedule, last), max(begin, since_ps), schedule.makespan_ps)
    yield from _path(schedule, last, False, since_ps)


def layer_times(schedule: Schedule) -> Counter[int]:
    """Return the picoseconds of each layer; the key NOTHING holds the time of no layer."""
    sums: Counter[int] = Counter()
    for segment in binding_path(schedule):
        sums[layer_of(schedule.steps[segment.step])] += segment.end_ps - segment.begin_ps
    return sums


def wait_times(schedule: Schedule, queue: Queue) -> tuple[WaitTime, ...]:
    """Return the idle time of a queue until the end of the run, by waiting instruction and cause."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    free = 0
    for index in schedule.entries[queue]:
        served = schedule.served_ps[index]
        if served > free:
            step = schedule.steps[index]
            _collect(found, schedule.steps, step.pc, layer_of(step), _path(schedule, index, False, free))
        free = schedule.finished_ps[index]
    if free < schedule.makespan_ps:
        _collect(found, schedule.steps, NOTHING, NOTHING, binding_path(schedule, free))
    return tuple(WaitTime(*key, ps) for key, ps in found.items())


def _collect(
    found: Counter[tuple[int, int, int, int]], steps: Sequence[IssuedStep], pc: int, layer: int, path: Iterator[Segment]
) -> None:
    for segment in path:
        due = steps[segment.step]
        found[pc, layer, due.pc, layer_of(due)] += segment.end_ps - segment.begin_ps


def _path(schedule: Schedule, step: int, at_issue: bool, since_ps: int) -> Iterator[Segment]:
    """Walk back from the service of a step (`at_issue`: from its issue) to `since_ps`."""
    issued, served, finished = schedule.issued_ps, schedule.served_ps, schedule.finished_ps
    while (issued if at_issue else served)[step] > since_ps:
        if at_issue and schedule.issue_cause[step] == NOTHING:
            begin = issued[step - 1] if step else 0
            if issued[step] > begin:
                yield Segment(step, Activity.CONTROL, max(begin, since_ps), issued[step])
            step -= 1
            if step < 0:
                return
            continue
        cause = schedule.issue_cause[step] if at_issue else schedule.service_cause[step]
        if cause == NOTHING:
            at_issue = True
            continue
        # A step that left a full queue let the next one in at that moment; every other cause is the end of a step.
        ended = finished[cause] == (issued if at_issue else served)[step]
        step, at_issue = cause, False
        if ended and finished[step] > served[step]:
            yield Segment(step, _activity(schedule, step), max(served[step], since_ps), finished[step])


def _activity(schedule: Schedule, step: int) -> Activity:
    return Activity(getattr(schedule.steps[step].item, "queue", Queue.CP))
