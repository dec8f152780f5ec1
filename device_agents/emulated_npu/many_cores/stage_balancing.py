"""A network on core groups: by score as it is, or balanced and corrected by what its stages turn out to take (S5.7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.pipeline import compile_system
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.core_groups import assignment_of, stage_times
from device_agents.emulated_npu.many_cores.network_nodes import NetworkNodes
from device_agents.emulated_npu.many_cores.pipeline_timing import TimedSystem, time_system
from device_agents.emulated_npu.partition.balanced import balanced_partition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.traversal import Traversal

_CORRECTIONS = 2
_PS_PER_MS = 1e9


@dataclass(frozen=True)
class PartitionTask:
    """What partitions of a network on a machine are made from; one core takes `single_core_ps` for an input.

    `inputs` and `limit_ps` as in `time_system`.
    """

    graph: Graph
    machine: Machine
    options: Options
    nodes: NetworkNodes
    traversal: Traversal
    single_core_ps: int
    inputs: int | None = None
    limit_ps: int | None = None


@dataclass(frozen=True)
class TimedPartition:
    """A partition as it runs; `predicted_ps` are the times of its stages as they were expected before any run."""

    partition: CorePartition
    predicted_ps: tuple[float, ...]
    timed: TimedSystem


def compile_and_time(ground: PartitionTask, partition: CorePartition) -> TimedPartition:
    """Compiles and times a partition; raises as `compile_system` and `time_system`."""
    system = compile_system(ground.graph, ground.machine, assignment_of(partition, ground.nodes), ground.options)
    timed = time_system(system, ground.single_core_ps, ground.inputs, ground.limit_ps)
    predicted = partition.loads_by(stage_times(ground.nodes, ground.traversal, partition.groups, ground.machine))
    return TimedPartition(partition, predicted, timed)


def balance_stages(ground: PartitionTask, groups: Sequence[CoreGroup]) -> TimedPartition:
    """The balanced partition, or one with a shorter interval that corrected predictions lead to.

    Shares of one core's run know nothing of where chains end in the stages, of sending, and of what cores of a group
    save: so the times of a stage's nodes are scaled to what it took, and the network is balanced again. The events of
    the partition tell what that gained.
    """
    first, *corrected = _rounds(ground, groups)
    best = min((first, *corrected), key=lambda placed: placed.timed.report.interval_ps)
    if best is first:
        return first
    intervals_ms = [placed.timed.report.interval_ps / _PS_PER_MS for placed in (first, best)]
    event = "balanced again by what the stages took: {:.4g} ms an input as predicted first, {:.4g} now"
    return replace(best, partition=replace(best.partition, events=(event.format(*intervals_ms),)))


def _rounds(ground: PartitionTask, groups: Sequence[CoreGroup]) -> Iterator[TimedPartition]:
    """Partitions that differ: by prediction, and corrected by the run of the one before."""
    known = set()
    nodes = ground.nodes
    for _ in range(1 + _CORRECTIONS):
        times = stage_times(nodes, ground.traversal, groups, ground.machine)
        partition = balanced_partition(nodes.graph, ground.traversal, groups, times)
        stages = tuple(part.nodes for part in partition.sub_structures)
        if stages in known:
            return
        known.add(stages)
        placed = compile_and_time(ground, partition)
        yield placed
        nodes = _scaled(nodes, placed, partition.loads_by(times))


def _scaled(nodes: NetworkNodes, placed: TimedPartition, expected_ps: Sequence[float]) -> NetworkNodes:
    """The nodes with times that sum, by stage, to what the stage took instead of what was expected."""
    times = list(nodes.times_ps)
    for number, part in enumerate(placed.partition.sub_structures):
        factor = placed.timed.report.groups[number].own_ps / max(1.0, expected_ps[number])
        for node in part.nodes:
            times[node] = round(times[node] * factor)
    return replace(nodes, times_ps=tuple(times))
