"""The partition by split score (S5.5, S5.6): sub-structures are mapped to the groups in their order.

A walk along the traversal (`split_score`) closes a sub-structure when its score reaches the threshold, or before its
nodes exceed the capability of their group. If the network does not fit the groups that way, `partition_by_score`
searches a threshold with which it fits, and `partition_by_score_adding_groups` adds groups. The events of the partition
list these changes and their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric, name_cores
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal
from device_agents.emulated_npu.partition.result import CorePartition, check_demand
from device_agents.emulated_npu.partition.split_score import SplitRule, Splitting, TraversalSegment
from device_agents.emulated_npu.partition.threshold_search import (
    first_fitting,
    fits,
    next_threshold,
    smallest_threshold,
)


def partition_by_score(
    graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup], rule: SplitRule
) -> CorePartition:
    """Return the partition on the given groups, at another threshold if the given one does not fit.

    That is the smallest fitting threshold above the given one, else the highest fitting one below. Raises `DoesNotFit`,
    naming node, demand and limit, if no threshold fits, and `InvalidPartition` for more groups than nodes.
    """
    check_demand(graph, traversal, groups)
    splitting = Splitting(graph, traversal, rule)
    _check_nodes(splitting, groups)
    threshold, events = _fitting_threshold(splitting, groups)
    if threshold is None:
        _refuse(splitting, groups, math.inf)
    return _partition(splitting, groups, threshold, events)


def partition_by_score_adding_groups(
    graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup], rule: SplitRule, fabric: Fabric
) -> CorePartition:
    """Return the partition on the given groups and as many more as needed; a given threshold is kept.

    A new group lies on the chip of the last one, or on the next chip with room. It is as large as the last given group,
    larger if its first node needs that, smaller if the chip has fewer free cores. All cores, including those of the
    given groups, count with their guaranteed capability (`Fabric.guaranteed`). Raises as `partition_by_score`, and
    `DoesNotFit` if there is no free core for a group.
    """
    check_demand(graph, traversal, groups)
    if fabric.kinds:
        what = "groups cannot be added on a machine with cores of several kinds"
        raise InvalidPartition(what, "a group has cores of one kind", "list the cores of each group")
    groups = [replace(group, core=fabric.guaranteed()) for group in groups]
    splitting = Splitting(graph, traversal, rule)
    _check_nodes(splitting, [CoreGroup(tuple(range(fabric.cores_per_chip)), 0, fabric.guaranteed())])
    present = list(groups)
    events: list[str] = []
    while True:
        threshold, searched = rule.threshold, list[str]()
        if threshold is None:
            threshold, searched = _fitting_threshold(splitting, present)
        elif not fits(splitting.walk(present, threshold), present):
            threshold = None
        if threshold is not None:
            return _partition(splitting, present, threshold, [*events, *searched])
        limit = math.inf if rule.threshold is None else rule.threshold
        segments = splitting.walk(present, limit)
        if len(segments) <= len(present) or any(segment.lack for segment in segments[: len(groups)]):
            _refuse(splitting, present, limit)
        added = _added_group(splitting, present, len(groups[-1].cores), segments[len(present)].start, fabric)
        events.append(
            f"group {len(present)} added on chip {added.chip} (cores {name_cores(added)}): "
            f"{_why(splitting, present, segments)}"
        )
        present.append(added)


def _fitting_threshold(splitting: Splitting, groups: Sequence[CoreGroup]) -> tuple[float | None, list[str]]:
    """Return the threshold to use, None if none fits, and the events that explain it."""
    given = splitting.rule.threshold
    if given is not None:
        segments = splitting.walk(groups, given)
        if fits(segments, groups):
            return given, []
    smallest = smallest_threshold(splitting, groups)
    if smallest is None:
        return None, []
    if given is None:
        threshold = first_fitting(splitting, groups, smallest)
        if threshold is None:
            return None, []
        return threshold, [
            f"threshold found by search: {threshold:.6g} is the smallest with which "
            f"{group_count(len(groups))} hold{'s' if len(groups) == 1 else ''} the network"
        ]
    why = _why(splitting, groups, segments)
    higher = first_fitting(splitting, groups, max(smallest, given))
    if higher is not None:
        return higher, [f"threshold raised from {given:.6g} to {higher:.6g}: {why}"]
    lower, last = first_fitting(splitting, groups, smallest), None
    while lower is not None and lower < given:
        last = lower
        lower = next_threshold(splitting.walk(groups, lower))
        lower = None if lower is None else first_fitting(splitting, groups, lower)
    return last, [] if last is None else [f"threshold lowered from {given:.6g} to {last:.6g}: {why}"]


def _why(splitting: Splitting, groups: Sequence[CoreGroup], segments: Sequence[TraversalSegment]) -> str:
    """Return why these sub-structures do not fit the groups."""
    reasons = []
    if len(segments) > len(groups):
        reasons.append(f"{len(segments)} sub-structures for {group_count(len(groups))}")
    for index, segment in enumerate(segments[: len(groups)]):
        if segment.lack:
            reasons.append(f"{_name(splitting, segment.start)} asks group {index} for {segment.lack}")
        elif segment.closing in ("storage", "compute"):
            reasons.append(_closed_early(splitting, groups[index], index, segment))
    return "; ".join(reasons[:4])


def _closed_early(splitting: Splitting, group: CoreGroup, index: int, segment: TraversalSegment) -> str:
    lack = splitting.lack(segment.start, segment.stop + 1, group)
    return f"{_name(splitting, segment.stop)} would bring group {index} to {lack[1] if lack else segment.closing}"


def _partition(
    splitting: Splitting, groups: Sequence[CoreGroup], threshold: float, events: Sequence[str]
) -> CorePartition:
    segments = splitting.walk(groups, threshold)
    parts = [splitting.part(segment, index, groups[index]) for index, segment in enumerate(segments)]
    explained = list(events)
    for index, segment in enumerate(segments):
        if segment.closing in ("storage", "compute"):
            why = _closed_early(splitting, groups[index], index, segment)
            explained.append(f"group {index} closed below the threshold: {why}")
    if len(parts) < len(groups):
        left = len(groups) - len(parts)
        explained.append(f"no nodes are left for the last {'group' if left == 1 else group_count(left)}")
    return CorePartition(
        "score", tuple(groups), tuple(parts), threshold, splitting.steps(groups, segments), tuple(explained)
    )


def _added_group(
    splitting: Splitting, groups: Sequence[CoreGroup], size: int, position: int, fabric: Fabric
) -> CoreGroup:
    """Return a new group for the node at a position and those after it."""
    taken = {core for group in groups for core in group.cores}
    needed = next(
        cores
        for cores in range(1, fabric.cores_per_chip + 1)
        if not splitting.lack(position, position + 1, CoreGroup(tuple(range(cores)), 0, fabric.guaranteed()))
    )
    for distance in range(fabric.chips):
        chip = (groups[-1].chip + distance) % fabric.chips
        first = chip * fabric.cores_per_chip
        free = [core for core in range(first, first + fabric.cores_per_chip) if core not in taken]
        if len(free) >= needed:
            return CoreGroup(tuple(free[: max(size, needed)]), chip, fabric.guaranteed())
    raise DoesNotFit(
        f"there is no free core group for {_name(splitting, position)} and the nodes after it",
        f"it needs {needed} free cores of one chip; {fabric.cores - len(taken)} of {fabric.cores} cores are free, "
        f"{group_count(len(groups))} are formed",
        "raise the threshold or the node limit, or describe more cores or chips",
        memory="core group",
    )


def _check_nodes(splitting: Splitting, groups: Sequence[CoreGroup]) -> None:
    """Raise `DoesNotFit` for a node that no group holds, with its demand on the largest group."""
    for position in range(len(splitting.graph.nodes)):
        if all(splitting.lack(position, position + 1, group) for group in groups):
            largest = max(groups, key=lambda group: group.held_bytes)
            lack = splitting.lack(position, position + 1, largest)
            raise DoesNotFit(
                f"no core group holds {_name(splitting, position)}",
                f"it demands {lack[1] if lack else 'more than any'}",
                "form groups of more cores, or split the layer over more nodes",
                memory="core group",
                demand_bytes=math.ceil(splitting.demand_bytes(splitting.workload(position, position + 1), largest)),
            )


def _refuse(splitting: Splitting, groups: Sequence[CoreGroup], threshold: float) -> NoReturn:
    """Raise with the reason why the network does not fit; an infinite threshold gives the fewest sub-structures."""
    segments = splitting.walk(groups, threshold)
    at = "whatever the threshold" if math.isinf(threshold) else f"with a threshold of {threshold:.6g}"
    raise DoesNotFit(
        f"{group_count(len(groups))} cannot hold the network, {at}",
        _why(splitting, groups, segments)
        + ("" if splitting.rule.node_limit is None else f"; at most {splitting.rule.node_limit} nodes in each"),
        "form more or larger groups, reorder the groups, or let groups be added",
        memory="core group",
    )


def group_count(count: int) -> str:
    """Return a number of groups in words."""
    return f"{count} group{'' if count == 1 else 's'}"


def _name(splitting: Splitting, position: int) -> str:
    return f"node {splitting.graph.nodes[splitting.traversal.order[position]].name!r}"
