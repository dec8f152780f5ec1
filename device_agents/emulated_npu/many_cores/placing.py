"""A network on core groups: by score as it is, or balanced and corrected by what its stages turn out to take (S5.7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.layers import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.mapping import assignment_of, stage_times
from device_agents.emulated_npu.many_cores.streaming import TimedSystem, time_system
from device_agents.emulated_npu.many_cores.system import compile_system
from device_agents.emulated_npu.many_cores.workload import NetworkNodes
from device_agents.emulated_npu.partition.balanced import balanced_partition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.result import Partition
from device_agents.emulated_npu.partition.traversal import Traversal

_CORRECTIONS = 2


@dataclass(frozen=True)
class Ground:
    """What partitions of a network on a machine are made from; one core takes `single_core_ps` for an input."""

    graph: Graph
    machine: Machine
    options: Options
    nodes: NetworkNodes
    traversal: Traversal
    single_core_ps: int
    inputs: int | None


@dataclass(frozen=True)
class Placed:
    """A partition as it runs; `predicted_ps` are the times of its stages as they were expected."""

    partition: Partition
    predicted_ps: tuple[float, ...]
    timed: TimedSystem


def place(ground: Ground, partition: Partition) -> Placed:
    """Compiles and times a partition; raises as `compile_system` and `time_system`."""
    system = compile_system(ground.graph, ground.machine, assignment_of(partition, ground.nodes), ground.options)
    timed = time_system(system, ground.single_core_ps, ground.inputs)
    predicted = partition.loads_by(stage_times(ground.nodes, ground.traversal, partition.groups, ground.machine))
    return Placed(partition, predicted, timed)


def place_balanced(ground: Ground, groups: Sequence[CoreGroup]) -> Placed:
    """The balanced partition, or one with a shorter interval that corrected predictions lead to.

    Shares of one core's run know nothing of where chains end in the stages, of sending, and of what cores of a group
    save: so the times of a stage's nodes are scaled to what it took, and the network is balanced again.
    """
    return min(_corrected(ground, groups), key=lambda placed: placed.timed.report.interval_ps)


def _corrected(ground: Ground, groups: Sequence[CoreGroup]) -> Iterator[Placed]:
    known = set()
    for _ in range(1 + _CORRECTIONS):
        times = stage_times(ground.nodes, ground.traversal, groups, ground.machine)
        partition = balanced_partition(ground.nodes.graph, ground.traversal, groups, times)
        stages = tuple(part.nodes for part in partition.sub_structures)
        if stages in known:
            return
        known.add(stages)
        placed = place(ground, partition)
        yield placed
        ground = replace(ground, nodes=_scaled(ground.nodes, placed))


def _scaled(nodes: NetworkNodes, placed: Placed) -> NetworkNodes:
    """The nodes with times that sum, by stage, to what the stage took."""
    times = list(nodes.times_ps)
    for number, part in enumerate(placed.partition.sub_structures):
        load = next(load for load in placed.timed.report.groups if load.group == number)
        factor = load.own_ps / max(1.0, placed.predicted_ps[number])
        for node in part.nodes:
            times[node] = round(times[node] * factor)
    return replace(nodes, times_ps=tuple(times))
