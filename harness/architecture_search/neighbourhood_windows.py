"""Positions whose choices decide whether a layer has the neighbourhood of an entry of the table.

An entry of a layer in its neighbourhood holds for one sequence of layers around it. Few candidates have it, so random
ones do not show it. The neighbourhoods that a space can have are listed here and compared with those of the entries.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.architecture_search.block_codes import union
from harness.architecture_search.position_tables import Window
from harness.architecture_search.search_space import SearchSpace
from harness.errors import UnsupportedNetwork
from harness.lut.table import Lut
from harness.network.layers import NEIGHBOURS, cut, neighbourhood

MOST_NEIGHBOURHOODS = 1 << 22
_DRAWN = 4

Keys = tuple[str, ...]
_Places = tuple[int, ...]
_Placed = dict[Keys, _Places]
"""Keys of at most `NEIGHBOURS` layers in order, and the position of each: the furthest of several.

Blocks that repeat give the same keys at very many combinations of positions.
"""


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
    return _Neighbourhoods(space, _keys(space, table)).widened(windows, wanted)


@dataclass(frozen=True)
class _Around:
    """What can precede and follow a layer of a position."""

    at: int
    fronts: _Placed
    behinds: _Placed


class _Neighbourhoods:
    """The layers that can precede and follow each position; of several layers, only the nearest."""

    def __init__(self, space: SearchSpace, keys: Sequence[set[Keys]]) -> None:
        """`keys` are those of the layers that a position can have, for each position."""
        self._space, self._keys = space, keys
        self._compared = 0
        self._front: list[_Placed] = [{(): ()}]
        for at, choices in enumerate(keys):
            self._front.append(self._before(self._front[-1], choices, at))
        self._behind: list[_Placed] = [{(): ()}]
        for at, choices in reversed(list(enumerate(keys))):
            self._behind.append(self._after(choices, self._behind[-1], at))
        self._behind.reverse()

    def widened(self, windows: Sequence[Window], wanted: Mapping[str, set[str]]) -> list[Window]:
        """Return the windows with the positions that decide whether layers have a wanted neighbourhood, by key."""
        found = list(windows)
        for key, places in self._places(wanted).items():
            for front in set().union(*(place.fronts for place in places)):
                near = [place for place in places if front in place.fronts]
                for behind in self._matching(front, key, near, wanted[key]):
                    for place in near:
                        if behind in place.behinds:
                            found[place.at] = union(found[place.at], self._window(place, front, behind))
        return found

    def _places(self, wanted: Mapping[str, set[str]]) -> Mapping[str, list[_Around]]:
        """Return what is around each layer whose key is wanted, by key."""
        found: dict[str, list[_Around]] = defaultdict(list)
        for at, choices in enumerate(self._keys):
            for keys in choices:
                for place, key in enumerate(keys):
                    if key in wanted:
                        fronts = self._before(self._front[at], [keys[:place]], at)
                        behinds = self._after([keys[place + 1 :]], self._behind[at + 1], at)
                        found[key].append(_Around(at, fronts, behinds))
        return found

    def _matching(self, front: Keys, key: str, near: Sequence[_Around], wanted: set[str]) -> Iterator[Keys]:
        """Yield what follows a layer after `front` in one of the wanted neighbourhoods."""
        behinds = set().union(*(place.behinds for place in near))
        self._count(len(behinds))
        for behind in behinds:
            if neighbourhood((*front, key, *behind), len(front)) in wanted:
                yield behind

    def _window(self, place: _Around, front: Keys, behind: Keys) -> Window:
        return (
            place.fronts[front][0] if len(front) == NEIGHBOURS else 0,
            place.behinds[behind][-1] + 1 if len(behind) == NEIGHBOURS else len(self._keys),
        )

    def _before(self, fronts: _Placed, choices: Iterable[Keys], at: int) -> _Placed:
        """Return what precedes the next position where `fronts` precede this one."""
        found: _Placed = {}
        for own in choices:
            self._count(len(fronts))
            for front, places in fronts.items():
                near, spots = (*front, *own)[-NEIGHBOURS:], (*places, *(at for _ in own))[-NEIGHBOURS:]
                found[near] = tuple(map(min, spots, found.get(near, spots)))
        return found

    def _after(self, choices: Iterable[Keys], behinds: _Placed, at: int) -> _Placed:
        """Return what follows the position before where `behinds` follow this one."""
        found: _Placed = {}
        for own in choices:
            self._count(len(behinds))
            for behind, places in behinds.items():
                near, spots = (*own, *behind)[:NEIGHBOURS], (*(at for _ in own), *places)[:NEIGHBOURS]
                found[near] = tuple(map(max, spots, found.get(near, spots)))
        return found

    def _count(self, neighbourhoods: int) -> None:
        """Raise UnsupportedNetwork if these are too many, with all before."""
        self._compared += neighbourhoods
        if self._compared > MOST_NEIGHBOURHOODS:
            what = f"The layers of {self._space.name} have too many neighbourhoods"
            why = f"The table lists layers in neighbourhoods; more than {MOST_NEIGHBOURHOODS:,} would be compared"
            raise UnsupportedNetwork(what, why=why, next_step="Use a table without them: profile layers of a space")


def _keys(space: SearchSpace, table: Lut) -> list[set[Keys]]:
    """Return the keys of the layers of each position, as some candidates with all choices have them."""
    random = np.random.default_rng(0)
    drawn = [[at % size for size in space.sizes] for at in range(max(space.sizes))]
    drawn += random.integers(0, space.sizes, (_DRAWN, len(space.sizes))).tolist()
    found: list[set[Keys]] = [set() for _ in space.sizes]
    for candidate in drawn:
        held: dict[int, list[str]] = defaultdict(list)
        layers = cut(space.network_of(candidate), table.rules)
        for at, layer in zip(space.positions_of(layers), layers, strict=True):
            held[at].append(layer.key.digest)
        for at, keys in enumerate(found):
            keys.add(tuple(held[at]))
    return found
