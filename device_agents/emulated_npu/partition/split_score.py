"""The split score (S5.4), and one walk of it over the nodes at a given threshold (S5.5).

The score is the demand of the nodes since the last split on an average core of the current group (paragraphs 58 to 64
of the source). Compute and routing share are divided by the cores of the group (73); cores of another kind count by
their speed. The storage utilisation already relates to the storage of all its cores (76). Dynamic storage is the sum of
the nodes' inputs (69), because the output of a node is the input of the next. The routing share uses the same inputs
(73, 78); the absolute score uses the accumulated transfers (69).

The walk finds where each sub-structure ends, and why. A later start or a higher threshold never ends a sub-structure
earlier, because neither score nor demand decreases when nodes are added. So bisection finds the end of a sub-structure,
and the number of sub-structures never increases with the threshold, whatever the sizes of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload
from device_agents.emulated_npu.partition.result import Closing, ScoreStep, SubStructure

# Keeps the score of every workload finite.
_LARGEST_FACTOR = 1e100


class Shares(NamedTuple):
    """Compute share, storage utilisation and routing share; 1 means the whole network or the whole storage."""

    compute: float
    storage: float
    routing: float

    def per_core(self, cores: float) -> Shares:
        """Return the averages per core; the utilisation is an average already."""
        return Shares(self.compute / cores, self.storage, self.routing / cores)


@dataclass(frozen=True)
class ShareScore:
    """compute share * k_c + storage utilisation * k_s + routing share * k_r (paragraphs 72 to 81).

    The three weights lie in [0, 1] and are not all 0. `static_factor` (k_static) and `dynamic_factor` (k_dynamic), the
    occupied space divided by the data size, are positive. Raises `InvalidPartition` for other values.
    """

    compute_weight: float = 1.0
    storage_weight: float = 1.0
    routing_weight: float = 1.0
    static_factor: float = 1.0
    dynamic_factor: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(vars(self))
        for name, factor in (("static_factor", self.static_factor), ("dynamic_factor", self.dynamic_factor)):
            if not 0 < factor <= _LARGEST_FACTOR:
                raise InvalidPartition(f"{name} is {factor}", f"it must be above 0 and at most {_LARGEST_FACTOR:g}")

    def shares(self, accumulated: Workload, network: Workload, group: CoreGroup) -> Shares:
        """Return both shares and the utilisation for the whole group; a share of a total of 0 is 0."""
        return Shares(
            accumulated.compute_macs / (network.compute_macs or 1),
            self.occupied_bytes(accumulated) / group.storage_bytes,
            accumulated.dynamic_in_bytes / (network.dynamic_in_bytes or 1),
        )

    def score(self, accumulated: Workload, network: Workload, group: CoreGroup, /) -> float:
        """Return the weighted sum of the averages per core."""
        compute, storage, routing = self.shares(accumulated, network, group).per_core(group.equal_cores)
        return compute * self.compute_weight + storage * self.storage_weight + routing * self.routing_weight

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Return accumulated static * k_static + accumulated dynamic * k_dynamic."""
        return workload.static_bytes * self.static_factor + workload.dynamic_in_bytes * self.dynamic_factor


@dataclass(frozen=True)
class AbsoluteScore:
    """MACs * k_c1 + dynamic * k_dyn + static * k_stat + routing * k_r (paragraphs 68 to 70), average per core.

    The weights lie in [0, 1] and are not all 0; raises `InvalidPartition` for other values.
    """

    compute_weight: float = 1.0
    dynamic_weight: float = 1.0
    static_weight: float = 1.0
    routing_weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(vars(self))

    def score(self, accumulated: Workload, _network: Workload, group: CoreGroup, /) -> float:
        """Return the weighted sum per core of the group; the size of the network does not matter."""
        return (
            accumulated.compute_macs * self.compute_weight
            + accumulated.dynamic_in_bytes * self.dynamic_weight
            + accumulated.static_bytes * self.static_weight
            + accumulated.routing_bytes * self.routing_weight
        ) / group.equal_cores

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Return the accumulated static and dynamic storage."""
        return float(workload.stored_bytes)


SplitScore = ShareScore | AbsoluteScore
"""A score that never decreases when nodes are added."""


def _check_weights(coefficients: Mapping[str, float]) -> None:
    weights = {name: value for name, value in coefficients.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight <= 1:
            what = f"the {name.removesuffix('_weight')} weight is {weight}"
            raise InvalidPartition(what, "a weight of the split score lies between 0 and 1")
    if not any(weights.values()):
        what = f"all weights are 0: {', '.join(weights)}"
        why = "every score would be 0 and cause no split"
        raise InvalidPartition(what, why, "give at least one weight a value above 0, at most 1")


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

    def part(self, segment: TraversalSegment, index: int, group: CoreGroup) -> SubStructure:
        """Return a segment of the walk as the sub-structure of the group with this index."""
        nodes = self.traversal.order[segment.start : segment.stop]
        load = self.score(segment.start, segment.stop, group)
        return SubStructure(nodes, index, self.workload(segment.start, segment.stop), load)

    def demand_bytes(self, workload: Workload, group: CoreGroup) -> float:
        """Return the bytes that a workload occupies where a group holds its data."""
        if group.core.external_bytes:
            return workload.static_bytes + self.rule.external_factor * workload.dynamic_in_bytes
        return self.rule.score.occupied_bytes(workload)

    def walk(self, groups: Sequence[CoreGroup], threshold: float) -> list[TraversalSegment]:
        """Return the sub-structures at a threshold, one per group; after the last group, on more groups like it."""
        segments: list[TraversalSegment] = []
        start = 0
        while start < len(self.traversal.order):
            group = groups[min(len(segments), len(groups) - 1)]
            segments.append(self._segment(start, group, threshold))
            start = segments[-1].stop
        return segments

    def steps(self, groups: Sequence[CoreGroup], segments: Sequence[TraversalSegment]) -> tuple[ScoreStep, ...]:
        """Return every trial of a node: those taken, and the one that closed each group."""
        found = []
        for index, segment in enumerate(segments):
            # A second leg or the end of the nodes closes a group without a trial.
            tried = segment.stop + (segment.closing not in ("second leg", "end"))
            for position in range(segment.start, tried):
                accumulated = self.workload(segment.start, position + 1)
                score = self.score(segment.start, position + 1, groups[index])
                closes = segment.closing if position == segment.stop else None
                found.append(ScoreStep(self.traversal.order[position], index, accumulated, score, closes))
        return tuple(found)

    def _segment(self, start: int, group: CoreGroup, threshold: float) -> TraversalSegment:
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
