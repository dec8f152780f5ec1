"""The partition by split score into more sub-structures than core groups (figure 1 of the source).

The walk sizes every sub-structure for the group that it is planned for. Consecutive sub-structures are then assigned to
the groups, in their order, such that the largest score of a group is smallest. A group runs its sub-structures one
after the other, and its storage holds all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.greedy import group_count, partition_by_score
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal
from device_agents.emulated_npu.partition.result import CorePartition, check_demand
from device_agents.emulated_npu.partition.split_score import SplitRule, Splitting, TraversalSegment
from device_agents.emulated_npu.partition.threshold_search import smallest_threshold


def partition_by_score_sharing_groups(
    graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup], rule: SplitRule, most_parts: int | None = None
) -> CorePartition:
    """Return the partition into at most `most_parts` sub-structures, of which several may share a group.

    Without `most_parts` there are as many as groups, or as many more as the node limit of the rule requires. With no
    more sub-structures than groups this is `partition_by_score`. A given threshold is raised only if it yields more
    than `most_parts`. Raises as `partition_by_score`, and `DoesNotFit` if the groups cannot hold the sub-structures.
    """
    check_demand(graph, traversal, groups)
    if most_parts is not None and most_parts < len(groups):
        what = f"at most {most_parts} parts for {len(groups)} groups"
        raise InvalidPartition(what, "every group executes at least one part", "Allow more parts, or form fewer groups")
    splitting = Splitting(graph, traversal, rule)
    needed = len(splitting.walk(groups, math.inf)) if rule.node_limit is not None else 0
    most = max(most_parts or len(groups), needed)
    planned = [groups[part * len(groups) // most] for part in range(most)]
    if most == len(groups):
        return partition_by_score(graph, traversal, groups, rule)
    threshold, events = _threshold(splitting, planned)
    segments = splitting.walk(planned, threshold)
    if len(segments) <= len(groups):
        return partition_by_score(graph, traversal, groups, replace(rule, threshold=threshold))
    homes = _homes(splitting, segments, groups)
    parts = [splitting.part(segment, home, groups[home]) for home, segment in zip(homes, segments, strict=True)]
    steps = tuple(replace(step, group=homes[step.group]) for step in splitting.steps(planned, segments))
    events.append(f"{len(segments)} parts share {group_count(len(groups))}")
    return CorePartition("score", tuple(groups), tuple(parts), threshold, steps, tuple(events))


def _threshold(splitting: Splitting, planned: Sequence[CoreGroup]) -> tuple[float, list[str]]:
    """Return the given threshold, or the smallest with no more sub-structures than planned, and why."""
    given = splitting.rule.threshold
    if given is not None and len(splitting.walk(planned, given)) <= len(planned):
        return given, []
    smallest = smallest_threshold(splitting, planned)
    if smallest is None:
        raise DoesNotFit(
            f"{len(planned)} parts cannot hold the network, whatever the threshold",
            f"{len(splitting.walk(planned, math.inf))} parts are needed for what the groups hold",
            "Allow more parts, or form more or larger groups",
            memory="core group",
        )
    found = f"{smallest:.6g} is the smallest with at most {len(planned)} parts"
    if given is None:
        return smallest, [f"threshold found by search: {found}"]
    return smallest, [f"threshold raised from {given:.6g}: {found}"]


def _homes(splitting: Splitting, segments: Sequence[TraversalSegment], groups: Sequence[CoreGroup]) -> list[int]:
    """Return the group of every sub-structure; raises DoesNotFit if the groups cannot hold them in their order."""
    ends = [0, *(segment.stop for segment in segments)]
    # reached[end]: the smallest largest score with the groups so far and the sub-structures before `end`.
    reached = [0.0] + [math.inf] * len(segments)
    origins: list[list[int]] = []
    for group in groups:
        following, origin = [math.inf] * len(reached), [0] * len(reached)
        for first, last in itertools.combinations(range(len(reached)), 2):
            if reached[first] == math.inf or _spans_legs(splitting, ends[first], ends[last]):
                continue
            if splitting.lack(ends[first], ends[last], group):
                continue
            largest = max(reached[first], splitting.score(ends[first], ends[last], group))
            if largest < following[last]:
                following[last], origin[last] = largest, first
        reached = following
        origins.append(origin)
    if reached[-1] == math.inf:
        demand = splitting.demand_bytes(splitting.workload(0, ends[-1]), groups[0])
        held = sum(group.held_bytes for group in groups)
        raise DoesNotFit(
            f"{len(groups)} groups cannot hold {len(segments)} parts in their order",
            f"all parts together demand {demand:.12g} bytes, the groups hold {held}",
            "Form more or larger groups",
            memory="core group",
            demand_bytes=math.ceil(demand),
        )
    homes: list[int] = []
    last = len(segments)
    for number in reversed(range(len(groups))):
        first = origins[number][last]
        homes = [number] * (last - first) + homes
        last = first
    return homes


def _spans_legs(splitting: Splitting, start: int, stop: int) -> bool:
    """Return whether positions [start, stop) are of both legs; groups would wait for each other in a circle."""
    leg = splitting.traversal.second_leg
    return leg is not None and start < leg < stop
