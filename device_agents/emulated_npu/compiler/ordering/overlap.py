"""Orders commands such that MFU and VFU work at the same time, if each has a separate queue (S3.5).

In program order a pass runs through all its layers before the next pass begins, so that each unit waits for the other.
List scheduling takes, out of a window of commands, the one that can begin first: while the VFU works on a tile, the MFU
begins the next one. The commands of a layer on one unit, loads, and stores each keep their order; loads into SB are
loads. `gaps.fill_gaps` may then order the transfers once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from device_agents.emulated_npu.compiler.ordering.hazards import (
    LOAD,
    SEPARATE,
    STORE,
    STORES,
    latest_conflicts,
    stream_of,
)
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.matrix_cost import runs_on_mfu
from device_agents.emulated_npu.unit_commands import Command, Queue

_LAYERS = 32
"""Number of layers that are distinguished; those with the same number modulo this one also keep their order."""


def in_own_queues(commands: Sequence[Command], machine: Machine) -> list[Command]:
    """Return the commands with those of the VFU in its queue; requires a machine where it has one."""
    return [replace(each, own_queue=True) if _is_of_vfu(each, machine) else each for each in commands]


def _is_of_vfu(command: Command, machine: Machine) -> bool:
    return command.function.is_vector and not runs_on_mfu(machine.mfu, command.function)


def overlap_units(
    commands: Sequence[Command], durations_ps: Sequence[int], *, window: int, memory_of: Sequence[int] = SEPARATE
) -> list[Command]:
    """Return the commands in the order in which they begin if each begins as early as its queue and conflicts allow.

    At any time only the first `window` commands that have not begun are considered.
    """
    streams = [_stream(command) for command in commands]
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


def _stream(command: Command) -> int:
    if command.function.is_transfer:
        return STORE if stream_of(command) in STORES else LOAD
    return max(LOAD, STORE) + 1 + 2 * (command.layer % _LAYERS) + command.own_queue
