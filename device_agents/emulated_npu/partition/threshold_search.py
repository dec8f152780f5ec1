"""The search for the threshold of a split score: the smallest with which a network fits its core groups.

A walk decides by comparing scores with the threshold, so only thresholds that equal a score give another partition.
Every segment of a walk names the score that the threshold kept out (`rejected`): the next threshold worth trying.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.split_score import Splitting, TraversalSegment


def smallest_threshold(splitting: Splitting, groups: Sequence[CoreGroup]) -> float | None:
    """Return the smallest threshold with no more sub-structures than groups; None if even infinity gives more.

    The bisection moves to the next rejected or accepted score. Only these scores matter, so the result is exact.
    """
    segments = splitting.walk(groups, math.inf)
    if len(segments) > len(groups):
        return None
    low, high = 0.0, _tightened(splitting, groups, segments)
    while low < high:
        middle = low + (high - low) / 2
        middle = middle if middle < high else low
        segments = splitting.walk(groups, middle)
        if len(segments) <= len(groups):
            high = _tightened(splitting, groups, segments)
        else:
            # With more sub-structures than an infinite threshold yields, the threshold has closed one.
            low = next_threshold(segments) or high
    return high


def _tightened(splitting: Splitting, groups: Sequence[CoreGroup], segments: Sequence[TraversalSegment]) -> float:
    """Return the smallest threshold with the same sub-structures; any threshold accepts one of a single node."""
    longer = [(one, group) for one, group in zip(segments, groups, strict=False) if one.stop - one.start > 1]
    return max((splitting.score(one.start, one.stop, group) for one, group in longer), default=0.0)


def next_threshold(segments: Sequence[TraversalSegment]) -> float | None:
    """Return the smallest higher threshold with other sub-structures."""
    return min((segment.rejected for segment in segments if segment.rejected is not None), default=None)


def first_fitting(splitting: Splitting, groups: Sequence[CoreGroup], threshold: float) -> float | None:
    """Return the smallest threshold, from a given one up, with which the network fits the groups.

    Every step of the search moves the end of a sub-structure forward, so there are at most groups x nodes steps.
    """
    found: float | None = threshold
    while found is not None:
        segments = splitting.walk(groups, found)
        if fits(segments, groups):
            return found
        found = next_threshold(segments)
    return None


def fits(segments: Sequence[TraversalSegment], groups: Sequence[CoreGroup]) -> bool:
    """Return whether each group holds its segment, and no segment is left."""
    return len(segments) <= len(groups) and not any(segment.lack for segment in segments)
