"""The ordering stage: from the commands of a core in program order to the items that its queues receive (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.hazards import ONE_BUFFER, SEPARATE
from device_agents.emulated_npu.compiler.ordering.overlap import in_own_queues, overlap_units
from device_agents.emulated_npu.compiler.ordering.reorder import hoist_loads
from device_agents.emulated_npu.compiler.ordering.synchronise import fence_between_layers, synchronise
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.unit_commands import Command, Item

_HOIST_WINDOW = 64
_OVERLAP_WINDOW = 128
_WORTH = 0.99
"""What a queue for the VFU must bring: the formula knows nothing of the time that more instructions take to issue."""


def order(commands: Sequence[Command], machine: Machine, options: Options) -> list[Item]:
    """Order the commands of a core and add the synchronisation between its queues.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same commands with waits, posts and fences, such that the queues running in parallel compute the same
    results. If the options allow it, loads are hoisted and, where the VFU has a queue, the units overlap; of the orders
    that were tried the formula predicts the shortest time for this one. If two queues for the units are hardly faster
    than one, the commands of both are in the CP queue.
    """
    memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
    own = in_own_queues(commands, machine) if machine.vfu_queue_depth else commands
    if options.fences:
        layers = [list(group) for _, group in itertools.groupby(own, key=lambda command: command.layer)]
        if options.reorder:
            layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=memory_of) for layer in layers]
        return fence_between_layers(synchronise([command for layer in layers for command in layer], memory_of))
    if not options.reorder:
        return synchronise(own, memory_of)
    hoisted = hoist_loads(commands, window=_HOIST_WINDOW, memory_of=memory_of)
    time_ps, best = _fastest((hoisted, commands), machine, memory_of)
    if machine.vfu_queue_depth:
        overlapped_ps, overlapped = _fastest(_overlapping(own, machine, memory_of), machine, memory_of)
        if overlapped_ps < _WORTH * time_ps:
            return overlapped
    return best


def _fastest(orders: Iterable[Sequence[Command]], machine: Machine, memory_of: Sequence[int]) -> tuple[int, list[Item]]:
    """Return the predicted time and the items of the fastest order."""
    ways = [synchronise(each, memory_of) for each in orders]
    times_ps = [predicted_time_ps(each, machine) for each in ways]
    best = times_ps.index(min(times_ps))
    return times_ps[best], ways[best]


def _overlapping(own: Sequence[Command], machine: Machine, memory_of: Sequence[int]) -> list[list[Command]]:
    """Return orders of commands in which MFU and VFU work at the same time."""
    costs = CostModel(machine)
    durations_ps = [costs.duration_ps(command) for command in own]
    return [
        overlap_units(own, durations_ps, window=_OVERLAP_WINDOW, memory_of=memory_of),
        hoist_loads(own, window=_HOIST_WINDOW, memory_of=memory_of),
    ]


def predicted_time_ps(items: Sequence[Item], machine: Machine) -> int:
    """Return the time of items by the formula of S2.6, in picoseconds."""
    return formula((IssuedStep(pc, item, 0) for pc, item in enumerate(items)), machine).total_ps
