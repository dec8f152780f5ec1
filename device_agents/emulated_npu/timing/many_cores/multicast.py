"""Reads that reach several cores at a time, on chips whose memories multicast (`Cores.multicast`).

The memory keeps the bytes of a read until the read ends. A core that requests them before that gets them with it, so
that cores which run the same loads fall into step. Nothing writes these bytes: a core that will write them waits for a
message of those that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from device_agents.emulated_npu.timing.resources import SharedResource


class Read(NamedTuple):
    """A read of a memory of the chip: the key of its bytes, and its work and bytes if no other core has it."""

    key: object
    work_ps: int
    moved_bytes: int


class Multicast:
    """The reads that are on their way, by the key of their bytes, and the transfers of others that end with them."""

    def __init__(self, reads: Mapping[int, Read]) -> None:
        self._reads = reads
        self._flights: dict[object, int] = {}
        self._joined: dict[int, list[int]] = {}

    def joins(self, ticket: int, resource: SharedResource) -> bool:
        """Note that a transfer begins; return whether its bytes are on their way, and it needs no separate read."""
        read = self._reads.get(ticket)
        if read is None:
            return False
        first = self._flights.setdefault(read.key, ticket)
        if first == ticket:
            return False
        self._joined.setdefault(first, []).append(ticket)
        resource.saved_ps += read.work_ps
        resource.saved_bytes += read.moved_bytes
        return True

    def ended(self, ticket: int) -> list[int]:
        """Return the transfers that end with one, itself first."""
        read = self._reads.get(ticket)
        if read is not None and self._flights.get(read.key) == ticket:
            del self._flights[read.key]
        return [ticket, *self._joined.pop(ticket, ())]
