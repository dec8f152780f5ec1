"""The graph of a network's nodes and their demands on the cores (S5.2)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
