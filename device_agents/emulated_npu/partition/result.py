"""The result of a partition by either method: sub-structures, their groups, and the events of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload

Closing = Literal["threshold", "node limit", "storage", "compute", "second leg", "end"]
"""The reason why a sub-structure ends: its next node would exceed the threshold, the node limit or the capability of
the group; the second leg of the traversal begins; or there are no more nodes."""


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

    `groups` holds the given groups and the added ones. Several sub-structures may share a group. `method` defines the
    load: the score per core of the group ("score"), or the predicted time of the stage ("balanced"). Only the score
    sets `threshold` and `steps`. `events` lists the changes that made the network fit, with reasons.
    """

    method: Literal["score", "balanced"]
    groups: tuple[CoreGroup, ...]
    sub_structures: tuple[SubStructure, ...]
    threshold: float | None = None
    steps: tuple[ScoreStep, ...] = ()
    events: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[int, ...]:
        """The groups that have nodes, by index, in the order of their first sub-structures."""
        return tuple(dict.fromkeys(part.group for part in self.sub_structures))

    def parts_of(self, group: int) -> tuple[SubStructure, ...]:
        """Return the sub-structures of a group, in the order in which it runs them."""
        return tuple(part for part in self.sub_structures if part.group == group)

    def nodes_of(self, group: int) -> tuple[int, ...]:
        """Return the nodes of a group, in the order in which it runs them."""
        return tuple(node for part in self.parts_of(group) for node in part.nodes)


def check_demand(graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup]) -> None:
    """Raise `InvalidPartition` for too few or too many groups."""
    if len(groups) == 1 and traversal.second_leg is not None:
        why = "at least 2: the second leg of a traversal from a middle node begins a new sub-structure"
        raise InvalidPartition("1 core groups", why, "form more groups, or start at an input")
    if len(groups) > len(graph.nodes):
        what = f"{len(groups)} core groups for {len(graph.nodes)} nodes"
        why = f"every group executes at least one node: at most {len(graph.nodes)} groups"
        raise InvalidPartition(what, why, "form fewer, larger groups")
