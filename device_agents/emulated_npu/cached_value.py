"""A value in the last-level cache, which planning places and ordering does not change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CachedValue:
    """A value at bytes [start, stop) of the last-level cache; `layers` run from its first store to its last load."""

    start: int
    stop: int
    layers: frozenset[int]
