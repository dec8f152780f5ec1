"""The assignment of a network's layers to groups of cores, and its checks (S5.1, S5.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.regions import layer_producers
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Function

_LARGEST_MEMORY_BYTES = 1 << 40
"""The largest DDR that a machine can be described with."""


class InvalidAssignment(EmulatorError):
    """Layers or cores are missing, listed twice or do not exist, or the groups would wait for each other."""


@dataclass(frozen=True)
class GroupAssignment:
    """Cores of one chip, and the indices of the layers that they compute, in the order in which they run."""

    cores: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """The groups of cores of a network; every layer is in one group."""

    groups: tuple[GroupAssignment, ...]


def group_names(assignment: Assignment) -> tuple[str, ...]:
    """Return the names of the groups for messages."""
    return tuple(f"Group {number} ({_cores(group)})" for number, group in enumerate(assignment.groups))


def _cores(group: GroupAssignment) -> str:
    return f"core{'s' if len(group.cores) != 1 else ''} {', '.join(map(str, group.cores))}"


def with_room(machine: Machine) -> Machine:
    """Return the machine with as much DDR on a chip as can be described.

    A network that is divided over chips is measured on one core first, whose chip need not hold it.
    """
    return replace(machine, ddr=replace(machine.ddr, bytes=_LARGEST_MEMORY_BYTES))


def core_speed(machine: Machine, function: Function) -> int:
    """Return the multiply-adds or operations of lanes per second that a core can do for a function."""
    return (machine.vfu.lanes if function.is_vector else machine.mfu.multipliers) * machine.clock_hz


def fastest_first(machine: Machine, cores: Iterable[int]) -> tuple[int, ...]:
    """Return cores ordered by the speed of their matrix units; a layer that is not split runs on the first of them."""
    return tuple(sorted(cores, key=lambda core: -core_speed(machine.of_core(core), Function.CONVOLVE)))


def group_machines(machine: Machine, groups: Sequence[Sequence[int]]) -> list[tuple[Machine, ...]]:
    """Return for each group the machines of its cores, by their kind, with the group's share of its chip's memories.

    The share is the number of its cores divided by the number of cores in use on the chip. It applies to the bandwidth,
    for predictions, because in the steady state of a pipeline all cores work all the time; and to the size of the
    last-level cache. The groups of a chip take as much of its DDR as they need; `compile_system` adds up the demands.
    """
    chip_of = machine.cores.chip_of
    in_use = Counter(chip_of(core) for cores in groups for core in cores)
    return [
        tuple(_share(machine.of_core(core), len(cores), in_use[chip_of(cores[0])]) for core in cores)
        for cores in groups
    ]


def _share(machine: Machine, cores: int, in_use: int) -> Machine:
    llc, ddr = (
        replace(memory, bytes_per_s=memory.bytes_per_s * cores / in_use) for memory in (machine.llc, machine.ddr)
    )
    return replace(machine, llc=replace(llc, bytes=llc.bytes * cores // in_use), ddr=ddr)


def check_assignment(assignment: Assignment, graph: Graph, machine: Machine) -> None:
    """Raise InvalidAssignment, with the first reason why the assignment cannot run."""
    if not assignment.groups:
        raise InvalidAssignment("The assignment has no groups", "a network needs at least one", "Add a group of cores")
    _check_cores(assignment, machine)
    _check_layers(assignment, graph)
    producers = layer_producers(graph)
    _check_order(assignment, graph, producers)
    _check_acyclic(assignment, graph, producers)


def _check_cores(assignment: Assignment, machine: Machine) -> None:
    cores = machine.cores
    owner: dict[int, str] = {}
    for name, group in zip(group_names(assignment), assignment.groups, strict=True):
        if not group.cores:
            raise InvalidAssignment(
                f"{name} has no cores", "no core would run its layers", "Give it a core, or remove it"
            )
        for core in group.cores:
            if not 0 <= core < cores.count:
                why = f"{machine.name} has {cores.count} cores, 0 to {cores.count - 1}"
                raise InvalidAssignment(f"{name} lists core {core}", why, "Choose existing cores")
            if core in owner:
                what = f"Core {core} is listed by {owner[core]} and by {name}"
                raise InvalidAssignment(what, "a core runs one program", "List every core once")
            owner[core] = name
        chips = sorted({cores.chip_of(core) for core in group.cores})
        if len(chips) > 1:
            what = f"{name} lies on the chips {', '.join(map(str, chips))}"
            why = f"cores of a group share the memory of one chip, which has {cores.per_chip} cores"
            raise InvalidAssignment(what, why, "Make a group for every chip")


def _check_layers(assignment: Assignment, graph: Graph) -> None:
    count = len(graph.layers)
    found = Counter(place for group in assignment.groups for place in group.layers)
    for name, group in zip(group_names(assignment), assignment.groups, strict=True):
        if not group.layers:
            why = f"{len(assignment.groups)} groups share {count} layers"
            raise InvalidAssignment(f"{name} has no layers", why, "Use fewer groups")
        for place in group.layers:
            if not 0 <= place < count:
                why = f"the network has {count} hardware layers, 0 to {count - 1}"
                raise InvalidAssignment(f"{name} lists layer {place}", why, "Choose existing layers")
            if found[place] > 1:
                what = f"Layer {place} ({graph.layers[place].name}) is listed {found[place]} times"
                raise InvalidAssignment(what, "every layer runs once", "List it in one group")
    missing = [place for place in range(count) if place not in found]
    if missing:
        what = f"Layer {missing[0]} ({graph.layers[missing[0]].name}) is in no group"
        raise InvalidAssignment(what, f"{len(missing)} of {count} layers are in none", "Give every layer to a group")


def _check_order(assignment: Assignment, graph: Graph, producers: Sequence[frozenset[int]]) -> None:
    for name, group in zip(group_names(assignment), assignment.groups, strict=True):
        turn = {place: index for index, place in enumerate(group.layers)}
        for place in group.layers:
            late = [one for one in producers[place] if turn.get(one, -1) > turn[place]]
            if late:
                what = f"{name} runs layer {place} ({graph.layers[place].name}) before layer {late[0]}"
                why = f"layer {late[0]} ({graph.layers[late[0]].name}) computes what it reads"
                raise InvalidAssignment(what, why, "Order the layers of a group as data flows")


def _check_acyclic(assignment: Assignment, graph: Graph, producers: Sequence[frozenset[int]]) -> None:
    group_of = {place: number for number, group in enumerate(assignment.groups) for place in group.layers}
    layers = {(group_of[one], group_of[place]): (one, place) for place, found in enumerate(producers) for one in found}
    circle = circle_of(len(assignment.groups), layers)
    if circle:
        what = f"The groups {', '.join(map(str, sorted(circle)))} wait for each other"
        why = "; ".join(
            f"{graph.layers[reader].name} in group {target} reads {graph.layers[producer].name} of group {source}"
            for source, target in sorted(zip(circle, (*circle[1:], circle[0]), strict=True))
            for producer, reader in (layers[source, target],)
        )
        raise InvalidAssignment(what, why, "Divide the layers so that data flows one way")


def circle_of(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return groups of which each feeds the next and the last feeds the first; () if there is no such cycle."""
    stages, sources = _stages(count, edges)
    left = [number for number in range(count) if number not in stages]
    if not left:
        return ()
    path = [left[0]]
    while True:
        source = min(one for one in sources[path[0]] if one not in stages)
        if source in path:
            return tuple(path[: path.index(source) + 1])
        path.insert(0, source)


def stage_numbers(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the stage of each of `count` groups: one more than the last stage that feeds it, else 0.

    `edges` lead from a group to a group that reads its values; they must have no circle.
    """
    stages, _ = _stages(count, edges)
    return tuple(stages[number] for number in range(count))


def _stages(count: int, edges: Iterable[tuple[int, int]]) -> tuple[dict[int, int], dict[int, set[int]]]:
    """Return the stages of the groups that no circle feeds, and the sources of every group."""
    sources: dict[int, set[int]] = {number: set() for number in range(count)}
    for source, target in edges:
        if source != target:
            sources[target].add(source)
    stages: dict[int, int] = {}
    waiting = set(sources)
    while ready := [number for number in sorted(waiting) if sources[number] <= stages.keys()]:
        for number in ready:
            stages[number] = 1 + max((stages[source] for source in sources[number]), default=-1)
        waiting.difference_update(ready)
    return stages, sources
