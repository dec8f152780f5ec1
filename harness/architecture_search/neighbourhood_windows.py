"""Positions whose choices decide whether a layer has the neighbourhood of an entry of the table.

An entry of a layer in its neighbourhood holds for one sequence of layers around it. Few candidates have it, so random
ones do not show it. The neighbourhoods that a space can have are listed here and compared with those of the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.architecture_search.block_codes import union
from harness.architecture_search.covering import Window
from harness.architecture_search.search_space import SearchSpace
from harness.errors import UnsupportedNetwork
from harness.lut.table import Lut
from harness.network.layers import NEIGHBOURS, cut, neighbourhood

MOST_NEIGHBOURHOODS = 1 << 22
_DRAWN = 4

Keys = tuple[str, ...]
_Placed = tuple[tuple[str, int], ...]
"""At most `NEIGHBOURS` keys of layers in order, each with its position."""


def windows_of_neighbours(space: SearchSpace, table: Lut, windows: Sequence[Window]) -> list[Window]:
    """Return the windows with all positions that decide about entries in their neighbourhoods.

    Raises UnsupportedNetwork if the layers of the space have too many neighbourhoods.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for entry in table.entries:
        _, _, digest = entry.context.partition("@")
        if digest:
            wanted[entry.key].add(digest)
    if not wanted:
        return list(windows)
    listed = _Neighbourhoods(space, _keys(space, table))
    return [union(window, listed.window_of(at, wanted)) for at, window in enumerate(windows)]


class _Neighbourhoods:
    """The layers that can precede and follow each position; of several layers, only the nearest."""

    def __init__(self, space: SearchSpace, keys: Sequence[set[Keys]]) -> None:
        """`keys` are those of the layers that a position can have, for each position."""
        self._space, self._keys = space, keys
        self._front: list[set[_Placed]] = [{()}]
        for at, choices in enumerate(keys):
            held = self._front[-1]
            self._front.append({(*front, *_placed(own, at))[-NEIGHBOURS:] for own in choices for front in held})
        self._behind: list[set[_Placed]] = [{()}]
        for at, choices in reversed(list(enumerate(keys))):
            held = self._behind[-1]
            self._behind.append({(*_placed(own, at), *behind)[:NEIGHBOURS] for own in choices for behind in held})
        self._behind.reverse()
        self._compared = 0

    def window_of(self, at: int, wanted: Mapping[str, set[str]]) -> Window:
        """Return the positions that decide whether a layer of a position has a wanted neighbourhood, by its key."""
        window = at, at + 1
        for keys in self._keys[at]:
            for place, key in enumerate(keys):
                for found in self._matches(at, keys, place, wanted.get(key, set())):
                    window = union(window, found)
        return window

    def _matches(self, at: int, keys: Keys, place: int, wanted: set[str]) -> Iterator[Window]:
        if not wanted:
            return
        placed = _placed(keys, at)
        fronts = {(*front, *placed[:place])[-NEIGHBOURS:] for front in self._front[at]}
        behinds = {(*placed[place + 1 :], *behind)[:NEIGHBOURS] for behind in self._behind[at + 1]}
        self._compared += len(fronts) * len(behinds)
        if self._compared > MOST_NEIGHBOURHOODS:
            what = f"The layers of {self._space.name} have too many neighbourhoods"
            why = f"The table lists layers in neighbourhoods; more than {MOST_NEIGHBOURHOODS:,} would be compared"
            raise UnsupportedNetwork(what, why=why, next_step="Use a table without them: profile layers of a space")
        for front in fronts:
            for behind in behinds:
                near = [key for key, _ in (*front, placed[place], *behind)]
                if neighbourhood(near, len(front)) in wanted:
                    yield (
                        front[0][1] if len(front) == NEIGHBOURS else 0,
                        behind[-1][1] + 1 if len(behind) == NEIGHBOURS else len(self._keys),
                    )


def _placed(keys: Keys, at: int) -> _Placed:
    return tuple((key, at) for key in keys)


def _keys(space: SearchSpace, table: Lut) -> list[set[Keys]]:
    """Return the keys of the layers of each position, as some candidates with all choices have them."""
    random = np.random.default_rng(0)
    drawn = [[at % size for size in space.sizes] for at in range(max(space.sizes))]
    drawn += random.integers(0, space.sizes, (_DRAWN, len(space.sizes))).tolist()
    found: list[set[Keys]] = [set() for _ in space.sizes]
    for candidate in drawn:
        held: dict[int, list[str]] = defaultdict(list)
        for layer in cut(space.network_of(candidate), table.rules):
            held[space.position_of[layer.name]].append(layer.key.digest)
        for at, keys in enumerate(found):
            keys.add(tuple(held[at]))
    return found
