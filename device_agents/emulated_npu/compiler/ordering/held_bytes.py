"""What a memory holds: each byte has the content that was written there last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class HeldBytes(Generic[T]):
    """Disjoint parts of a memory in the order of their addresses: first byte, one past the last, and content."""

    parts: tuple[tuple[int, int, T], ...] = ()

    def written(self, start: int, stop: int, content: T) -> HeldBytes[T]:
        """Return what the memory holds after a write to the bytes [start, stop)."""
        kept = [rest for part in self.parts for rest in _without(part, start, stop)]
        return HeldBytes(tuple(sorted([*kept, (start, stop, content)], key=lambda part: part[0])))

    def touched(self, start: int, stop: int) -> list[tuple[int, int, T]]:
        """Return the parts that have a byte in [start, stop)."""
        return [part for part in self.parts if part[0] < stop and start < part[1]]


def _without(part: tuple[int, int, T], start: int, stop: int) -> Iterator[tuple[int, int, T]]:
    """Yield what is left of a part when [start, stop) is written over it."""
    low, high, content = part
    if low < min(high, start):
        yield low, min(high, start), content
    if max(low, stop) < high:
        yield max(low, stop), high, content
