"""When the cores of a group may reuse the memory that they share (S5.7).

Cores notify each other only of writes. A core accesses memory off chip in order: its IO queue is in order, and loads
only move to earlier positions. So if core B is notified of a write of core A in phase p, then A has finished all reads
and writes of the phases before p, and B also has the information that A had at the beginning of phase p. A slice
sends one notification per tile, in order: after that of the last tile A has finished phase p as well.

An address may be written again in phase q if every core that writes in phase q or later has by then the information
that all other cores have finished the last phase in which they use it. A core has then received the notifications of
the phases before q, and those of phase q if it fetches all inputs before it stores anything (in one pass). Otherwise
the value keeps its address for longer, at most to the end.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.graph.regions import (
    Region,
    intersection,
    is_empty,
    overlap,
    read_region,
)
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan

NEVER = -1


@dataclass(frozen=True)
class PhaseAccess:
    """A core accesses a region of a value in a phase; the accesses of a phase follow those of earlier phases.

    `last` is the part of a write that its last pass stores. A read awaits the notification of that part if `complete`
    overlaps it: it is the region of a read that loads every element of it. None if that is not known.
    """

    core: int
    phase: int
    value: str
    region: Region
    last: Region | None = None
    complete: Region | None = None


@dataclass(frozen=True)
class Notification:
    """By phase `heard`, `peer` has a notification of `core`: `core` has finished the phases up to `done`."""

    core: int
    done: int
    peer: int
    heard: int


def shared_lifetimes(
    parts: Sequence[Graph], phases: Sequence[int], chains: Sequence[Sequence[ChainPlan]]
) -> Mapping[str, tuple[int, int]]:
    """Return the first and last phase in which each value that a group computes, except outputs, needs its address.

    `parts` are the graphs of the cores, `chains` their chains, `phases` the phases of all layers by index. All accesses
    of a chain belong to the phase of its first layer; no other core computes in the phases of its other layers.
    """
    written: list[PhaseAccess] = []
    read: list[PhaseAccess] = []
    steps: Counter[tuple[int, int]] = Counter()
    for core, (part, own) in enumerate(zip(parts, chains, strict=True)):
        phase_of: dict[int, int] = {}
        lasts: dict[int, Region | None] = {}
        for plan in own:
            lasts.update((layer.index, _stored_last(layer.output, plan)) for layer in plan.layers)
            first = min(phases[layer.index] for layer in plan.layers)
            phase_of.update((layer.index, first) for layer in plan.layers)
            steps[core, first] += plan.passes + len(plan.layers) - 1
        for layer in part.layers:
            phase = phase_of[layer.index]
            written.append(PhaseAccess(core, phase, layer.output.value, layer.output.value_region, lasts[layer.index]))
            for place, view in enumerate(layer.reads):
                complete = _read_complete(layer, place)
                read.append(PhaseAccess(core, phase, view.value, view.value_region, complete=complete))
    step_by_step = {place for place, count in steps.items() if count > 1}
    spans = last_phases((*written, *read), notifications(written, read, step_by_step), step_by_step)
    results = {name for part in parts for name in part.outputs}
    return {name: spans[name] for name in {access.value: None for access in written} if name not in results}


def _stored_last(output: View, plan: ChainPlan) -> Region | None:
    """Return the part of an output that the last pass stores; None if it stores none, or every so many elements."""
    geometry, name = plan.geometry, output.value
    tile = tuple(count - 1 for count in geometry.counts)
    if name not in geometry.stored or not geometry.is_active(name, tile) or not _has_no_gaps(output):
        return None
    return intersection(output.value_region, geometry.stored_region(name, tile))


def _read_complete(layer: HardwareLayer, place: int) -> Region | None:
    """Return the part of a value that a layer reads; None if it may leave out elements of it."""
    view, settings = layer.reads[place], layer.settings
    if not _has_no_gaps(view) or any(map(operator.gt, settings.stride, settings.kernel)):
        return None
    return view.value_region_of(read_region(layer, place, layer.output.region))


def _has_no_gaps(view: View) -> bool:
    return all(axis.step == 1 for axis in view.axes)


def notifications(
    writes: Sequence[PhaseAccess], reads: Sequence[PhaseAccess], step_by_step: Container[tuple[int, int]]
) -> tuple[Notification, ...]:
    """Return the notifications that cores receive for values that others have written in earlier phases.

    The writes of a core are in order. `step_by_step` lists cores and phases in which a core stores in several steps,
    some of them before it has fetched all its inputs.
    """
    readers: dict[str, list[PhaseAccess]] = defaultdict(list)
    for read in reads:
        readers[read.value].append(read)
    found: dict[Notification, None] = {}
    last = {(write.core, write.phase): write for write in writes}
    for write in writes:
        for read in readers[write.value]:
            if read.core == write.core or read.phase <= write.phase:
                continue
            common = intersection(read.region, write.region)
            if not is_empty(common):
                place = (write.core, write.phase)
                awaited = common == write.region
                if read.complete is not None and write.last is not None:
                    awaited = awaited or overlap(read.complete, write.last)
                is_all = place not in step_by_step or (awaited and write is last[place])
                done = write.phase if is_all else write.phase - 1
                found[Notification(write.core, done, read.core, read.phase)] = None
    return tuple(found)


def last_phases(
    accesses: Iterable[PhaseAccess], received: Sequence[Notification], step_by_step: Container[tuple[int, int]]
) -> Mapping[str, tuple[int, int]]:
    """Return for every value the phase that first writes it, and the last phase before its address is free.

    `accesses` are all reads and writes; `step_by_step` is as in `notifications`.
    """
    everything = list(accesses)
    cores = sorted({access.core for access in everything})
    end = max((access.phase for access in everything), default=NEVER) + 1
    known = _finished_phases(cores, end, received)
    uses: dict[str, dict[int, int]] = defaultdict(dict)
    first: dict[str, int] = {}
    for access in everything:
        mine = uses[access.value]
        mine[access.core] = max(access.phase, mine.get(access.core, NEVER))
        first[access.value] = min(access.phase, first.get(access.value, end))
    active = sorted({(access.phase, access.core) for access in everything}, reverse=True)
    known_by_then = [
        (phase, core, known[core, phase if (core, phase) in step_by_step else phase + 1]) for phase, core in active
    ]
    return {name: (first[name], _last_phase(mine, known_by_then)) for name, mine in uses.items()}


def _last_phase(uses: Mapping[int, int], known: Iterable[tuple[int, int, Mapping[int, int]]]) -> int:
    """Return the last phase with a core that lacks the information that all these uses are over.

    `known` lists every phase and core, from the last phase back, with the information of the core when it writes.
    """
    last = max(uses.values())
    for phase, core, done in known:
        if phase <= last:
            break
        if any(done[other] < until for other, until in uses.items() if other != core):
            return phase
    return last


def _finished_phases(
    cores: Sequence[int], end: int, received: Sequence[Notification]
) -> Mapping[tuple[int, int], Mapping[int, int]]:
    """Return for a core and a phase the last phase that each core has finished, by the notifications so far."""
    by_phase: dict[int, list[Notification]] = defaultdict(list)
    for one in received:
        by_phase[one.heard].append(one)
    now: dict[int, Mapping[int, int]] = {core: dict.fromkeys(cores, NEVER) for core in cores}
    before: dict[tuple[int, int], Mapping[int, int]] = {}
    for phase in range(end):
        before.update({(core, phase): done for core, done in now.items()})
        later: dict[int, dict[int, int]] = {}
        for one in by_phase[phase]:  # a notification of a phase counts from the next phase on
            mine = later.setdefault(one.peer, dict(now[one.peer]))
            mine[one.core] = max(mine[one.core], one.done)
            for core, done in before[one.core, one.done + 1].items():
                mine[core] = max(mine[core], done)
        now.update(later)
    before.update({(core, end): done for core, done in now.items()})
    return before
