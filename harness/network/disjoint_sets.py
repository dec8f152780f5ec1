"""A partition of things into groups that only ever grow together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class DisjointSets(Generic[Thing]):
    """Every thing starts as a group of its own; `join` makes one of two. A group goes by one of its things."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._leader = {thing: thing for thing in things}

    def find(self, thing: Thing) -> Thing:
        """The thing that its group goes by."""
        while self._leader[thing] != thing:
            self._leader[thing] = self._leader[self._leader[thing]]
            thing = self._leader[thing]
        return thing

    def join(self, things: Iterable[Thing]) -> None:
        """Makes one group of the groups of these things."""
        leaders = [self.find(thing) for thing in things]
        for leader in leaders[1:]:
            self._leader[self.find(leader)] = self.find(leaders[0])

    def groups(self) -> tuple[tuple[Thing, ...], ...]:
        """The groups in the order of their first things."""
        members: dict[Thing, list[Thing]] = {}
        for thing in self._leader:
            members.setdefault(self.find(thing), []).append(thing)
        return tuple(tuple(group) for group in members.values())
