"""The ordering stage: from the commands of a core in program order to the items that its queues receive (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.gaps import fill_gaps
from device_agents.emulated_npu.compiler.ordering.hazards import ONE_BUFFER, SEPARATE, dependencies
from device_agents.emulated_npu.compiler.ordering.reorder import hoist_loads, hoisted
from device_agents.emulated_npu.compiler.ordering.synchronise import (
    fence_between_layers,
    synchronise,
    synchronised,
)
from device_agents.emulated_npu.compiler.ordering.weight_places import spread_weights
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.unit_commands import Command, Function, Item

_HOIST_WINDOW = 64
_WORTH = 0.995
"""An order by time has fewer loops than one by place, and so more instructions: it must be faster by this factor."""
_DELAYS = (0.75, 1.0)
"""The delays of `fill_gaps` that are tried."""


def order(commands: Sequence[Command], machine: Machine, options: Options) -> list[Item]:
    """Order the commands of a core and add the synchronisation between its queues.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same commands with waits, posts and fences, such that the queues running in parallel compute the same
    results; addresses in SB may differ. If the options allow it, transfers are ordered by time, or loads are hoisted,
    where the formula predicts less time.
    """
    memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
    if options.fences:
        layers = [list(group) for _, group in itertools.groupby(commands, key=lambda command: command.layer)]
        if options.reorder:
            layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=memory_of) for layer in layers]
        return fence_between_layers(synchronise([command for layer in layers for command in layer], memory_of))
    conflicts = dependencies(commands, memory_of)
    items = synchronised(commands, conflicts, range(len(commands)))
    if not options.reorder:
        return items
    costs = CostModel(machine)
    early = synchronised(commands, conflicts, hoisted(commands, conflicts, window=_HOIST_WINDOW))
    times = [(predicted_time_ps(found, machine, costs), found) for found in (early, items)]
    best = min(times, key=lambda pair: pair[0])
    timed = [(predicted_time_ps(found, machine, costs), found) for found in _by_time(commands, machine, costs)]
    faster = min(timed, key=lambda pair: pair[0], default=best)
    return faster[1] if faster[0] <= _WORTH * best[0] else best[1]


def _by_time(commands: Sequence[Command], machine: Machine, costs: CostModel) -> Iterator[list[Item]]:
    """Yield orders by time, with weights that arrive early; none for a core of several.

    Other cores rely on the order of its loads and stores.
    """
    if any(command.function in (Function.SEND, Function.RECEIVE) for command in commands):
        return
    spread = commands if machine.shared_buffer else spread_weights(commands, machine.sb_bytes)
    conflicts = dependencies(spread, ONE_BUFFER if machine.shared_buffer else SEPARATE)
    durations = [costs.duration_ps(command) for command in spread]
    for delay in _DELAYS:
        yield synchronised(spread, conflicts, fill_gaps(spread, conflicts, durations, delay))


def predicted_time_ps(items: Sequence[Item], machine: Machine, costs: CostModel | None = None) -> int:
    """Return the time of items by the formula of S2.6, in picoseconds."""
    return formula((IssuedStep(pc, item, 0) for pc, item in enumerate(items)), machine, costs=costs).total_ps
