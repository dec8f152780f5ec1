"""The ordering stage: from the commands of a core in program order to the items that its queues receive (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.cache_ahead import (
    bring_weights_ahead,
    has_faster_cache,
    least_load_ps,
)
from device_agents.emulated_npu.compiler.ordering.hazards import (
    LOADS,
    ONE_BUFFER,
    SEPARATE,
    STORES,
    UNITS,
    Accesses,
    Conflicts,
    dependencies,
    in_order,
    latest_of,
    stream_of,
)
from device_agents.emulated_npu.compiler.ordering.list_schedules import Filled, fill_gaps, least_end_ps, overlap_units
from device_agents.emulated_npu.compiler.ordering.synchronise import fence_between_layers, synchronise, synchronised
from device_agents.emulated_npu.compiler.ordering.weight_places import SpreadWeights
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel, costs_of
from device_agents.emulated_npu.timing.cost.matrix_cost import runs_on_mfu
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Queue, Space

_HOIST_WINDOW = 64
_OVERLAP_WINDOW = 128
_WORTH_BY_TIME = 0.995
"""An order by time has fewer loops than one with hoisted loads, and weights through the cache take more transfers: both
need more instructions, and must be faster by this factor."""
_WORTH_OWN_QUEUES = 0.99
"""What a queue for the VFU or the cache must bring: the formula knows nothing of the time of more instructions."""
_HALF_AS_FAST = (None, Queue.CP, Queue.VFU)
"""The units that orders take to be half as fast, one each; None for the order of the times as they are."""
_MESSAGES = (Function.SEND, Function.RECEIVE)
_GAPS = ((0.25, False), (0.75, False), (1.0, False), (1.0, True))
"""The ways of `fill_gaps` that are tried: its delay, and whether urgent transfers come first."""
_GAPS_OF_SHARED = _GAPS[:-1]
"""Those for layers that cores share: what is urgent depends on times of shared memories, which are not known."""


class Ordered(NamedTuple):
    """The items of a core, and their time by the formula of S2.6, in picoseconds.

    `conflicts` are those of the commands in the order of the items.
    """

    predicted_ps: int
    items: list[Item]
    conflicts: Sequence[Conflicts] = ()


class KnownCommands:
    """What was found about commands on a machine: the ways to run a network that are compared share most of them."""

    def __init__(self, machine: Machine) -> None:
        self.durations_ps: dict[int, tuple[Command, int]] = {}
        """By identity, as in `formula`."""
        self.memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
        self._accesses, self._own = Accesses(), dict[int, tuple[Command, Command]]()
        self._places = None if machine.shared_buffer else SpreadWeights(machine.sb_bytes)
        self._last: tuple[Sequence[Command], Sequence[Command], Sequence[Conflicts]] = (), (), ()

    def spread(self, commands: Sequence[Command]) -> tuple[Sequence[Command], Sequence[Conflicts]]:
        """Return the commands with addresses in SB that let weights arrive early, and their conflicts."""
        if self._last[0] is not commands:
            moved = self._places.commands(commands) if self._places else commands
            self._last = commands, moved, dependencies(moved, self.memory_of, self._accesses)
        return self._last[1:]

    def in_own_queues(self, commands: Sequence[Command], chosen: Callable[[Command], bool]) -> list[Command]:
        """Return the commands with the chosen ones in the queue of their own."""
        found = []
        for command in commands:
            if chosen(command):
                if id(command) not in self._own:
                    self._own[id(command)] = command, replace(command, own_queue=True)
                command = self._own[id(command)][1]
            found.append(command)
        return found


def least_time_ps(
    commands: Sequence[Command],
    machine: Machine,
    options: Options,
    cached: Sequence[CachedValue] | None,
    known: KnownCommands,
) -> int:
    """Return a time by the formula below which `order` finds no order of the same commands; 0 where none is known."""
    apart = machine.vfu_queue_depth or (cached is not None and machine.llc_queue_depth)
    if apart or machine.io_outstanding > 1 or options.fences or not options.reorder:
        return 0
    spread, conflicts = known.spread(commands)
    clock = _Clock(machine, known)
    durations_ps = clock.durations_ps(spread)
    if cached is not None and options.cached_weights and has_faster_cache(machine):
        pairs = zip(spread, durations_ps, strict=True)
        durations_ps = [min(duration_ps, least_load_ps(command, clock.costs)) for command, duration_ps in pairs]
    return least_end_ps(spread, conflicts, durations_ps)


def order(
    commands: Sequence[Command],
    machine: Machine,
    options: Options,
    cached: Sequence[CachedValue] | None = None,
    shared: Container[int] = (),
    known: KnownCommands | None = None,
) -> Ordered:
    """Order the commands of a core and add the synchronisation between its queues.

    Requires: commands whose results are correct if each ends before the next begins.
    Ensures: the same commands with waits, posts and fences, such that the queues running in parallel compute the same
    results; addresses in SB may differ. If the options allow it, loads are hoisted, and transfers are ordered by time
    where the formula predicts 0.5 % less. Where the VFU has a queue, the units overlap, too; if that is hardly faster,
    the commands of both units are in the CP queue. `cached` are all values in the last-level cache, if this core alone
    uses it: its transfers may then have the LLC queue, and weights may pass through the rest of the cache. `shared` are
    the layers whose transfers the memories delay for other cores.
    """
    clock = _Clock(machine, known or KnownCommands(machine))
    own = clock.known.in_own_queues(commands, partial(_is_of_vfu, machine)) if machine.vfu_queue_depth else commands
    if options.fences:
        return _fenced(own, clock, hoist=options.reorder)
    if not options.reorder:
        return clock.ordered(synchronise(own, clock.memory_of))
    chosen, best = commands, _early_or_by_time(commands, clock, shared)
    if machine.vfu_queue_depth:
        overlapped, fastest = _overlapped(own, clock, shared)
        if fastest.predicted_ps < _WORTH_OWN_QUEUES * best.predicted_ps:
            chosen, best = overlapped, fastest
    if cached is not None and machine.llc_queue_depth:
        apart = clock.known.in_own_queues(chosen, _is_of_cache)
        beside = _early_or_by_time(apart, clock, shared)
        if beside.predicted_ps < _WORTH_OWN_QUEUES * best.predicted_ps:
            best = beside
    if cached is not None and options.cached_weights and has_faster_cache(machine):
        in_place = [item for item in best.items if isinstance(item, Command)]
        ahead = bring_weights_ahead(in_place, best.conflicts, cached, clock.costs)
        if ahead is not None and ahead[0] <= _WORTH_BY_TIME:
            through = clock.ordered(synchronise(ahead[1], clock.memory_of))
            best = through if through.predicted_ps <= _WORTH_BY_TIME * best.predicted_ps else best
    return best


def _fenced(own: Sequence[Command], clock: _Clock, *, hoist: bool) -> Ordered:
    """Return the order in which each layer ends before the next begins."""
    layers = [list(group) for _, group in itertools.groupby(own, key=lambda command: command.layer)]
    if hoist:
        layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=clock.memory_of) for layer in layers]
    flat = [command for layer in layers for command in layer]
    return clock.ordered(fence_between_layers(synchronise(flat, clock.memory_of)))


def _overlapped(own: Sequence[Command], clock: _Clock, shared: Container[int]) -> tuple[list[Command], Ordered]:
    """Return the fastest order of two compute queues, and its commands before transfers are ordered by time."""
    orders = _overlapping(own, clock.durations_ps(own), clock.memory_of)
    ways = [(both, _early_or_by_time(both, clock, shared)) for both in orders]
    return min(ways, key=lambda way: way[1].predicted_ps)


def _overlapping(own: Sequence[Command], durations_ps: Sequence[int], memory_of: Sequence[int]) -> list[list[Command]]:
    """Return orders in which MFU and VFU work at the same time: as they are, and as if one were half as fast."""
    found: list[list[Command]] = []
    for slower in _HALF_AS_FAST:
        times_ps = [
            duration_ps * (2 if command.queue is slower else 1)
            for command, duration_ps in zip(own, durations_ps, strict=True)
        ]
        both = overlap_units(own, times_ps, window=_OVERLAP_WINDOW, memory_of=memory_of)
        if both not in found:
            found.append(both)
    return found


class _Clock:
    """Predicts times of commands and items on a machine; each command is costed once."""

    def __init__(self, machine: Machine, known: KnownCommands) -> None:
        self.machine, self.costs, self.known = machine, costs_of(machine), known
        self.memory_of = known.memory_of

    def ordered(self, items: list[Item]) -> Ordered:
        """Return items with their predicted time."""
        return Ordered(predicted_time_ps(items, self.machine, self.costs, self.known.durations_ps), items)

    def in_order(self, commands: Sequence[Command], conflicts: Sequence[Conflicts], order: Sequence[int]) -> Ordered:
        """Return the commands in an order of their positions that keeps their conflicts."""
        found = in_order(conflicts, order)
        ordered = self.ordered(synchronised([commands[position] for position in order], found))
        return ordered._replace(conflicts=found)

    def durations_ps(self, commands: Sequence[Command]) -> list[int]:
        """Return the times of commands."""
        durations, found = self.known.durations_ps, []
        for command in commands:
            known = durations.get(id(command))
            if known is None:
                known = durations[id(command)] = command, self.costs.duration_ps(command)
            found.append(known[1])
        return found


def _is_of_vfu(machine: Machine, command: Command) -> bool:
    return command.function.is_vector and not runs_on_mfu(machine.mfu, command.function)


def _is_of_cache(command: Command) -> bool:
    """Return whether a command moves data between the last-level cache and the core, and no other memory."""
    if not command.function.rule.has_own_queue or command.function.is_vector:
        return False
    spaces = {operand.descriptor.space for operand in (command.target, *command.sources)}
    return Space.LLC in spaces and Space.DDR not in spaces


def _early_or_by_time(commands: Sequence[Command], clock: _Clock, shared: Container[int]) -> Ordered:
    """Return the commands with loads as early as conflicts allow, or ordered by time if that is worth its instructions.

    Weights have addresses in SB that let them arrive early.
    """
    spread, conflicts = clock.known.spread(commands)
    hoisting = hoisted(spread, conflicts, window=_HOIST_WINDOW)
    early, timing = clock.in_order(spread, conflicts, hoisting), _by_time(spread, conflicts, clock, shared)
    if timing == hoisting:
        return early
    by_time = clock.in_order(spread, conflicts, timing)
    return by_time if by_time.predicted_ps <= _WORTH_BY_TIME * early.predicted_ps else early


def _by_time(
    commands: Sequence[Command], conflicts: Sequence[Conflicts], clock: _Clock, shared: Container[int]
) -> list[int]:
    """Return the positions of the commands in the best order by time.

    Other cores rely on what is loaded and stored before a message. So commands pass messages as if loads were hoisted,
    and time orders those between two messages.
    """
    durations = clock.durations_ps(commands)
    order: list[int] = []
    for part in _between_messages(commands, conflicts):
        own = [commands[position] for position in part]
        within = conflicts if len(part) == len(commands) else _within(part, conflicts)
        times = [durations[position] for position in part]
        gaps = _GAPS_OF_SHARED if all(command.layer in shared for command in own) else _GAPS
        ways: list[Filled] = []
        for delay, urgent in gaps:
            if urgent or not ways or delay >= ways[-1].alike_below:
                ways.append(fill_gaps(own, within, times, delay, urgent_first=urgent))
        order += [part[place] for place in min(ways, key=itemgetter(0)).order]
    return order


def _between_messages(commands: Sequence[Command], conflicts: Sequence[Conflicts]) -> Iterator[Sequence[int]]:
    """Yield the positions of commands between messages, which have loads hoisted, and each message by itself."""
    if not any(command.function in _MESSAGES for command in commands):
        yield range(len(commands))
        return
    part: list[int] = []
    for position in hoisted(commands, conflicts, window=_HOIST_WINDOW):
        if commands[position].function in _MESSAGES:
            yield part
            yield [position]
            part = []
        else:
            part.append(position)
    yield part


def _within(part: Sequence[int], conflicts: Sequence[Conflicts]) -> list[Conflicts]:
    """Return the conflicts of some commands with each other, by their places in the part."""
    places = {position: place for place, position in enumerate(part)}
    return [[places.get(before, -1) for before in conflicts[position]] for position in part]


def predicted_time_ps(
    items: Sequence[Item],
    machine: Machine,
    costs: CostModel | None = None,
    durations: dict[int, tuple[Command, int]] | None = None,
) -> int:
    """Return the time of items by the formula of S2.6, in picoseconds; `durations` as in `formula`."""
    steps = (IssuedStep(pc, item, 0) for pc, item in enumerate(items))
    return formula(steps, machine, costs=costs, durations=durations).total_ps


def hoist_loads(commands: Sequence[Command], *, window: int, memory_of: Sequence[int] = SEPARATE) -> list[Command]:
    """Return the commands with every load as early as its dependences allow, as `hoisted` orders them."""
    return [commands[position] for position in hoisted(commands, dependencies(commands, memory_of), window=window)]


def hoisted(commands: Sequence[Command], conflicts: Sequence[Conflicts], *, window: int) -> list[int]:
    """Return the positions of the commands with loads as early as conflicts allow, over at most `window` computes.

    A load does not pass a store that can start no later than the load: that would only delay the store.
    """
    streams = [stream_of(command) for command in commands]
    others = [position for position, stream in enumerate(streams) if stream not in LOADS]
    loads = [position for position, stream in enumerate(streams) if stream in LOADS]
    rank = {position: index for index, position in enumerate(others)}
    computes = [rank[position] for position in others if streams[position] in UNITS]

    result: list[int] = []
    done = passed = overtaken_from = 0  # others placed; others and computes that precede the load in the program
    for load in loads:
        while passed < len(others) and others[passed] < load:
            overtaken_from += streams[others[passed]] in UNITS
            passed += 1
        found = conflicts[load]
        behind = max(rank.get(latest_of(found, STORES), -1), rank.get(latest_of(found, UNITS), -1)) + 1
        limit = computes[overtaken_from - window - 1] + 1 if overtaken_from > window else 0
        slot = max(behind, limit, done)
        while slot < passed and _is_store(commands, others[slot]) and _starts_no_later(conflicts, others[slot], load):
            slot += 1
        result += others[done:slot]
        result.append(load)
        done = slot
    return result + others[done:]


def _is_store(commands: Sequence[Command], position: int) -> bool:
    """Return whether a command is a store; a RECEIVE is none, because its start depends on another core."""
    function = commands[position].function
    return function is not Function.RECEIVE and stream_of(commands[position]) in STORES


def _starts_no_later(conflicts: Sequence[Conflicts], store: int, load: int) -> bool:
    """Return whether the last compute that the store needs is not after the last one that the load needs."""
    return latest_of(conflicts[store], UNITS) <= latest_of(conflicts[load], UNITS)
