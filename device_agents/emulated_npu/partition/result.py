"""The result of a partition by either method: sub-structures, their groups, and the events of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup, check_disjoint
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload
from device_agents.emulated_npu.partition.traversal import Traversal

Closing = Literal["threshold", "node limit", "storage", "compute", "second leg", "end"]
"""The reason why a sub-structure ends: its next node would exceed the threshold, the node limit or the capability of
the group; the second leg of the traversal begins; or no node is left."""

StageFunction = Callable[[int, int, int], float]
"""Returns the time of positions [start, stop) of the traversal on the group with an index, in any unit."""


@dataclass(frozen=True)
class ScoreStep:
    """A node is tried in a group: the accumulated workload with it, and its score.

    `closes` is None if the node is taken, else the reason why the group is closed; the next group tries the node again.
    """

    node: int
    group: int
    accumulated: Workload
    score: float
    closes: Closing | None


@dataclass(frozen=True)
class SubStructure:
    """Nodes in traversal order, the index of their group, their total workload and predicted load."""

    nodes: tuple[int, ...]
    group: int
    workload: Workload
    load: float


@dataclass(frozen=True)
class CorePartition:
    """Sub-structures in traversal order; together they are the whole traversal.

    `groups` holds the given groups and the added ones. `method` defines the load: the score per core of the group
    ("score"), or the predicted time of the stage ("balanced"). Only the score sets `threshold` and `steps`. `events`
    lists the changes that made the network fit, with reasons.
    """

    method: Literal["score", "balanced"]
    groups: tuple[CoreGroup, ...]
    sub_structures: tuple[SubStructure, ...]
    threshold: float | None = None
    steps: tuple[ScoreStep, ...] = ()
    events: tuple[str, ...] = ()

    def loads_by(self, cost: StageFunction) -> tuple[float, ...]:
        """Return the load of each sub-structure by another measure, to compare partitions of both methods."""
        loads, start = [], 0
        for part in self.sub_structures:
            loads.append(cost(start, start + len(part.nodes), part.group))
            start += len(part.nodes)
        return tuple(loads)


def check_demand(graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup]) -> None:
    """Raise `InvalidPartition` for a wrong number of groups, a core in two groups, or a traversal of another graph."""
    if sorted(traversal.order) != list(range(len(graph.nodes))):
        raise InvalidPartition(
            f"a traversal of {len(traversal.order)} nodes",
            f"it must visit each of the {len(graph.nodes)} nodes of the network once",
        )
    least = 1 if traversal.second_leg is None else 2
    if len(groups) < least:
        raise InvalidPartition(
            f"{len(groups)} core groups",
            f"at least {least}: "
            + (
                "the network needs one"
                if least == 1
                else "the second leg of a traversal from a middle node begins a new sub-structure"
            ),
            "form more groups" if least == 1 else "form more groups, or start at an input",
        )
    if len(groups) > len(graph.nodes):
        raise InvalidPartition(
            f"{len(groups)} core groups for {len(graph.nodes)} nodes",
            f"every group executes at least one node: at most {len(graph.nodes)} groups",
            "form fewer, larger groups",
        )
    check_disjoint(groups)
