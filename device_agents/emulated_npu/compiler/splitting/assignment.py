"""The assignment of a network's layers to groups of cores, and what each group has of its chip (S5.1, S5.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Function

_LARGEST_MEMORY_BYTES = 1 << 40
"""The largest DDR that a machine can be described with."""


@dataclass(frozen=True)
class GroupAssignment:
    """Cores of one chip, and the indices of the layers that they compute, in the order in which they run."""

    cores: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """The groups of cores of a network.

    Every layer is in one group, which runs it after the layers of the group that it reads; no groups wait for each
    other. Every core exists, and is in one group.
    """

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


def stage_numbers(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the stage of each of `count` groups: one more than the last stage that feeds it, else 0.

    `edges` lead from a group to a group that reads its values; they have no circle.
    """
    sources: dict[int, set[int]] = {number: set() for number in range(count)}
    for source, target in edges:
        if source != target:
            sources[target].add(source)
    stages: dict[int, int] = {}
    for number in TopologicalSorter(sources).static_order():
        stages[number] = 1 + max((stages[source] for source in sources[number]), default=-1)
    return tuple(stages[number] for number in range(count))
