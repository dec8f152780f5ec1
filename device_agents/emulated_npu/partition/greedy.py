"""The partition by split score (S5.5, S5.6): sub-structures are mapped to the groups in their order.

A group is also closed before its nodes exceed its capability. If the network does not fit the groups that way,
`partition_by_score` searches a threshold with which it fits, and `partition_by_score_adding_groups` adds groups. The
events of the partition list these changes and their reasons.

`partition_by_score_sharing_groups` makes more sub-structures than groups (figure 1 of the source). Its walk sizes every
sub-structure for the group that it is planned for. Consecutive sub-structures are then assigned to the groups, in their
order, such that the largest score of a group is smallest. A group runs its sub-structures one after the other, and its
storage holds all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from device_agents.emulated_npu.emulator_errors import DoesNotFit, InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric, name_cores
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal
from device_agents.emulated_npu.partition.result import CorePartition, check_demand
from device_agents.emulated_npu.partition.split_score import SplitRule, Splitting, TraversalSegment


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
        elif not _fits(splitting.walk(present, threshold), present):
            threshold = None
        if threshold is not None:
            return _partition(splitting, present, threshold, [*events, *searched])
        limit = math.inf if rule.threshold is None else rule.threshold
        stretches = splitting.walk(present, limit)
        if len(stretches) <= len(present) or any(stretch.lack for stretch in stretches[: len(groups)]):
            _refuse(splitting, present, limit)
        added = _added_group(splitting, present, len(groups[-1].cores), stretches[len(present)].start, fabric)
        events.append(
            f"group {len(present)} added on chip {added.chip} (cores {name_cores(added)}): "
            f"{_why(splitting, present, stretches)}"
        )
        present.append(added)


def _fitting_threshold(splitting: Splitting, groups: Sequence[CoreGroup]) -> tuple[float | None, list[str]]:
    """Return the threshold to use, None if none fits, and the events that explain it."""
    given = splitting.rule.threshold
    if given is not None:
        stretches = splitting.walk(groups, given)
        if _fits(stretches, groups):
            return given, []
    smallest = smallest_threshold(splitting, groups)
    if smallest is None:
        return None, []
    if given is None:
        threshold = _first_fitting(splitting, groups, smallest)
        if threshold is None:
            return None, []
        return threshold, [
            f"threshold found by search: {threshold:.6g} is the smallest with which "
            f"{_groups(len(groups))} hold{'s' if len(groups) == 1 else ''} the network"
        ]
    why = _why(splitting, groups, stretches)
    higher = _first_fitting(splitting, groups, max(smallest, given))
    if higher is not None:
        return higher, [f"threshold raised from {given:.6g} to {higher:.6g}: {why}"]
    lower, last = _first_fitting(splitting, groups, smallest), None
    while lower is not None and lower < given:
        last = lower
        lower = _next_threshold(splitting.walk(groups, lower))
        lower = None if lower is None else _first_fitting(splitting, groups, lower)
    return last, [] if last is None else [f"threshold lowered from {given:.6g} to {last:.6g}: {why}"]


def smallest_threshold(splitting: Splitting, groups: Sequence[CoreGroup]) -> float | None:
    """Return the smallest threshold with no more sub-structures than groups; None if even infinity gives more.

    The bisection moves to the next rejected or accepted score. Only these scores matter, so the result is exact.
    """
    stretches = splitting.walk(groups, math.inf)
    if len(stretches) > len(groups):
        return None
    low, high = 0.0, _tightened(splitting, groups, stretches)
    while low < high:
        middle = low + (high - low) / 2
        middle = middle if middle < high else low
        stretches = splitting.walk(groups, middle)
        if len(stretches) <= len(groups):
            high = _tightened(splitting, groups, stretches)
        else:
            # With more sub-structures than an infinite threshold yields, the threshold has closed one.
            low = _next_threshold(stretches) or high
    return high


def _tightened(splitting: Splitting, groups: Sequence[CoreGroup], stretches: Sequence[TraversalSegment]) -> float:
    """Return the smallest threshold with the same sub-structures; any threshold accepts one of a single node."""
    longer = [(one, group) for one, group in zip(stretches, groups, strict=False) if one.stop - one.start > 1]
    return max((splitting.score(one.start, one.stop, group) for one, group in longer), default=0.0)


def _next_threshold(stretches: Sequence[TraversalSegment]) -> float | None:
    """Return the smallest higher threshold with other sub-structures."""
    return min((stretch.rejected for stretch in stretches if stretch.rejected is not None), default=None)


def _first_fitting(splitting: Splitting, groups: Sequence[CoreGroup], threshold: float) -> float | None:
    """Return the smallest threshold, from a given one up, with which the network fits the groups.

    Every step of the search moves the end of a sub-structure forward, so there are at most groups x nodes steps.
    """
    found: float | None = threshold
    while found is not None:
        stretches = splitting.walk(groups, found)
        if _fits(stretches, groups):
            return found
        found = _next_threshold(stretches)
    return None


def _fits(stretches: Sequence[TraversalSegment], groups: Sequence[CoreGroup]) -> bool:
    return len(stretches) <= len(groups) and not any(stretch.lack for stretch in stretches)


def _why(splitting: Splitting, groups: Sequence[CoreGroup], stretches: Sequence[TraversalSegment]) -> str:
    """Return why these sub-structures do not fit the groups."""
    reasons = []
    if len(stretches) > len(groups):
        reasons.append(f"{len(stretches)} sub-structures for {_groups(len(groups))}")
    for index, stretch in enumerate(stretches[: len(groups)]):
        if stretch.lack:
            reasons.append(f"{_name(splitting, stretch.start)} asks group {index} for {stretch.lack}")
        elif stretch.closing in ("storage", "compute"):
            reasons.append(_closed_early(splitting, groups[index], index, stretch))
    return "; ".join(reasons[:4])


def _closed_early(splitting: Splitting, group: CoreGroup, index: int, stretch: TraversalSegment) -> str:
    lack = splitting.lack(stretch.start, stretch.stop + 1, group)
    return f"{_name(splitting, stretch.stop)} would bring group {index} to {lack[1] if lack else stretch.closing}"


def _partition(
    splitting: Splitting, groups: Sequence[CoreGroup], threshold: float, events: Sequence[str]
) -> CorePartition:
    stretches = splitting.walk(groups, threshold)
    parts = [splitting.part(stretch, index, groups[index]) for index, stretch in enumerate(stretches)]
    explained = list(events)
    for index, stretch in enumerate(stretches):
        if stretch.closing in ("storage", "compute"):
            why = _closed_early(splitting, groups[index], index, stretch)
            explained.append(f"group {index} closed below the threshold: {why}")
    if len(parts) < len(groups):
        left = len(groups) - len(parts)
        explained.append(f"no nodes are left for the last {'group' if left == 1 else _groups(left)}")
    return CorePartition(
        "score", tuple(groups), tuple(parts), threshold, splitting.steps(groups, stretches), tuple(explained)
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
        f"{_groups(len(groups))} are formed",
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
    stretches = splitting.walk(groups, threshold)
    at = "whatever the threshold" if math.isinf(threshold) else f"with a threshold of {threshold:.6g}"
    raise DoesNotFit(
        f"{_groups(len(groups))} cannot hold the network, {at}",
        _why(splitting, groups, stretches)
        + ("" if splitting.rule.node_limit is None else f"; at most {splitting.rule.node_limit} nodes in each"),
        "form more or larger groups, reorder the groups, or let groups be added",
        memory="core group",
    )


def _groups(count: int) -> str:
    return f"{count} group{'' if count == 1 else 's'}"


def _name(splitting: Splitting, position: int) -> str:
    return f"node {splitting.graph.nodes[splitting.traversal.order[position]].name!r}"


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
    stretches = splitting.walk(planned, threshold)
    if len(stretches) <= len(groups):
        return partition_by_score(graph, traversal, groups, replace(rule, threshold=threshold))
    homes = _homes(splitting, stretches, groups)
    parts = [splitting.part(stretch, home, groups[home]) for home, stretch in zip(homes, stretches, strict=True)]
    steps = tuple(replace(step, group=homes[step.group]) for step in splitting.steps(planned, stretches))
    events.append(f"{len(stretches)} parts share {_groups(len(groups))}")
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


def _homes(splitting: Splitting, stretches: Sequence[TraversalSegment], groups: Sequence[CoreGroup]) -> list[int]:
    """Return the group of every sub-structure; raises DoesNotFit if the groups cannot hold them in their order."""
    ends = [0, *(stretch.stop for stretch in stretches)]
    # reached[end]: the smallest largest score with the groups so far and the sub-structures before `end`.
    reached = [0.0] + [math.inf] * len(stretches)
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
            f"{len(groups)} groups cannot hold {len(stretches)} parts in their order",
            f"all parts together demand {demand:.12g} bytes, the groups hold {held}",
            "Form more or larger groups",
            memory="core group",
            demand_bytes=math.ceil(demand),
        )
    homes: list[int] = []
    last = len(stretches)
    for number in reversed(range(len(groups))):
        first = origins[number][last]
        homes = [number] * (last - first) + homes
        last = first
    return homes


def _spans_legs(splitting: Splitting, start: int, stop: int) -> bool:
    """Return whether positions [start, stop) are of both legs; groups would wait for each other in a circle."""
    leg = splitting.traversal.second_leg
    return leg is not None and start < leg < stop
