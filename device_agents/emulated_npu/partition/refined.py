"""Moves nodes of a balanced partition between groups where that shortens the slowest stage.

The balanced partition cuts the traversal. With parallel branches, nodes of other branches lie between two nodes of one
branch, so a better division may give a group several parts of the traversal. No group ever sends to one before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from device_agents.emulated_npu.partition.balanced import StageTimes, StorageLimits
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload
from device_agents.emulated_npu.partition.result import CorePartition, SubStructure
from device_agents.emulated_npu.partition.traversal import Traversal

_MOST_MOVES = 1_000
_Loads = tuple[float, ...]


def group_loads(graph: NodeGraph, traversal: Traversal, cost: StageTimes, group_of: Sequence[int]) -> _Loads:
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


def refined_partition(
    graph: NodeGraph, traversal: Traversal, partition: CorePartition, cost: StageTimes, limits: StorageLimits
) -> CorePartition:
    """Return the partition after moves of single nodes out of the slowest group, each of which makes it faster.

    Among equal maxima the smallest sum of squares counts. Every group keeps a node and holds no more than its limit; no
    group sends to one before it. The nodes of a group that follow each other in the traversal are one part.
    """
    group_of = {node: part.group for part in partition.sub_structures for node in part.nodes}
    if traversal.second_leg is not None:
        return partition
    chosen = [group_of[node] for node in range(len(graph.nodes))]
    loads = group_loads(graph, traversal, cost, chosen)
    for _ in range(_MOST_MOVES):
        best = min(
            ((_rank(group_loads(graph, traversal, cost, each)), each) for each in _moves(graph, chosen, loads, limits)),
            default=None,
        )
        if best is None or best[0] >= _rank(loads):
            break
        chosen = best[1]
        loads = group_loads(graph, traversal, cost, chosen)
    parts = []
    for group, nodes in itertools.groupby(traversal.order, key=chosen.__getitem__):
        own = tuple(nodes)
        workload = sum((graph.nodes[node].workload for node in own), Workload())
        parts.append(SubStructure(own, group, workload, loads[group]))
    return CorePartition(partition.method, partition.groups, tuple(parts), events=partition.events)


def _rank(loads: _Loads) -> tuple[float, float]:
    return max(loads), sum(load * load for load in loads)


def _moves(graph: NodeGraph, group_of: Sequence[int], loads: _Loads, limits: StorageLimits) -> list[list[int]]:
    """Return the divisions in which one node of the slowest group is in another."""
    slowest = loads.index(max(loads))
    members = [node for node, group in enumerate(group_of) if group == slowest]
    if len(members) == 1:
        return []
    stored = [0] * len(loads)
    for node, group in enumerate(group_of):
        stored[group] += limits.demand_bytes(graph.nodes[node].workload)
    found = []
    for node in members:
        first = max((group_of[one] for one in graph.nodes[node].predecessors), default=0)
        last = min((group_of[one] for one in graph.successors[node]), default=len(loads) - 1)
        for group in range(first, last + 1):
            demand = stored[group] + limits.demand_bytes(graph.nodes[node].workload)
            if group != slowest and demand <= limits.held_bytes[group]:
                moved = list(group_of)
                moved[node] = group
                found.append(moved)
    return found
