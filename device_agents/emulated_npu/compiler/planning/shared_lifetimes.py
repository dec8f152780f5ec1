"""What the cores of a group know of each other, and from when on memory that they share may be used again (S5.7).

Cores tell each other alone that something has been written, and what a core does off chip is in order: its IO queue
is, and loads only ever move up. So a core that is told of something that another one has written in phase p knows that
the other one is done with all that it reads and writes in the phases before p, and whatever that one knew when it
began phase p. A slice tells of its tiles one by one: who has been told of all of them, or of one that is all there is,
knows it to be done with phase p.

An address may be written again in phase q if every core that writes in phase q or later knows by then that all others
are done with the last phase in which they use what lies there. By then it has been told what it has waited for in the
phases before q, and in phase q as well if it fetches all that it reads before it stores anything (in one pass).
Otherwise the value keeps its address for longer, at worst to the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, View
from device_agents.emulated_npu.compiler.graph.regions import Region, intersection, is_empty, value_region, whole
from device_agents.emulated_npu.compiler.planning.chain import ChainPlan

NEVER = -1


@dataclass(frozen=True)
class PhaseAccess:
    """A core uses a region of a value in a phase; the accesses of a phase come after those of the phases before."""

    core: int
    phase: int
    value: str
    region: Region


@dataclass(frozen=True)
class Notification:
    """By phase `heard` a core has told `peer` of something, who knows then that it is done with phases up to `done`."""

    core: int
    done: int
    peer: int
    heard: int


def shared_lifetimes(
    parts: Sequence[Graph], phases: Sequence[int], chains: Sequence[Sequence[ChainPlan]]
) -> Mapping[str, tuple[int, int]]:
    """From when to when each value that cores of a group compute, other than results, needs its place, in phases.

    `parts` are the graphs of the cores, `chains` what they run, `phases` those of all layers by index. All that a chain
    does belongs to the phase of its first layer; no other core computes anything in those of the others.
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
    return value_region(view, whole(view.shape))


def notifications(
    writes: Sequence[PhaseAccess], reads: Sequence[PhaseAccess], step_by_step: Container[tuple[int, int]]
) -> tuple[Notification, ...]:
    """What cores learn of each other as they read what others have written in phases before.

    The writes of a core are in order. `step_by_step` are cores and phases in which they store, and tell of, something
    before they have fetched everything.
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
    accesses: Iterable[PhaseAccess], told: Sequence[Notification], step_by_step: Container[tuple[int, int]]
) -> Mapping[str, tuple[int, int]]:
    """For every value the first phase in which it is written, and the last in which nothing else may be in its place.

    `accesses` are all reads and writes, `step_by_step` as in `notifications`.
    """
    everything = list(accesses)
    cores = sorted({access.core for access in everything})
    end = max((access.phase for access in everything), default=NEVER) + 1
    known = _knowledge(cores, end, told)
    uses: dict[str, dict[int, int]] = defaultdict(dict)
    first: dict[str, int] = {}
    for access in everything:
        mine = uses[access.value]
        mine[access.core] = max(access.phase, mine.get(access.core, NEVER))
        first[access.value] = min(access.phase, first.get(access.value, end))
    active = sorted({(access.phase, access.core) for access in everything}, reverse=True)
    told_by_then = [
        (phase, core, known[core, phase if (core, phase) in step_by_step else phase + 1]) for phase, core in active
    ]
    return {name: (first[name], _last_phase(mine, told_by_then)) for name, mine in uses.items()}


def _last_phase(uses: Mapping[int, int], known: Iterable[tuple[int, int, Mapping[int, int]]]) -> int:
    """The last phase in which a core computes that does not know that all these uses are over.

    `known` has every phase and core, from the last phase back, with what the core knows when it writes.
    """
    last = max(uses.values())
    for phase, core, done in known:
        if phase <= last:
            break
        if any(done[other] < until for other, until in uses.items() if other != core):
            return phase
    return last


def _knowledge(
    cores: Sequence[int], end: int, told: Sequence[Notification]
) -> Mapping[tuple[int, int], Mapping[int, int]]:
    """For a core and a phase: up to which phase it knows each core to be done, by what it was told before the phase."""
    by_phase: dict[int, list[Notification]] = defaultdict(list)
    for tell in told:
        by_phase[tell.heard].append(tell)
    now: dict[int, Mapping[int, int]] = {core: dict.fromkeys(cores, NEVER) for core in cores}
    before: dict[tuple[int, int], Mapping[int, int]] = {}
    for phase in range(end):
        before.update({(core, phase): done for core, done in now.items()})
        later: dict[int, dict[int, int]] = {}
        for tell in by_phase[phase]:  # what is heard in a phase counts from the next one on
            mine = later.setdefault(tell.peer, dict(now[tell.peer]))
            mine[tell.core] = max(mine[tell.core], tell.done)
            for core, done in before[tell.core, tell.done + 1].items():
                mine[core] = max(mine[core], done)
        now.update(later)
    before.update({(core, end): done for core, done in now.items()})
    return before
