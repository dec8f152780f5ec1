"""One walk of the split score over the nodes at a given threshold (S5.5): where each sub-structure ends, and why.

A later start or a higher threshold never ends a group's nodes earlier, because neither score nor demand falls when
nodes are added. So the end of a sub-structure is found by bisection, and the number of sub-structures only falls as
the threshold rises, with groups of any sizes.
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
    """When nodes become a sub-structure: the score exceeds `threshold`, or their number `node_limit`.

    Without a threshold the smallest is searched with which the sub-structures just fill the groups; without a limit a
    sub-structure may have any number of nodes. `period_s` is the time within which an input has to follow the one
    before: the demand of multiply-adds per second counts only where it is given. Raises `InvalidPartition`.
    """

    score: SplitScore
    threshold: float | None = None
    node_limit: int | None = None
    period_s: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            why = "at least 0, since no score is negative, and finite"
            raise InvalidPartition(f"a split threshold of {self.threshold}", why)
        if self.node_limit is not None and self.node_limit < 1:
            raise InvalidPartition(f"at most {self.node_limit} nodes in a sub-structure", "the limit is at least 1")
        if self.period_s is not None and not 0 < self.period_s < math.inf:
            raise InvalidPartition(f"an input every {self.period_s} s", "a period is above 0 and finite")


@dataclass(frozen=True)
class Stretch:
    """Positions [start, stop) of the traversal on a group, and why it ends.

    `rejected` is the score that its next node would have had, where nothing but the threshold kept it out;
    `lack` says what the group lacks where it cannot hold even this, a single node.
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
        """The sum over positions [start, stop)."""
        return self._sums[stop] - self._sums[start]

    def score(self, start: int, stop: int, group: CoreGroup) -> float:
        """The score of positions [start, stop) per core of the group."""
        return self.rule.score.score(self.workload(start, stop), self._sums[-1], group)

    def lack(self, start: int, stop: int, group: CoreGroup) -> tuple[Closing, str] | None:
        """What the group lacks to hold positions [start, stop) (S5.6), None where it holds them."""
        workload = self.workload(start, stop)
        occupied = self.rule.score.occupied_bytes(workload)
        if occupied > group.storage_bytes:
            return "storage", group.storage_limit(occupied)
        period = self.rule.period_s
        if period is not None and workload.compute_macs > group.macs_per_s * period:
            cores = f"{len(group.cores)} core{'s' if len(group.cores) > 1 else ''}"
            limit = f"the limit is {group.macs_per_s * period:.6g} ({cores})"
            return "compute", f"{workload.compute_macs} multiply-adds in {period:g} s, {limit}"
        return None

    def walk(self, groups: Sequence[CoreGroup], threshold: float) -> list[Stretch]:
        """The sub-structures at a threshold, each on the next group; beyond the last one, on more like the last."""
        stretches: list[Stretch] = []
        start = 0
        while start < len(self.traversal.order):
            group = groups[min(len(stretches), len(groups) - 1)]
            stretches.append(self._stretch(start, group, threshold))
            start = stretches[-1].stop
        return stretches

    def steps(self, groups: Sequence[CoreGroup], stretches: Sequence[Stretch]) -> tuple[ScoreStep, ...]:
        """Every node as it was tried: those taken, and the one that closed the group."""
        found = []
        for index, stretch in enumerate(stretches):
            # A node is tried in the group and refused; a second leg or the end of the nodes tries none.
            tried = stretch.stop + (stretch.closing not in ("second leg", "end"))
            for position in range(stretch.start, tried):
                accumulated = self.workload(stretch.start, position + 1)
                score = self.score(stretch.start, position + 1, groups[index])
                closes = stretch.closing if position == stretch.stop else None
                found.append(ScoreStep(self.traversal.order[position], index, accumulated, score, closes))
        return tuple(found)

    def _stretch(self, start: int, group: CoreGroup, threshold: float) -> Stretch:
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
            return Stretch(start, good, closing, None, lack[1] if lack else "")
        next_score = self.score(start, good + 1, group)
        full = self.lack(start, good + 1, group)
        if full:  # a higher threshold would change nothing
            return Stretch(
                start, good, "threshold" if next_score > threshold else full[0], None, lack[1] if lack else ""
            )
        return Stretch(start, good, "threshold", next_score, "")

    def _bound(self, start: int) -> tuple[int, Closing]:
        """Where a sub-structure ends at the latest, whatever its score."""
        bounds: list[tuple[int, Closing]] = [(len(self.traversal.order), "end")]
        if self.traversal.second_leg is not None and start < self.traversal.second_leg:
            bounds.append((self.traversal.second_leg, "second leg"))
        if self.rule.node_limit is not None:
            bounds.append((start + self.rule.node_limit, "node limit"))
        return min(bounds, key=lambda bound: bound[0])
