"""What a partition is, whichever way it was found: sub-structures, their groups, and how it came to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup, check_disjoint
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload
from device_agents.emulated_npu.partition.traversal import Traversal

Closing = Literal["threshold", "node limit", "storage", "compute", "second leg", "end"]
"""Why a sub-structure ends where it does: its next node would exceed the threshold, the node limit, or what the group
is capable of; the second leg of the traversal begins; or no node is left."""

StageFunction = Callable[[int, int, int], float]
"""The time of a stage: positions [start, stop) of the traversal on the group of an index, in any one unit."""


@dataclass(frozen=True)
class ScoreStep:
    """A node is tried in a group: what would be accumulated there with it, and the score of that.

    `closes` says why the node is not taken and the group closed (it is tried again in the next one), None where
    it is taken.
    """

    node: int
    group: int
    accumulated: Workload
    score: float
    closes: Closing | None


@dataclass(frozen=True)
class SubStructure:
    """Nodes in the order of the traversal, the index of their group, their summed workload and their predicted load."""

    nodes: tuple[int, ...]
    group: int
    workload: Workload
    load: float


@dataclass(frozen=True)
class CorePartition:
    """Sub-structures in the order of the traversal; together they are the traversal.

    `groups` are the given ones and those added. `method` says what a load is: the score per core of the group
    ("score"), or the predicted time of the stage ("balanced"). `threshold` and `steps` belong to the score alone.
    `events` say what had to be changed to make the network fit, and why.
    """

    method: Literal["score", "balanced"]
    groups: tuple[CoreGroup, ...]
    sub_structures: tuple[SubStructure, ...]
    threshold: float | None = None
    steps: tuple[ScoreStep, ...] = ()
    events: tuple[str, ...] = ()

    def loads_by(self, cost: StageFunction) -> tuple[float, ...]:
        """The load of each sub-structure by another measure, so that partitions of both methods can be compared."""
        loads, start = [], 0
        for part in self.sub_structures:
            loads.append(cost(start, start + len(part.nodes), part.group))
            start += len(part.nodes)
        return tuple(loads)


def check_demand(graph: NodeGraph, traversal: Traversal, groups: Sequence[CoreGroup]) -> None:
    """Raise `InvalidPartition` for a wrong number of groups, a core in two, or a traversal of another graph."""
    if sorted(traversal.order) != list(range(len(graph.nodes))):
        raise InvalidPartition(
            f"a traversal of {len(traversal.order)} nodes",
            f"it has to visit each of the {len(graph.nodes)} nodes of the network once",
        )
    least = 1 if traversal.second_leg is None else 2
    if len(groups) < least:
        raise InvalidPartition(
            f"{len(groups)} core groups",
            f"at least {least}: "
            + (
                "the network needs one"
                if least == 1
                else "the second leg of a start in the middle begins a new sub-structure"
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
