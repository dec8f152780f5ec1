"""Few candidates that together have every combination of choices in given windows of positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Candidate = tuple[int, ...]
Window = tuple[int, int]
"""The first position, and the one after the last."""
_TRIED = 64
"""The most combinations of a window that are compared with what a candidate has already."""


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
