"""The ordering stage: from the commands of a core in program order to the items that its queues receive (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.hazards import ONE_BUFFER, SEPARATE
from device_agents.emulated_npu.compiler.ordering.reorder import hoist_loads
from device_agents.emulated_npu.compiler.ordering.synchronise import fence_between_layers, synchronise
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.unit_commands import Command, Item

_HOIST_WINDOW = 64


def order(commands: Sequence[Command], machine: Machine, options: Options) -> list[Item]:
    """Order the commands of a core and add the synchronisation between its queues.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same commands with waits, posts and fences, such that the queues running in parallel compute the same
    results. Loads are hoisted if the options allow it and the formula predicts no longer time.
    """
    memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
    if options.fences:
        layers = [list(group) for _, group in itertools.groupby(commands, key=lambda command: command.layer)]
        if options.reorder:
            layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=memory_of) for layer in layers]
        return fence_between_layers(synchronise([command for layer in layers for command in layer], memory_of))
    items = synchronise(commands, memory_of)
    if not options.reorder:
        return items
    hoisted = synchronise(hoist_loads(commands, window=_HOIST_WINDOW, memory_of=memory_of), memory_of)
    return min(hoisted, items, key=lambda ordered: predicted_time_ps(ordered, machine))


def predicted_time_ps(items: Sequence[Item], machine: Machine) -> int:
    """Return the time of items by the formula of S2.6, in picoseconds."""
    return formula((IssuedStep(pc, item, 0) for pc, item in enumerate(items)), machine).total_ps
