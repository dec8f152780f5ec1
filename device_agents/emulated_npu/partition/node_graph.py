"""The graph of a network's nodes, their demands on the cores (S5.2), and the order in which they are visited (S5.3).

The order comes from a work pool, a queue. A step visits its head and removes it; the successors go to the end. At a
merge whose inputs are all visited or in the queue, the same step visits and removes the queued inputs, appends their
other successors, and appends the merge. A merge with any other input waits outside the pool. An input that entered in
the same step does not count as queued: otherwise the order would depend on the order of the edges. All predecessors of
a queued node are visited, so the order is topological.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from device_agents.emulated_npu.emulator_errors import InvalidPartition


@dataclass(frozen=True)
class Workload:
    """The demand of one or several nodes on the cores for one input of the network (S5.2).

    - `compute_macs`: multiply-adds.
    - `dynamic_in_bytes`, `dynamic_out_bytes`: data that changes from input to input (features read and written).
    - `static_bytes`: data that stays (weights, fixed allocations).
    - `routing_bytes`: data moved between nodes.

    All values include the padding and the precision of the machine.
    """

    compute_macs: int = 0
    dynamic_in_bytes: int = 0
    dynamic_out_bytes: int = 0
    static_bytes: int = 0
    routing_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """Static storage and inputs; an output counts as the input of the next node (paragraph 69 of the source)."""
        return self.static_bytes + self.dynamic_in_bytes

    def __add__(self, other: Workload) -> Workload:
        return Workload(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Workload) -> Workload:
        return Workload(*map(operator.sub, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class WorkloadNode:
    """A node of the network; `predecessors` are the indices of the nodes whose outputs it reads."""

    name: str
    workload: Workload
    predecessors: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeGraph:
    """The nodes of a network by index; an edge leads from each predecessor to its node, and edges form no cycle.

    Raises `InvalidPartition` if there is no node.
    """

    nodes: tuple[WorkloadNode, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidPartition("a network without nodes", "there is nothing to partition")

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that read its output, by ascending index, each once."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for predecessor in set(node.predecessors):
                found[predecessor].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The nodes without predecessors, by ascending index."""
        return tuple(index for index, node in enumerate(self.nodes) if not node.predecessors)

    @cached_property
    def workload(self) -> Workload:
        """The sum over all nodes."""
        return sum((node.workload for node in self.nodes), Workload())

    def cut_bytes(self, order: Sequence[int]) -> tuple[int, ...]:
        """Return, for a cut before each position 0..len(order), the bytes of outputs that are read across it.

        An output counts once per cut, however many nodes read it there. It may cross against the order, as from the
        second leg of a traversal from a middle node to the first.
        """
        position = {node: at for at, node in enumerate(order)}
        changes = [0] * (len(order) + 2)
        for index, successors in enumerate(self.successors):
            ends = [position[index], *(position[node] for node in successors)]
            changes[min(ends) + 1] += self.nodes[index].workload.dynamic_out_bytes
            changes[max(ends) + 1] -= self.nodes[index].workload.dynamic_out_bytes
        crossing = 0
        return tuple(crossing := crossing + change for change in changes[:-1])


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
    rest. If the second leg begins a new sub-structure, the graph of sub-structures has no cycle. The first leg contains
    all its dependents, so no edge leads from it to the second, and within a leg edges follow the order.
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
