"""When the cores of a group may reuse the memory that they share (S5.7).

Cores notify each other only of writes. A core accesses memory off chip in order: its IO queue is in order, and loads
only move to earlier positions. So if core B is notified of a write of core A in phase p, then A has finished all reads
and writes of the phases before p, and B also has the information that A had at the beginning of phase p. A slice
sends one notification per tile: after all of them, or after the only one, A has finished phase p as well.

An address may be written again in phase q if every core that writes in phase q or later has by then the information
that all other cores have finished the last phase in which they use it. A core has then received the notifications of
the phases before q, and those of phase q if it fetches all inputs before it stores anything (in one pass). Otherwise
the value keeps its address for longer, at most to the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, View
from device_agents.emulated_npu.compiler.graph.regions import (
    Region,
    intersection,
    is_empty,
)
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan

NEVER = -1


@dataclass(frozen=True)
class PhaseAccess:
    """A core accesses a region of a value in a phase; the accesses of a phase follow those of earlier phases."""

    core: int
    phase: int
    value: str
    region: Region


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
        for plan in own:
            first = min(phases[layer.index] for layer in plan.layers)
            phase_of.update((layer.index, first) for layer in plan.layers)
            steps[core, first] += plan.passes + len(plan.layers) - 1
        for layer in part.layers:
            phase = phase_of[layer.index]
            written.append(PhaseAccess(core, phase, layer.output.value, _region(layer.output)))
            read.extend(PhaseAccess(core, phase, view.value, _region(view)) for view in layer.reads)
    step_by_step = {place for place, count in steps.items() if count > 1}
    spans = last_phases((*written, *read), notifications(written, read, step_by_step), step_by_step)
    results = {name for part in parts for name in part.outputs}
    return {name: spans[name] for name in {access.value: None for access in written} if name not in results}


def _region(view: View) -> Region:
    return view.value_region


def notifications(
    writes: Sequence[PhaseAccess], reads: Sequence[PhaseAccess], step_by_step: Container[tuple[int, int]]
) -> tuple[Notification, ...]:
    """Return the notifications that cores receive for values that others have written in earlier phases.

    The writes of a core are in order. `step_by_step` lists cores and phases in which a core stores some of its outputs
    before it has fetched all its inputs.
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
                is_all = place not in step_by_step or (common == write.region and write is last[place])
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
