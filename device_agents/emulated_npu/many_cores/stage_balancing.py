"""Compiles and times partitions of a network on core groups, and balances their stages by measured times (S5.7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_system
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.core_groups import assignment_of, stage_times
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes
from device_agents.emulated_npu.many_cores.pipeline_timing import TimedSystem, time_system
from device_agents.emulated_npu.partition.balanced import balanced_partition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.traversal import Traversal

_CORRECTIONS = 2
_PS_PER_MS = 1e9


@dataclass(frozen=True)
class PartitionTask:
    """A network to partition on a machine; one core takes `single_core_ps` for an input.

    `inputs` and `limit_ps` are as in `time_system`.
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
    """A partition with its timing; `predicted_ps` are the times of its stages as predicted before any run."""

    partition: CorePartition
    predicted_ps: tuple[float, ...]
    timed: TimedSystem


def compile_and_time(ground: PartitionTask, partition: CorePartition) -> TimedPartition:
    """Compile and time a partition; raises as `compile_system` and `time_system`."""
    system = compile_system(ground.graph, ground.machine, assignment_of(partition, ground.nodes), ground.options)
    timed = time_system(system, ground.single_core_ps, ground.inputs, ground.limit_ps)
    predicted = stage_times(ground.nodes, ground.traversal, partition.groups, ground.machine).loads(partition)
    return TimedPartition(partition, predicted, timed)


def balance_stages(ground: PartitionTask, groups: Sequence[CoreGroup]) -> TimedPartition:
    """Return the balanced partition, or one with a shorter interval, found with corrected predictions.

    Predictions from one core's run ignore where chains end in the stages, the cost of sending, and the gain of several
    cores. So the times of a stage's nodes are scaled to the measured time, and the network is balanced again. The
    events of the partition report the gain.
    """
    first, *corrected = _rounds(ground, groups)
    best = min((first, *corrected), key=lambda placed: placed.timed.report.interval_ps)
    if best is first:
        return first
    intervals_ms = [placed.timed.report.interval_ps / _PS_PER_MS for placed in (first, best)]
    event = "balanced again by what the stages took: {:.4g} ms an input as predicted first, {:.4g} now"
    return replace(best, partition=replace(best.partition, events=(event.format(*intervals_ms),)))


def _rounds(ground: PartitionTask, groups: Sequence[CoreGroup]) -> Iterator[TimedPartition]:
    """Yield different partitions: first by prediction, then corrected by the run of the one before."""
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
        nodes = _scaled(nodes, placed, times.loads(partition))


def _scaled(nodes: NetworkNodes, placed: TimedPartition, expected_ps: Sequence[float]) -> NetworkNodes:
    """Return the nodes with times that sum, for each stage, to its measured time."""
    times = list(nodes.times_ps)
    for number, part in enumerate(placed.partition.sub_structures):
        factor = placed.timed.report.groups[number].own_ps / max(1.0, expected_ps[number])
        for node in part.nodes:
            times[node] = round(times[node] * factor)
    return replace(nodes, times_ps=tuple(times))
