"""Assigns addresses by lifetime: buffers that live at the same time do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from device_agents.emulated_npu.arithmetic import aligned


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes` that lives from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


def allocate(items: Iterable[Lifetime]) -> tuple[Mapping[str, int], int]:
    """Return addresses by name and the total bytes; the largest buffers are placed first, each as low as it fits."""
    placed: list[tuple[int, int, Lifetime]] = []
    addresses: dict[str, int] = {}
    top = 0
    for item in sorted(items, key=lambda item: (-item.bytes, item.first, item.name)):
        address = 0
        for start, end, other in placed:  # ordered by start
            if other.first <= item.last and item.first <= other.last:
                if address + item.bytes <= start:
                    break
                if end > address:
                    address = end
        end = address + aligned(item.bytes)
        addresses[item.name] = address
        insort(placed, (address, end, item), key=itemgetter(0))
        top = max(top, end)
    return addresses, top
