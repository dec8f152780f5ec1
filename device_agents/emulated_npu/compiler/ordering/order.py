"""The ordering stage: from the commands of a core in program order to the items that its queues receive (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.cache_ahead import bring_weights_ahead, has_faster_cache
from device_agents.emulated_npu.compiler.ordering.gaps import fill_gaps
from device_agents.emulated_npu.compiler.ordering.hazards import ONE_BUFFER, SEPARATE, dependencies
from device_agents.emulated_npu.compiler.ordering.overlap import in_own_queues, overlap_units
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
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Space

_HOIST_WINDOW = 64
_OVERLAP_WINDOW = 128
_WORTH_BY_TIME = 0.995
"""An order by time has fewer loops than one by place, and so more instructions: it must be faster by this factor."""
_WORTH_OWN_QUEUES = 0.99
"""What a queue for the VFU or the cache must bring: the formula knows nothing of the time of more instructions."""
_DELAYS = (0.75, 1.0)
"""The delays of `fill_gaps` that are tried."""

_Timed = tuple[int, list[Item]]


def order(
    commands: Sequence[Command], machine: Machine, options: Options, cached: Sequence[CachedValue] | None = None
) -> list[Item]:
    """Order the commands of a core and add the synchronisation between its queues.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same commands with waits, posts and fences, such that the queues running in parallel compute the same
    results; addresses in SB may differ. If the options allow it, transfers are ordered by time, or loads are hoisted,
    where the formula predicts less time. Where the VFU has a queue, the units overlap, too; if that is hardly faster,
    the commands of both units are in the CP queue. `cached` are all values in the last-level cache, if this core alone
    uses it: its transfers may then have the LLC queue, and weights may pass through the rest of the cache.
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
    costs = CostModel(machine)
    chosen = commands
    best = _faster(_by_place(commands, memory_of), _by_time(commands, machine, costs), machine, costs)
    if machine.vfu_queue_depth:
        durations_ps = [costs.duration_ps(command) for command in own]
        both = overlap_units(own, durations_ps, window=_OVERLAP_WINDOW, memory_of=memory_of)
        early = hoist_loads(own, window=_HOIST_WINDOW, memory_of=memory_of)
        by_place = [synchronise(each, memory_of) for each in (both, early)]
        overlapped = _faster(by_place, _by_time(both, machine, costs), machine, costs)
        if overlapped[0] < _WORTH_OWN_QUEUES * best[0]:
            chosen, best = both, overlapped
    if cached is not None and machine.llc_queue_depth:
        apart = [replace(each, own_queue=True) if _is_of_cache(each) else each for each in chosen]
        beside = _faster(_by_place(apart, memory_of), _by_time(apart, machine, costs), machine, costs)
        if beside[0] < _WORTH_OWN_QUEUES * best[0]:
            best = beside
    if cached is not None and options.cached_weights and has_faster_cache(machine):
        ahead = bring_weights_ahead(best[1], cached, machine, costs)
        best = _faster([best[1]], ahead, machine, costs)
    return best[1]


def _faster(
    by_place: Iterable[list[Item]], by_time: Iterable[list[Item]], machine: Machine, costs: CostModel
) -> _Timed:
    """Return the predicted time and the items of the fastest order; one by time must be worth its instructions."""
    placed, timed = (
        [(predicted_time_ps(items, machine, costs), items) for items in orders] for orders in (by_place, by_time)
    )
    best = min(placed, key=itemgetter(0))
    faster = min(timed, key=itemgetter(0), default=best)
    return faster if faster[0] <= _WORTH_BY_TIME * best[0] else best


def _is_of_cache(command: Command) -> bool:
    """Return whether a command moves data between the last-level cache and the core, and no other memory."""
    if not command.function.has_own_queue or command.function.is_vector:
        return False
    spaces = {operand.descriptor.space for operand in (command.target, *command.sources)}
    return Space.LLC in spaces and Space.DDR not in spaces


def _by_place(commands: Sequence[Command], memory_of: Sequence[int]) -> list[list[Item]]:
    """Return orders in which loads are hoisted, and in which nothing moves."""
    conflicts = dependencies(commands, memory_of)
    early = hoisted(commands, conflicts, window=_HOIST_WINDOW)
    return [synchronised(commands, conflicts, order) for order in (early, range(len(commands)))]


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
