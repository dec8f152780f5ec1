"""The order in which the nodes of a network are visited: a work pool, step by step (S5.3).

The pool is a queue. A step visits its head and removes it; the successors go to the end. At a merge whose inputs are
all visited or in the queue, the same step visits and removes the queued inputs, appends their other successors, and
appends the merge. A merge with any other input waits outside the pool. An input that entered in the same step does not
count as queued: otherwise the order would depend on the order of the edges. All predecessors of a queued node are
visited, so the order is topological.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from device_agents.emulated_npu.partition.node_graph import NodeGraph


@dataclass(frozen=True)
class TraversalStep:
    """The nodes visited in a step, in order, and the queue after it; the initialisation visits none."""

    visited: tuple[int, ...]
    queue: tuple[int, ...]


@dataclass(frozen=True)
class Traversal:
    """The steps of a visit.

    `second_leg` is the position in `order` at which the visit starts again from the inputs; None if the start reaches
    every node.
    """

    steps: tuple[TraversalStep, ...]
    second_leg: int | None = None

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The nodes as visited."""
        return tuple(node for step in self.steps for node in step.visited)


def traverse(graph: NodeGraph) -> Traversal:
    """Visit all nodes from the inputs of the network, which form the first queue by ascending index."""
    return Traversal(tuple(_leg(graph, range(len(graph.nodes)), graph.sources)))


def traverse_from(graph: NodeGraph, start: int) -> Traversal:
    """Visit from node `start` to the end, then the rest from the inputs (paragraph 106 of the source).

    The first leg visits the start and its dependents (predecessors outside the leg do not count), the second leg the
    rest. If the second leg begins a new sub-structure, the graph of sub-structures has no cycle: all dependents of the
    first leg are in it, so no edge leads from it to the second leg, and within a leg edges follow the order.
    """
    reached = [start]
    found = {start}
    for index in reached:
        fresh = [successor for successor in graph.successors[index] if successor not in found]
        found.update(fresh)
        reached += fresh
    rest = [index for index in range(len(graph.nodes)) if index not in found]
    steps = _leg(graph, reached, (start,))
    if rest:
        steps += _leg(graph, rest, tuple(index for index in graph.sources if index not in found))
    return Traversal(tuple(steps), len(found) if rest else None)


def _leg(graph: NodeGraph, members: Iterable[int], first: tuple[int, ...]) -> list[TraversalStep]:
    inside = set(members)
    inputs = {index: [node for node in graph.nodes[index].predecessors if node in inside] for index in inside}
    entered = set(first)
    visited: set[int] = set()
    queue = dict.fromkeys(first)
    steps = [TraversalStep((), first)]
    while queue:
        waiting = set(queue)
        now = [next(iter(queue))]
        visited.add(now[0])
        del queue[now[0]]
        for node in now:  # grows by the inputs that merges pull in
            for successor in graph.successors[node]:
                if successor in entered or successor not in inside:
                    continue
                wanted = inputs[successor]
                if not all(index in visited or index in waiting for index in wanted):
                    continue
                drawn = [index for index in dict.fromkeys(wanted) if index not in visited]
                for index in drawn:
                    del queue[index]
                visited.update(drawn)
                now += drawn
                entered.add(successor)
                queue[successor] = None
        steps.append(TraversalStep(tuple(now), tuple(queue)))
    return steps
