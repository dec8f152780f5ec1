"""Disjoint sets (union-find). SciPy has one too, but importing it takes 0.3 s."""

from collections.abc import Iterable


class DisjointSets:
    """Sets of integers that only grow; each integer starts in a separate set."""

    def __init__(self, items: Iterable[int]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: int) -> int:
        """Return the item that represents the set of `item`."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, items: Iterable[int]) -> None:
        """Merge the sets of these items into one."""
        roots = [self.find(item) for item in items]
        for root in roots[1:]:
            self._parent[self.find(root)] = self.find(roots[0])

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets, ordered by their first items."""
        members: dict[int, list[int]] = {}
        for item in self._parent:
            members.setdefault(self.find(item), []).append(item)
        return tuple(tuple(group) for group in members.values())
