"""Terms of each position by the choices that they depend on, found from networks of candidates.

The layers of a position and their costs depend on its own choice and on those of its neighbours. Operators are fused
across the border of two blocks, devices chain layers, and tables list layers in their neighbourhoods. How far this
reaches is found by changing one choice at a time. Each position then has the smallest window of positions that explains
all networks seen. Random candidates check it; where a check fails, the window grows.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.architecture_search.layer_terms import Terms
from harness.array_types import Ints
from harness.errors import UnsupportedNetwork

MOST_COMBINATIONS = 1 << 14
"""The most combinations of choices in one window: each combination takes a network that is looked up."""
_BASES = 2
_CHECKS = 64
Candidate = tuple[int, ...]
Window = tuple[int, int]
"""The first position, and the one after the last."""
_TRIED = 64
"""The most combinations of a window that are compared with what a candidate has already."""


@dataclass(frozen=True)
class PositionTable:
    """The terms of one position; `kinds` has one axis for each position of the window, and numbers of `terms`."""

    window: Window
    kinds: Ints
    terms: tuple[Terms, ...]


TermsOf = Callable[[Candidate], tuple[Terms, ...]]
"""Returns the terms of each position of a candidate."""


@dataclass
class WindowSearch:
    """Finds the tables of a space with `sizes` choices.

    `least` are windows that a table needs in any case, where random candidates cannot show it.
    """

    sizes: Sequence[int]
    terms_of: TermsOf
    least: Callable[[Sequence[Window]], Sequence[Window]] = list
    seed: int = 0
    _seen: dict[Candidate, tuple[Terms, ...]] = field(default_factory=dict)

    def tables(self) -> tuple[PositionTable, ...]:
        """Return one table for each position; raises UnsupportedNetwork if choices depend on too many others."""
        random = np.random.default_rng(self.seed)
        windows = list(self.least(self._influences(random)))
        is_checked = False
        while True:
            self._check_size(windows)
            if conflicts := self._conflicts(windows):
                for at in conflicts:
                    windows[at] = self._wider(at, windows[at])
                continue
            if missing := self._missing(windows):
                for candidate in covering(self.sizes, missing, random):
                    self._see(candidate)
                continue
            if is_checked:
                return tuple(self._table(at, window) for at, window in enumerate(windows))
            for _ in range(_CHECKS):
                self._see(self._drawn(random))
            is_checked = True

    def _drawn(self, random: np.random.Generator) -> Candidate:
        return tuple(int(random.integers(size)) for size in self.sizes)

    def _see(self, candidate: Candidate) -> tuple[Terms, ...]:
        if candidate not in self._seen:
            self._seen[candidate] = self.terms_of(candidate)
        return self._seen[candidate]

    def _influences(self, random: np.random.Generator) -> list[Window]:
        """Return, for each position, how far away a changed choice still changes its terms."""
        windows = [(at, at + 1) for at in range(len(self.sizes))]
        for base in [self._drawn(random) for _ in range(_BASES)]:
            before = self._see(base)
            for at, size in enumerate(self.sizes):
                for choice in range(size):
                    after = self._see((*base[:at], choice, *base[at + 1 :]))
                    for place, (first, stop) in enumerate(windows):
                        if before[place] != after[place]:
                            windows[place] = min(first, at), max(stop, at + 1)
        return windows

    def _by_window(self, at: int, window: Window) -> dict[Candidate, set[Terms]]:
        found: dict[Candidate, set[Terms]] = {}
        for candidate, terms in self._seen.items():
            found.setdefault(candidate[slice(*window)], set()).add(terms[at])
        return found

    def _conflicts(self, windows: Sequence[Window]) -> list[int]:
        """Return positions that had several terms for one combination of choices."""
        return [
            at
            for at, window in enumerate(windows)
            if any(len(terms) > 1 for terms in self._by_window(at, window).values())
        ]

    def _wider(self, at: int, window: Window) -> Window:
        """Return the window with one more position before, after, or on both sides: the first that explains all."""
        front, behind = max(0, window[0] - 1), min(len(self.sizes), window[1] + 1)
        options = [(front, window[1]), (window[0], behind), (front, behind)]
        good = (one for one in options if all(len(terms) == 1 for terms in self._by_window(at, one).values()))
        return next(good, (front, behind))

    def _missing(self, windows: Sequence[Window]) -> dict[Window, set[Candidate]]:
        found = {}
        for window in dict.fromkeys(windows):
            sizes = self.sizes[slice(*window)]
            seen = {candidate[slice(*window)] for candidate in self._seen}
            left = set(itertools.product(*map(range, sizes))) - seen
            if left:
                found[window] = left
        return found

    def _check_size(self, windows: Sequence[Window]) -> None:
        for at, window in enumerate(windows):
            combinations = math.prod(self.sizes[slice(*window)])
            if combinations > MOST_COMBINATIONS:
                what = f"Position {at} depends on the choices of positions {window[0]} to {window[1] - 1}"
                why = f"These have {combinations:,} combinations; the limit is {MOST_COMBINATIONS:,}"
                step = "Use a table without neighbourhoods of these layers, or fewer choices or larger blocks"
                raise UnsupportedNetwork(what, why=why, next_step=step)

    def _table(self, at: int, window: Window) -> PositionTable:
        numbers: dict[Terms, int] = {}
        kinds = np.zeros(self.sizes[slice(*window)], np.int64)
        for combination, terms in self._by_window(at, window).items():
            (one,) = terms
            kinds[combination] = numbers.setdefault(one, len(numbers))
        return PositionTable(window, kinds, tuple(numbers))


def covering(
    sizes: Sequence[int], missing: Mapping[Window, set[Candidate]], random: np.random.Generator
) -> Iterator[Candidate]:
    """Yield candidates until each window had all combinations that it misses; `missing` is emptied."""
    while any(missing.values()):
        chosen: dict[int, int] = {}
        for (first, stop), combinations in sorted(missing.items(), key=lambda one: -len(one[1])):
            for combination, _ in zip(combinations, range(_TRIED), strict=False):
                places = dict(zip(range(first, stop), combination, strict=True))
                if all(chosen.get(at, choice) == choice for at, choice in places.items()):
                    chosen.update(places)
                    break
        candidate = tuple(chosen.get(at, int(random.integers(size))) for at, size in enumerate(sizes))
        for (first, stop), combinations in missing.items():
            combinations.discard(candidate[first:stop])
        yield candidate
