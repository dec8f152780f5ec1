"""Compiles and times partitions of a network on core groups, and balances their stages by measured times (S5.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.compiler.splitting.assignment import group_machines
from device_agents.emulated_npu.compiler.stages import WeightPolicy, compile_system
from device_agents.emulated_npu.emulator_errors import ChipTooSmall, DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.core_groups import assignment_of
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes
from device_agents.emulated_npu.many_cores.system_runs import TimedSystem, time_system
from device_agents.emulated_npu.partition.balanced import (
    ResidentTimes,
    StageTimes,
    StorageLimits,
    balanced_partition,
    group_loads,
)
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import Traversal
from device_agents.emulated_npu.partition.result import CorePartition

_CORRECTIONS = 2
_ATTEMPTS = 8
"""How often a partition that does not fit the memory of its chips is moved before it is refused."""
_PS_PER_MS = 1e9


@dataclass(frozen=True)
class PartitionTask:
    """A network to partition on a machine; one core takes `single_core_ps` for an input.

    `inputs` and `limit_ps` are as in `time_system`. `dynamic_factor` is the DDR that features occupy on one core,
    divided by the size of all inputs of nodes (k_dynamic of S5.4, as observed). `weights` is as in `compile_system`.
    `nodes` should come from a run on the `contended` machine; `of_kinds` has those on cores of other kinds than that of
    the first group, by `Machine.of_core`.
    """

    graph: Graph
    machine: Machine
    options: Options
    nodes: NetworkNodes
    traversal: Traversal
    single_core_ps: int
    inputs: int | None = None
    limit_ps: int | None = None
    dynamic_factor: float = 1.0
    weights: WeightPolicy = "resident"
    of_kinds: Mapping[Machine, NetworkNodes] = field(default_factory=dict)
    _split_times: dict[tuple[int, Machine], list[float]] = field(default_factory=dict, init=False, compare=False)

    def stage_times(self, groups: Sequence[CoreGroup], factors: Sequence[float] | None = None) -> StageTimes:
        """Return predicted stage times on some groups in picoseconds, with the time of each node times its factor.

        On one core a node takes its share of the core's run. On several cores a layer takes the predicted time of its
        best split on the group, or its share of the run on one core if that is less: chains exist only on one core.
        Weights are predicted to stay in SB only on groups of one core. Data cross the end of a stage over the link to
        the next group, within a chip or between chips. Raises DoesNotFit for a layer that fits on a group in no way.
        """
        cores, nodes, order = self.machine.cores, self.nodes, self.traversal.order
        links = (
            cores.link if group.chip == following.chip else cores.chip_link for group, following in pairwise(groups)
        )
        per_byte = (*(PS_PER_S / link.bytes_per_s for link in links), 0.0)
        by = [1.0] * len(nodes.layers) if factors is None else factors

        def ordered(times: Sequence[float]) -> tuple[float, ...]:
            return tuple(times[node] * by[node] for node in order)

        machines = [own[0] for own in group_machines(self.machine, [group.cores for group in groups])]
        own_nodes = [self.of_kinds.get(self.machine.of_core(group.cores[0]), nodes) for group in groups]
        kinds = [(len(group.cores), own) for group, own in zip(groups, machines, strict=True)]
        resident = None
        if self.weights == "resident":
            resident = ResidentTimes(
                tuple(ordered(each.resident_ps) for each in own_nodes),
                tuple(nodes.weight_bytes[node] for node in order),
                tuple(own.sb_bytes if count == 1 and not own.shared_buffer else 0 for count, own in kinds),
            )
        node_times = tuple(ordered(self._times_on(each, *kind)) for each, kind in zip(own_nodes, kinds, strict=True))
        return StageTimes(node_times, nodes.graph.cut_bytes(order), per_byte, resident)

    def _times_on(self, nodes: NetworkNodes, cores: int, machine: Machine) -> Sequence[float]:
        """Return the time of each node on a group; groups of the same kind are predicted once."""
        if cores == 1:
            return nodes.times_ps
        if (cores, machine) not in self._split_times:
            choices = choose_splits(self.graph, [machine] * cores, self.options)
            self._split_times[cores, machine] = [
                min(alone, float(sum(choices[layer].best.predicted_ps for layer in layers)))
                for alone, layers in zip(nodes.times_ps, self.nodes.layers, strict=True)
            ]
        return self._split_times[cores, machine]

    def group_loads(self, partition: CorePartition, times: StageTimes) -> tuple[float, ...]:
        """Return the predicted time of every group, which runs its parts one after the other; 0 without nodes."""
        group_of = [0] * len(self.nodes.layers)
        for part in partition.sub_structures:
            for node in part.nodes:
                group_of[node] = part.group
        return group_loads(self.nodes.graph, self.traversal, times, group_of)


@dataclass(frozen=True)
class TimedPartition:
    """A partition with its timing; `predicted_ps` are the times of all groups as predicted before any run."""

    partition: CorePartition
    predicted_ps: tuple[float, ...]
    timed: TimedSystem

    @property
    def predicted_interval_ps(self) -> float:
        """The predicted time of the slowest group."""
        return max(self.predicted_ps)


def compile_and_time(task: PartitionTask, partition: CorePartition) -> TimedPartition:
    """Compile and time a partition; raises as `compile_system` and `time_system`."""
    assignment = assignment_of(partition, task.nodes)
    system = compile_system(task.graph, task.machine, assignment, task.options, weights=task.weights)
    timed = time_system(system, task.single_core_ps, task.inputs, task.limit_ps)
    return TimedPartition(partition, task.group_loads(partition, task.stage_times(partition.groups)), timed)


def place_by_score(
    task: PartitionTask, groups: Sequence[CoreGroup], partition_on: Callable[[Sequence[CoreGroup]], CorePartition]
) -> TimedPartition:
    """Return the partition that `partition_on` finds for the groups, compiled and timed.

    The demands of nodes are estimates. If the programs do not fit the memory of a chip, its groups hold less, and the
    network is partitioned again. Raises as `compile_and_time` and `partition_on`.
    """
    problems: list[ChipTooSmall] = []
    while len(problems) <= _ATTEMPTS:
        try:
            partition = partition_on(groups)
        except DoesNotFit:
            if not problems:
                raise
            break
        try:
            return compile_and_time(task, partition)
        except ChipTooSmall as error:
            problems.append(error)
            held = tuple(group.held_bytes for group in groups)
            less = _less(groups, held, _demands(StorageLimits(held, task.dynamic_factor), partition), error)
            groups = [_holding(group, held) for group, held in zip(groups, less, strict=True)]
    raise problems[-1]


def balance_stages(task: PartitionTask, groups: Sequence[CoreGroup]) -> TimedPartition:
    """Return the balanced partition, or one with a shorter interval, found with corrected predictions.

    Predictions ignore where chains end in the stages, and the cost of sending. So the times of a stage's nodes are
    scaled to the measured time, and the network is balanced again. The events of the partition report the gain.
    """
    first, *corrected = _rounds(task, groups)
    best = min((first, *corrected), key=lambda placed: placed.timed.report.interval_ps)
    if best is first:
        return first
    intervals_ms = [placed.timed.report.interval_ps / _PS_PER_MS for placed in (first, best)]
    event = "balanced again by what the stages took: {:.4g} ms an input as predicted first, {:.4g} now"
    return replace(best, partition=replace(best.partition, events=(event.format(*intervals_ms),)))


def _widest_limits(task: PartitionTask, groups: Sequence[CoreGroup]) -> StorageLimits:
    """Return what groups can hold at most: all of the memory of their chip, or what their cores are described with."""
    held = (task.machine.ddr.bytes if group.core.external_bytes else group.held_bytes for group in groups)
    return StorageLimits(tuple(held), task.dynamic_factor)


def _rounds(task: PartitionTask, groups: Sequence[CoreGroup]) -> Iterator[TimedPartition]:
    """Yield different partitions: first by prediction, then corrected by the run of the one before.

    At first each group may hold all of its chip's memory; groups of a chip that does not hold them all hold less.
    """
    known: set[tuple[tuple[int, ...], ...]] = set()
    factors = [1.0] * len(task.nodes.layers)
    limits = _widest_limits(task, groups)
    too_small: ChipTooSmall | None = None
    corrections = attempts = 0
    while corrections <= _CORRECTIONS and attempts <= _ATTEMPTS:
        times = task.stage_times(groups, factors)
        try:
            partition = balanced_partition(task.nodes.graph, task.traversal, groups, times, limits)
        except DoesNotFit:
            if corrections:
                return
            if too_small is None:
                raise
            break
        stages = tuple(map(partition.nodes_of, partition.used))
        if stages in known:
            break
        known.add(stages)
        try:
            placed = compile_and_time(task, partition)
        except ChipTooSmall as error:
            too_small, attempts = error, attempts + 1
            demands = _demands(limits, partition)
            limits = replace(limits, held_bytes=tuple(_less(groups, limits.held_bytes, demands, error)))
            continue
        yield placed
        corrections += 1
        factors = _corrected(factors, placed, task.group_loads(partition, times))
    if too_small is not None and not corrections:
        raise too_small


def _demands(limits: StorageLimits, partition: CorePartition) -> list[int]:
    """Return the storage that the nodes of each group demand."""
    return [
        sum(limits.demand_bytes(part.workload) for part in partition.parts_of(group))
        for group in range(len(partition.groups))
    ]


def _holding(group: CoreGroup, held_bytes: int) -> CoreGroup:
    return replace(group, core=replace(group.core, external_bytes=max(1, held_bytes // len(group.cores))))


def _less(
    groups: Sequence[CoreGroup], held_bytes: Sequence[int], demands: Sequence[int], error: ChipTooSmall
) -> Iterator[int]:
    """Yield what each group may hold now; the demands on the chip that is too small shrink in proportion."""
    for group, held, demand in zip(groups, held_bytes, demands, strict=True):
        yield max(0, demand * error.limit_bytes // error.demand_bytes - 1) if group.chip == error.chip else held


def _corrected(factors: Sequence[float], placed: TimedPartition, expected_ps: Sequence[float]) -> list[float]:
    """Return factors with which the times of the nodes of each group sum to its measured time."""
    found = list(factors)
    for number, group in enumerate(placed.partition.used):
        factor = placed.timed.report.groups[number].own_ps / max(1.0, expected_ps[group])
        for node in placed.partition.nodes_of(group):
            found[node] *= factor
    return found
