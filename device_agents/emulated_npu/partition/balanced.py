"""The balanced partition: contiguous stages of the traversal whose largest time is minimal, by dynamic programming.

The split score is greedy and does not use times. The slowest stage bounds the throughput of the pipeline (S5.7), so
this partition minimises its time; among equal partitions it takes the smallest sum of squared times, which balances the
other stages. No stage demands more storage than its group has (S5.6).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload
from device_agents.emulated_npu.partition.result import CorePartition, SubStructure, check_demand

# [start, stop] -> time of the stage, infinite if it is not allowed.
_Table = NDArray[np.float64]


@dataclass(frozen=True)
class ResidentTimes:
    """Node times of stages whose weights stay in the group from input to input.

    `node_times` is as in `StageTimes`. The weights of a stage stay if their sum, `weight_bytes[position]`, is at most
    `room_bytes[group]`.
    """

    node_times: tuple[tuple[float, ...], ...]
    weight_bytes: tuple[int, ...]
    room_bytes: tuple[int, ...]


@dataclass(frozen=True)
class StageTimes:
    """Stage times, from the times of nodes and the bytes that cross the end of a stage.

    `node_times[group][position]` is the time on a group of the node at a position of the traversal. The stage that ends
    before a position sends `cut_bytes[position]` (`NodeGraph.cut_bytes`) at `time_per_byte[group]`. Stages whose
    weights stay in the group take the times of `resident`, if there are any.
    """

    node_times: tuple[tuple[float, ...], ...]
    cut_bytes: tuple[int, ...]
    time_per_byte: tuple[float, ...]
    resident: ResidentTimes | None = None

    def __call__(self, start: int, stop: int, group: int) -> float:
        """Return the time of positions [start, stop) on a group."""
        return float(self.table(group)[start, stop])

    def table(self, group: int) -> _Table:
        """Return the time from every start to every stop on a group."""
        times = _sums(self.node_times[group])
        if self.resident is not None:
            staying = _sums(self.resident.weight_bytes) <= self.resident.room_bytes[group]
            times = np.where(staying, np.minimum(times, _sums(self.resident.node_times[group])), times)
        sent: _Table = np.asarray(self.cut_bytes, dtype=np.float64) * self.time_per_byte[group]
        return times + sent[None, :]


def _sums(values: Sequence[float]) -> _Table:
    """Return the sum of the values from every start to every stop."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    found: _Table = sums[None, :] - sums[:, None]
    return found


@dataclass(frozen=True)
class StorageLimits:
    """The most that each group may hold, and the bytes that a byte of inputs occupies on average (k_dynamic)."""

    held_bytes: tuple[int, ...]
    dynamic_factor: float = 1.0

    @classmethod
    def of(cls, groups: Sequence[CoreGroup]) -> StorageLimits:
        """Return what the groups hold (S5.6), with data that occupy their size."""
        return cls(tuple(group.held_bytes for group in groups))

    def demand_bytes(self, workload: Workload) -> int:
        """Return the bytes that a workload occupies."""
        return math.ceil(workload.static_bytes + self.dynamic_factor * workload.dynamic_in_bytes)


def balanced_partition(
    graph: NodeGraph,
    traversal: Traversal,
    groups: Sequence[CoreGroup],
    cost: StageTimes,
    limits: StorageLimits | None = None,
) -> CorePartition:
    """Return the partition on the given groups, in their order, with the smallest possible largest stage time.

    Every group gets at least one node, and no more than it holds: `limits`, or what `StorageLimits.of` returns. The
    search takes groups x nodes^2 steps. Raises `InvalidPartition` for more groups than nodes, `DoesNotFit`, naming
    nodes, demand and limit, if no stages are allowed.
    """
    check_demand(graph, traversal, groups)
    stages = _Stages(graph, traversal, groups, cost, limits or StorageLimits.of(groups))
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
    limits: StorageLimits

    @cached_property
    def stored_bytes(self) -> NDArray[np.float64]:
        """The storage demand of the nodes before each position."""
        demands = [self.limits.demand_bytes(self.graph.nodes[node].workload) for node in self.traversal.order]
        return np.asarray([0, *itertools.accumulate(demands)], dtype=np.float64)

    def check_held(self, start: int, stop: int, group: int, what: str) -> None:
        """Raise `DoesNotFit`, with `what` about the nodes, if the group does not hold positions [start, stop)."""
        demand, limit = int(self.stored_bytes[stop] - self.stored_bytes[start]), self.limits.held_bytes[group]
        if demand <= limit:
            return
        first, last = (repr(self.graph.nodes[self.traversal.order[at]].name) for at in (start, stop - 1))
        cores = len(self.groups[group].cores)
        raise DoesNotFit(
            what.format(f"node {first}" if first == last else f"nodes {first} to {last}"),
            f"the demand is {demand} bytes of storage, the limit is {limit} ({cores} core{'s' if cores > 1 else ''})",
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
        possible &= self.stored_bytes[stops] - self.stored_bytes[starts] <= self.limits.held_bytes[group]
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
    largest = max(range(len(groups)), key=stages.limits.held_bytes.__getitem__)
    for position in range(nodes):
        stages.check_held(position, position + 1, largest, "no core group holds {}")
    reached = np.arange(nodes + 1) == 0
    for number in range(len(groups)):
        beyond = np.isfinite(stages.table(number)[reached]).any(axis=0)
        if not beyond.any():
            start = int(np.flatnonzero(reached)[-1])
            stop = nodes if number == len(groups) - 1 else start + 1
            stages.check_held(start, stop, number, f"group {number} does not hold {{}}, and no group before it can")
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


def group_loads(graph: NodeGraph, traversal: Traversal, cost: StageTimes, group_of: Sequence[int]) -> tuple[float, ...]:
    """Return the time of each group that runs its nodes one after the other; `group_of` is by node.

    A group sends every output to each other group that reads it.
    """
    groups = len(cost.node_times)
    times, resident, weights, sent = ([0.0] * groups for _ in range(4))
    for position, node in enumerate(traversal.order):
        group = group_of[node]
        times[group] += cost.node_times[group][position]
        if cost.resident is not None:
            resident[group] += cost.resident.node_times[group][position]
            weights[group] += cost.resident.weight_bytes[position]
        readers = {group_of[successor] for successor in graph.successors[node]} - {group}
        sent[group] += len(readers) * graph.nodes[node].workload.dynamic_out_bytes * cost.time_per_byte[group]
    if cost.resident is not None:
        stays = [size <= room for size, room in zip(weights, cost.resident.room_bytes, strict=True)]
        times = [min(pair) if stay else pair[0] for *pair, stay in zip(times, resident, stays, strict=True)]
    return tuple(map(sum, zip(times, sent, strict=True)))
