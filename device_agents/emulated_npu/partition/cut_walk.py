"""One walk of the split score over the nodes at a given threshold (S5.5): where each sub-structure ends, and why.

A later start or a higher threshold never ends a sub-structure earlier, because neither score nor demand decreases when
nodes are added. So bisection finds the end of a sub-structure, and the number of sub-structures never increases with
the threshold, whatever the sizes of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Workload
from device_agents.emulated_npu.partition.result import Closing, ScoreStep
from device_agents.emulated_npu.partition.score import SplitScore
from device_agents.emulated_npu.partition.traversal import Traversal


@dataclass(frozen=True)
class SplitRule:
    """The rule that closes a sub-structure: its score would exceed `threshold`, or its size `node_limit`.

    Without a threshold, the partition searches the smallest one with which the sub-structures fit the groups; without a
    limit, a sub-structure may have any number of nodes. `period_s` is the time between inputs; without it multiply-adds
    per second are not limited. A byte of inputs occupies `external_factor` bytes off the chip, if groups have a memory
    there; on the chip the factors of the score apply. Raises `InvalidPartition` for values out of range.
    """

    score: SplitScore
    threshold: float | None = None
    node_limit: int | None = None
    period_s: float | None = None
    external_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            why = "it must be finite and at least 0, because no score is negative"
            raise InvalidPartition(f"a split threshold of {self.threshold}", why)
        if self.node_limit is not None and self.node_limit < 1:
            raise InvalidPartition(f"a limit of {self.node_limit} nodes in a group", "the limit is at least 1")
        if self.period_s is not None and not 0 < self.period_s < math.inf:
            raise InvalidPartition(f"a period of {self.period_s} s", "a period is above 0 and finite")


@dataclass(frozen=True)
class TraversalSegment:
    """Positions [start, stop) of the traversal on a group, and why it ends.

    `rejected` is the score with the next node, if only the threshold kept it out. `lack` is what the group lacks if it
    cannot hold even this single node.
    """

    start: int
    stop: int
    closing: Closing
    rejected: float | None
    lack: str


class Splitting:
    """The walks over one traversal of one network under one rule."""

    def __init__(self, graph: NodeGraph, traversal: Traversal, rule: SplitRule) -> None:
        self.graph, self.traversal, self.rule = graph, traversal, rule
        sums = [Workload()]
        for node in traversal.order:
            sums.append(sums[-1] + graph.nodes[node].workload)
        self._sums = sums

    def workload(self, start: int, stop: int) -> Workload:
        """Return the sum over positions [start, stop)."""
        return self._sums[stop] - self._sums[start]

    def score(self, start: int, stop: int, group: CoreGroup) -> float:
        """Return the score of positions [start, stop) per core of the group."""
        return self.rule.score.score(self.workload(start, stop), self._sums[-1], group)

    def lack(self, start: int, stop: int, group: CoreGroup) -> tuple[Closing, str] | None:
        """Return what the group lacks to hold positions [start, stop) (S5.6); None if it holds them."""
        workload = self.workload(start, stop)
        occupied = self.demand_bytes(workload, group)
        if occupied > group.held_bytes:
            return "storage", group.storage_limit(occupied)
        period = self.rule.period_s
        if period is not None and workload.compute_macs > group.macs_per_s * period:
            cores = f"{len(group.cores)} core{'s' if len(group.cores) > 1 else ''}"
            limit = f"the limit is {group.macs_per_s * period:.6g} ({cores})"
            return "compute", f"{workload.compute_macs} multiply-adds in {period:g} s, {limit}"
        return None

    def demand_bytes(self, workload: Workload, group: CoreGroup) -> float:
        """Return the bytes that a workload occupies where a group holds its data."""
        if group.core.external_bytes:
            return workload.static_bytes + self.rule.external_factor * workload.dynamic_in_bytes
        return self.rule.score.occupied_bytes(workload)

    def walk(self, groups: Sequence[CoreGroup], threshold: float) -> list[TraversalSegment]:
        """Return the sub-structures at a threshold, one per group; after the last group, on more groups like it."""
        stretches: list[TraversalSegment] = []
        start = 0
        while start < len(self.traversal.order):
            group = groups[min(len(stretches), len(groups) - 1)]
            stretches.append(self._stretch(start, group, threshold))
            start = stretches[-1].stop
        return stretches

    def steps(self, groups: Sequence[CoreGroup], stretches: Sequence[TraversalSegment]) -> tuple[ScoreStep, ...]:
        """Return every trial of a node: those taken, and the one that closed each group."""
        found = []
        for index, stretch in enumerate(stretches):
            # A second leg or the end of the nodes closes a group without a trial.
            tried = stretch.stop + (stretch.closing not in ("second leg", "end"))
            for position in range(stretch.start, tried):
                accumulated = self.workload(stretch.start, position + 1)
                score = self.score(stretch.start, position + 1, groups[index])
                closes = stretch.closing if position == stretch.stop else None
                found.append(ScoreStep(self.traversal.order[position], index, accumulated, score, closes))
        return tuple(found)

    def _stretch(self, start: int, group: CoreGroup, threshold: float) -> TraversalSegment:
        bound, closing = self._bound(start)
        good, bad = start + 1, bound + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.score(start, middle, group) > threshold or self.lack(start, middle, group):
                bad = middle
            else:
                good = middle
        lack = self.lack(start, good, group) if good == start + 1 else None
        if good == bound:
            return TraversalSegment(start, good, closing, None, lack[1] if lack else "")
        next_score = self.score(start, good + 1, group)
        full = self.lack(start, good + 1, group)
        if full:  # a higher threshold would change nothing
            closing = "threshold" if next_score > threshold else full[0]
            return TraversalSegment(start, good, closing, None, lack[1] if lack else "")
        return TraversalSegment(start, good, "threshold", next_score, "")

    def _bound(self, start: int) -> tuple[int, Closing]:
        """Return where a sub-structure ends at the latest, whatever its score, and why."""
        bounds: list[tuple[int, Closing]] = [(len(self.traversal.order), "end")]
        if self.traversal.second_leg is not None and start < self.traversal.second_leg:
            bounds.append((self.traversal.second_leg, "second leg"))
        if self.rule.node_limit is not None:
            bounds.append((start + self.rule.node_limit, "node limit"))
        return min(bounds, key=lambda bound: bound[0])
