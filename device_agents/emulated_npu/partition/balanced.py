"""The balanced partition: contiguous stages of the traversal whose largest time is minimal, by dynamic programming.

The split score is greedy and does not use times. The slowest stage bounds the throughput of the pipeline (S5.7), so
this partition minimises its time; among equal partitions it takes the smallest sum of squared times, which balances the
other stages. No stage demands more storage than its group has (S5.6).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload
from device_agents.emulated_npu.partition.result import CorePartition, SubStructure, check_demand
from device_agents.emulated_npu.partition.traversal import Traversal

# [start, stop] -> time of the stage, infinite if it is not allowed.
_Table = NDArray[np.float64]


@dataclass(frozen=True)
class StageTimes:
    """Stage times, from the times of nodes and the bytes that cross the end of a stage.

    `node_times[group][position]` is the time on a group of the node at a position of the traversal. The stage that ends
    before a position sends `cut_bytes[position]` (`NodeGraph.cut_bytes`) at `time_per_byte[group]`. Raises
    `InvalidPartition` if lengths do not match, or a number is negative or not finite.
    """

    node_times: tuple[tuple[float, ...], ...]
    cut_bytes: tuple[int, ...]
    time_per_byte: tuple[float, ...]

    def __post_init__(self) -> None:
        for group, times in enumerate(self.node_times):
            if len(times) + 1 != len(self.cut_bytes):
                what = f"{len(times)} node times on group {group} for {len(self.cut_bytes)} cuts"
                raise InvalidPartition(what, "there must be one cut more than nodes")
        if len(self.time_per_byte) != len(self.node_times):
            what = f"times per byte of {len(self.time_per_byte)} groups"
            raise InvalidPartition(what, f"there are {len(self.node_times)} groups")
        for value in (*(time for times in self.node_times for time in times), *self.cut_bytes, *self.time_per_byte):
            if not 0 <= value < float("inf"):
                raise InvalidPartition(f"a stage time contains {value}", "times and bytes are at least 0 and finite")

    def __call__(self, start: int, stop: int, group: int) -> float:
        """Return the time of positions [start, stop) on a group."""
        return sum(self.node_times[group][start:stop]) + self.cut_bytes[stop] * self.time_per_byte[group]

    def table(self, group: int) -> _Table:
        """Return the time from every start to every stop on a group."""
        sums = np.concatenate([[0.0], np.cumsum(self.node_times[group])])
        sent = np.asarray(self.cut_bytes, dtype=np.float64) * self.time_per_byte[group]
        times: _Table = sums[None, :] - sums[:, None] + sent[None, :]
        return times

    def loads(self, partition: CorePartition) -> tuple[float, ...]:
        """Return the time of each sub-structure of a partition by either method."""
        ends = itertools.accumulate(len(part.nodes) for part in partition.sub_structures)
        spans = itertools.pairwise((0, *ends))
        return tuple(self(*span, part.group) for span, part in zip(spans, partition.sub_structures, strict=True))


def balanced_partition(
    graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup], cost: StageTimes
) -> CorePartition:
    """Return the partition on the given groups, in their order, with the smallest possible largest stage time.

    Every group gets at least one node, and no more inputs and static storage than it holds (the demand of the split
    score with factors of 1). The search takes groups x nodes^2 steps. Raises `InvalidPartition` for more groups than
    nodes, `DoesNotFit`, naming nodes, demand and limit, if no stages are allowed.
    """
    check_demand(graph, traversal, groups)
    if len(cost.node_times) != len(groups):
        raise InvalidPartition(f"node times on {len(cost.node_times)} groups", f"there are {len(groups)} groups")
    stages = _Stages(graph, traversal, groups, cost)
    largest, _ = _best(len(groups), stages.table, np.maximum)
    if np.isinf(largest):
        _refuse(stages)
    _, cuts = _best(len(groups), lambda group: _squares(stages.table(group), largest), np.add)
    parts = []
    for group, (start, stop) in enumerate(itertools.pairwise(cuts)):
        nodes = traversal.order[start:stop]
        workload = sum((graph.nodes[node].workload for node in nodes), Workload())
        parts.append(SubStructure(nodes, group, workload, float(cost(start, stop, group))))
    return CorePartition("balanced", tuple(groups), tuple(parts))


@dataclass(frozen=True)
class _Stages:
    """The allowed stages and their times."""

    graph: NodeGraph
    traversal: Traversal
    groups: Sequence[CoreGroup]
    cost: StageTimes

    @cached_property
    def stored_bytes(self) -> NDArray[np.float64]:
        """The storage demand of the nodes before each position."""
        demands = [self.graph.nodes[node].workload.stored_bytes for node in self.traversal.order]
        return np.asarray([0, *itertools.accumulate(demands)], dtype=np.float64)

    def check_held(self, start: int, stop: int, group: CoreGroup, what: str) -> None:
        """Raise `DoesNotFit`, with `what` about the nodes, if the group does not hold positions [start, stop)."""
        demand = int(self.stored_bytes[stop] - self.stored_bytes[start])
        if demand <= group.storage_bytes:
            return
        first, last = (repr(self.graph.nodes[self.traversal.order[at]].name) for at in (start, stop - 1))
        raise DoesNotFit(
            what.format(f"node {first}" if first == last else f"nodes {first} to {last}"),
            f"the demand is {group.storage_limit(demand)}",
            "form more or larger groups, or groups of cores that hold more",
            memory="core group",
            demand_bytes=demand,
        )

    def table(self, group: int) -> _Table:
        """Return the time from every start to every stop on a group, infinite for a stage that is not allowed."""
        nodes, behind = len(self.traversal.order), len(self.groups) - 1 - group
        starts, stops = np.ogrid[: nodes + 1, : nodes + 1]
        # Every group before and after needs a node; the first begins at 0 and the last ends the network.
        possible: NDArray[np.bool_] = (starts < stops) & (starts >= group) & (stops <= nodes - behind)
        possible &= self.stored_bytes[stops] - self.stored_bytes[starts] <= self.groups[group].storage_bytes
        if self.traversal.second_leg is not None:
            possible &= (stops <= self.traversal.second_leg) | (starts >= self.traversal.second_leg)
        if group == 0:
            possible &= starts == 0
        if behind == 0:
            possible &= stops == nodes
        return np.where(possible, self.cost.table(group), np.inf)


def _refuse(stages: _Stages) -> NoReturn:
    """Raise for a node that no group holds, for nodes that a group must hold but cannot, or for any other stage."""
    nodes, groups = len(stages.traversal.order), stages.groups
    largest = max(groups, key=lambda group: group.storage_bytes)
    for position in range(nodes):
        stages.check_held(position, position + 1, largest, "no core group holds {}")
    reached = np.arange(nodes + 1) == 0
    for number, group in enumerate(groups):
        beyond = np.isfinite(stages.table(number)[reached]).any(axis=0)
        if not beyond.any():
            start = int(np.flatnonzero(reached)[-1])
            stop = nodes if number == len(groups) - 1 else start + 1
            stages.check_held(start, stop, group, f"group {number} does not hold {{}}, and no group before it can")
            break
        reached = beyond
    raise DoesNotFit(
        f"{nodes} nodes cannot be divided into {len(groups)} stages",
        "every division has a stage that does not fit into its group",
        "form more or larger groups",
        memory="core group",
    )


def _squares(table: _Table, largest: float) -> _Table:
    """Return the squares of the times up to the largest, scaled to 1; larger times are forbidden."""
    return np.where(table <= largest, np.square(np.minimum(table, largest) / (largest or 1.0)), np.inf)


def _best(groups: int, table_of: Callable[[int], _Table], combine: np.ufunc) -> tuple[float, list[int]]:
    """Return the smallest combination of stage values from the first node to the last, and its cuts."""
    reached = table_of(0)[0]
    origins = [np.zeros(len(reached), dtype=np.int64)]
    for group in range(1, groups):
        candidates = combine(reached[:, None], table_of(group))
        origins.append(candidates.argmin(axis=0))
        reached = candidates.min(axis=0)
    cuts = [len(reached) - 1]
    for origin in reversed(origins):
        cuts.append(int(origin[cuts[-1]]))
    return float(reached[-1]), cuts[::-1]
