"""Assigns addresses by lifetime: buffers that live at the same time do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import aligned


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes` that lives from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


def allocate(items: Iterable[Lifetime]) -> tuple[Mapping[str, int], int]:
    """Return addresses by name and the total bytes; the largest buffers are placed first, each as low as it fits.

    Of buffers of one size that begin to live at the same step, the first of `items` is placed first.
    """
    ranges: list[tuple[int, int]] = []  # of addresses, by start; buffers of one size have few between them
    taken: dict[tuple[int, int], int] = {}  # the steps in which a range holds a buffer, a bit for each
    addresses: dict[str, int] = {}
    top = 0
    for item in sorted(items, key=lambda item: (-item.bytes, item.first)):
        steps = (2 << item.last) - (1 << item.first)
        address = 0
        for place in ranges:
            if taken[place] & steps:
                start, end = place
                if address + item.bytes <= start:
                    break
                if end > address:
                    address = end
        place = address, address + aligned(item.bytes)
        addresses[item.name] = address
        if place not in taken:
            insort(ranges, place)
        taken[place] = taken.get(place, 0) | steps
        top = max(top, place[1])
    return addresses, top
