"""Shared resources: all transfers in their data phase get equal parts of the bandwidth.

A resource with `n` users serves each at 1/n of its rate. Its virtual time advances by 1/n of a picosecond per
picosecond, so a transfer of `work_ps` that begins at virtual time v ends at v + work_ps, whichever other users come and
go. A heap of these ends gives the next transfer to end; an arrival or departure costs the logarithm of the users.

Virtual time has `FRACTION_BITS` binary places and is rounded down, ends are rounded up to whole picoseconds. Both are
exact with one user, or with users that began at the same time with equal work.
"""

from __future__ import annotations

import enum
from heapq import heappop, heappush

FRACTION_BITS = 20
TICKET_BITS = 32
NEVER = -1

_TICKETS = (1 << TICKET_BITS) - 1
_KEY_BITS = TICKET_BITS + FRACTION_BITS


class Resource(enum.IntEnum):
    """The resources that the cores of a chip share; memories have the numbers of their spaces."""

    DDR = 0
    LLC = 1
    LINK = 2
    CHIP_LINK = 3


def transfer_key(work_ps: int, ticket: int) -> int:
    """Return the key of a transfer: its time without other users, and the ticket that identifies it."""
    return (work_ps << _KEY_BITS) | ticket


class SharedResource:
    """One resource of one chip. `due_ps`: when to call `ended` next, NEVER while there are no users.

    `busy_ps`: time with at least one user. `saved_ps` and `saved_bytes`: work and bytes of reads that came with the
    read of another core. The times of calls must not decrease.
    """

    __slots__ = ("_at_ps", "_begun_ps", "_users", "_virtual", "busy_ps", "due_ps", "saved_bytes", "saved_ps")

    def __init__(self) -> None:
        self.due_ps = NEVER
        self.busy_ps = self.saved_ps = self.saved_bytes = 0
        self._users: list[int] = []  # a heap of virtual end and ticket
        self._virtual = 0
        self._at_ps = 0
        self._begun_ps = 0

    def begin(self, now_ps: int, key: int) -> int:
        """Begin a transfer; return `due_ps` if it is earlier now, else NEVER."""
        users = self._users
        if not users:
            self._virtual = 0
            self._at_ps = self._begun_ps = now_ps
            users.append(key)
            self.due_ps = now_ps + (key >> _KEY_BITS)
            return self.due_ps
        self._virtual = virtual = self._virtual + ((now_ps - self._at_ps) << FRACTION_BITS) // len(users)
        self._at_ps = now_ps
        key += virtual << TICKET_BITS
        heappush(users, key)
        if users[0] == key:
            due_ps = self._next_ps()
            if due_ps < self.due_ps:
                self.due_ps = due_ps
                return due_ps
        # The next transfer to end now ends later. A call of `ended` at the old time returns none.
        return NEVER

    def done_ps(self, now_ps: int) -> int:
        """Return the work that each user of all the time has had, in whole picoseconds."""
        if not self._users:
            return 0
        virtual = self._virtual + ((now_ps - self._at_ps) << FRACTION_BITS) // len(self._users)
        return virtual >> FRACTION_BITS

    def ended(self, now_ps: int) -> list[int]:
        """Return the tickets of the transfers that have ended by now; update `due_ps`."""
        users = self._users
        virtual = self._virtual + ((now_ps - self._at_ps) << FRACTION_BITS) // len(users)
        bound = (virtual + 1) << TICKET_BITS
        tickets = []
        while users and users[0] < bound:
            tickets.append(heappop(users) & _TICKETS)
        if tickets:  # else the users are the same, and another rounding is not needed
            self._virtual = virtual
            self._at_ps = now_ps
        if users:
            self.due_ps = self._next_ps()
        else:
            self.due_ps = NEVER
            self.busy_ps += now_ps - self._begun_ps
        return tickets

    def _next_ps(self) -> int:
        left = (self._users[0] >> TICKET_BITS) - self._virtual
        return self._at_ps - (-(left * len(self._users)) >> FRACTION_BITS)
