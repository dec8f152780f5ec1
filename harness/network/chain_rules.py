"""Rules by which a device chains neighbouring layers on chip, counted from the networks in which it reported them.

Whether a layer continues the chain of the layer before it depends on both, on what precedes and follows them, and on
the room on chip. The longest pattern of neighbouring layers that was seen decides. If even the two layers were never
seen together, the most similar sizes decide, among pairs of the same operators if there are any. Sizes represent the
capacity of the memories on chip, which no device states.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats

REACH = 3
"""Most layers of a pattern on either side of the link between two layers."""
SIMILAR = 5
"""Number of pairs that vote where no pair of the same operators was seen."""


@dataclass(frozen=True)
class OrderedLayer:
    """A layer in its network's order, without layers that take no time.

    `key` is the digest of its key. `result_bytes` and `weight_bytes` are the sizes of all its results and constants.
    `follows` is whether it reads a result of the layer before it.
    """

    key: str
    op: str
    result_bytes: int
    weight_bytes: int
    follows: bool


Pattern = tuple[str, ...]
_Pair = tuple[str, str, bool]


@dataclass(frozen=True)
class _Links:
    """Links with their sizes on a logarithmic scale, and whether each was chained."""

    sizes: Floats
    chained: Sequence[bool]

    def nearest(self, sizes: Floats, count: int) -> list[bool]:
        order = np.argsort(((self.sizes - sizes) ** 2).sum(axis=1), kind="stable")
        return [self.chained[at] for at in order[:count]]


class ChainRules:
    """What is known about the chains of a device; `chains` cuts an unknown network by it."""

    def __init__(self, networks: Iterable[Sequence[Sequence[OrderedLayer]]]) -> None:
        """Count the links of networks, each given by its chains in order."""
        self._patterns: dict[Pattern, Counter[bool]] = defaultdict(Counter)
        links: list[tuple[_Pair, Floats, bool]] = []
        for chains in networks:
            layers = [layer for chain in chains for layer in chain]
            starts = set(np.cumsum([0, *map(len, chains)]).tolist())
            for at in range(1, len(layers)):
                for pattern in _patterns(layers, at):
                    self._patterns[pattern][at not in starts] += 1
                links.append((_pair(layers, at), _sizes(layers, at), at not in starts))
        self._by_operators = _grouped((pair, sizes, chained) for pair, sizes, chained in links)
        self._by_order = _grouped((pair[-1], sizes, chained) for pair, sizes, chained in links)

    def chains(self, layers: Sequence[OrderedLayer]) -> list[tuple[int, ...]]:
        """Return the chains of a network as places of its layers, each layer in one of them."""
        starts = [at for at in range(len(layers)) if at == 0 or not self.are_chained(layers, at)]
        return [tuple(range(at, stop)) for at, stop in zip(starts, (*starts[1:], len(layers)), strict=True)]

    def are_chained(self, layers: Sequence[OrderedLayer], at: int) -> bool:
        """Return whether the layer at this place continues the chain of the layer before it."""
        for pattern in _patterns(layers, at):
            seen = self._patterns.get(pattern)
            if seen is not None and seen[True] != seen[False]:
                return seen[True] > seen[False]
        pair, sizes = _pair(layers, at), _sizes(layers, at)
        if pair in self._by_operators:
            return self._by_operators[pair].nearest(sizes, 1)[0]
        known = self._by_order.get(pair[-1])
        votes = [False] if known is None else known.nearest(sizes, SIMILAR)
        return sum(votes) * 2 > len(votes)


def _patterns(layers: Sequence[OrderedLayer], at: int) -> Iterator[Pattern]:
    """Yield the keys around the link in front of a layer, longest first; the ends of a network count as layers."""
    for reach in range(REACH, 0, -1):
        near = range(at - reach, at + reach)
        yield tuple(layers[one].key if 0 <= one < len(layers) else "" for one in near)


def _pair(layers: Sequence[OrderedLayer], at: int) -> _Pair:
    return layers[at - 1].op, layers[at].op, layers[at].follows


def _sizes(layers: Sequence[OrderedLayer], at: int) -> Floats:
    front, behind = layers[at - 1], layers[at]
    sizes: Floats = np.log1p(np.array([front.result_bytes, front.weight_bytes, behind.weight_bytes], float))
    return sizes


def _grouped(links: Iterable[tuple[object, Floats, bool]]) -> Mapping[object, _Links]:
    found: dict[object, list[tuple[Floats, bool]]] = defaultdict(list)
    for kind, sizes, chained in links:
        found[kind].append((sizes, chained))
    return {
        kind: _Links(np.array([sizes for sizes, _ in group]), [chained for _, chained in group])
        for kind, group in found.items()
    }
