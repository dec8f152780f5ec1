"""Reads that reach several cores at a time, on chips whose memories multicast (`Cores.multicast`).

A core that asks for bytes while they are on their way to another core of its group receives what is still to come
together with it. Then it reads what it has missed. Nothing writes these bytes meanwhile: a core that will write them
waits for a message of those that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from device_agents.emulated_npu.timing.resources import SharedResource, transfer_key


class Read(NamedTuple):
    """A read of a memory of the chip: the key of its bytes, and its work and bytes if no other core has it."""

    key: object
    work_ps: int
    moved_bytes: int


class _Flight(NamedTuple):
    """A read on its way: its ticket, and the work that its resource had done for each user when it began."""

    ticket: int
    begun_ps: int


class Multicast:
    """The reads that are on their way, and the transfers of other cores that take their bytes along."""

    def __init__(self, reads: Mapping[int, Read]) -> None:
        self._reads = reads
        self._flights: dict[object, _Flight] = {}
        self._joined: dict[int, list[tuple[int, int]]] = {}  # by ticket: later ones, and the work that they have missed

    def joins(self, ticket: int, resource: SharedResource, now_ps: int) -> bool:
        """Note that a transfer begins; return whether its bytes are on their way, and it needs no read of its own."""
        read = self._reads.get(ticket)
        if read is None:
            return False
        flight = self._flights.get(read.key)
        done_ps = resource.done_ps(now_ps)
        if flight is None:
            self._flights[read.key] = _Flight(ticket, done_ps)
            return False
        missed_ps = done_ps - flight.begun_ps
        self._joined.setdefault(flight.ticket, []).append((ticket, missed_ps))
        resource.saved_ps += read.work_ps - missed_ps
        resource.saved_bytes += read.moved_bytes * (read.work_ps - missed_ps) // read.work_ps
        return True

    def ended(self, ticket: int, resource: SharedResource, now_ps: int) -> list[int]:
        """Return the transfers that end with one, itself first; others that it reached read what they have missed."""
        found = [ticket]
        read = self._reads.get(ticket)
        flight = None if read is None else self._flights.get(read.key)
        if read is None or flight is None or flight.ticket != ticket:
            return found
        del self._flights[read.key]
        for other, missed_ps in self._joined.pop(ticket, ()):
            if missed_ps:
                resource.begin(now_ps, transfer_key(missed_ps, other))
            else:
                found.append(other)
        return found
