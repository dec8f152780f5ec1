"""Estimate layers whose neighbours were never measured together with them, on devices that chain layers on chip.

The latency of a layer in a chain depends on its traffic with external memory: the bytes that it reads from other chains
and writes for them. Layers of equal key with equal traffic have one *class* of neighbourhood: chained to the
predecessor, to the successor, to both, or to neither. The latency in an unknown neighbourhood is the mean over the
known ones of its class. If none is of its class, it is that of the class with the most similar traffic, plus the time
of the difference in bytes. The two rates for this are fitted by least squares to the keys that the table has in several
classes, if there are enough of them. The probe of a single layer has its neighbours on chip: it represents a layer
chained on both sides, if no network has such a layer. The spread between known neighbourhoods is the standard error.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.array_types import Floats
from harness.lut.chain_rows import VIEW, ChainRow
from harness.network.chain_rules import ChainRules, OrderedLayer

USUAL_SPREAD = 0.3
"""Relative standard error of a layer in another neighbourhood where nothing is known about it."""
FEWEST_DIFFERENCES = 5
"""Number of differences between neighbourhoods from which rates and spreads are estimated from them."""
PRIOR = 2.0
"""Weight of the spread of all layers, as a number of the layer's own neighbourhoods."""
_ON_CHIP = (0, 0)
LEAST_PART = 0.3
"""Part of a known value that a value for less traffic keeps at least."""


class KnownLayer(Protocol):
    """An entry of a table; see `harness.lut.table.Entry`."""

    @property
    def op(self) -> str:
        """Its operators."""
        ...

    @property
    def place(self) -> tuple[str, str]:
        """Key digest and context."""
        ...

    @property
    def signature(self) -> str:
        """The text of its key."""
        ...

    @property
    def remainder_s(self) -> float:
        """Its part of a sum, in seconds."""
        ...


@dataclass(frozen=True)
class ClassValue:
    """The value of a layer in an unknown neighbourhood of a known key.

    `latency_s` is in seconds. `weights` are the parts that entries have in it, by their indices; the errors of these
    are not in `spread_s`, the standard error of the choice of neighbourhood.
    """

    neighbourhood: str
    latency_s: float
    spread_s: float
    weights: Mapping[int, float]


@dataclass(frozen=True)
class _Known:
    """The entries of one key and class: indices and values, and the bytes read and written."""

    bytes: tuple[int, int]
    indices: tuple[int, ...]
    values: Floats

    @functools.cached_property
    def mean_s(self) -> float:
        return float(self.values.mean())


class Neighbourhoods:
    """What a table knows about neighbourhoods: values by class, `views` by key, and rules for chains."""

    def __init__(self, entries: Sequence[KnownLayer], rows: Sequence[ChainRow]) -> None:
        """`rows` are those of the table's chains; each names one of the entries."""
        index = {entry.place: number for number, entry in enumerate(entries)}
        self.views = frozenset(row.key for row in rows if row.chain == VIEW)
        self.rules = ChainRules(_networks(entries, index, rows))
        grouped: dict[str, dict[tuple[int, int], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in rows:
            if row.chain != VIEW:
                at = index[row.place]
                grouped[row.key][row.read_bytes, row.written_bytes][at] = entries[at].remainder_s
        self._known = {
            key: [_Known(size, tuple(held), np.array([*held.values()])) for size, held in classes.items()]
            for key, classes in grouped.items()
        }
        self._probed = _probed(entries, self._known)
        self._rates = _rates(list(self._known.values()))
        self._within, self._across = self._spreads()

    def find(self, key: str, read_bytes: int, written_bytes: int) -> ClassValue | None:
        """Return the value of a layer that exchanges these bytes with other chains; None for an unknown key."""
        if key not in self._known:
            return None
        wanted = (read_bytes, written_bytes)
        known = self._nearest(self._known[key], self._probed.get(key), wanted)
        count, value = len(known.values), self._moved(known, wanted)
        own = float(((known.values - known.mean_s) ** 2).sum())
        variance = (PRIOR * (self._within * value) ** 2 + own) / (PRIOR + count - 1) * (1 + 1 / count)
        if known.bytes != wanted:
            variance += (self._across * value) ** 2
        return ClassValue(_name(*wanted), value, variance**0.5, dict.fromkeys(known.indices, 1 / count))

    @staticmethod
    def _nearest(classes: Sequence[_Known], probed: _Known | None, wanted: tuple[int, int]) -> _Known:
        """Return the class with the most similar traffic; of equal ones, one in a network."""
        candidates = [*classes, *([probed] if probed else [])]
        return min(candidates, key=lambda one: (_distance(one.bytes, wanted), one is probed, one.bytes))

    def _moved(self, known: _Known, wanted: tuple[int, int]) -> float:
        """Return a class's value with the time of another traffic."""
        moved_s = float(self._rates @ np.subtract(wanted, known.bytes))
        return max(known.mean_s + moved_s, LEAST_PART * known.mean_s)

    def _spreads(self) -> tuple[float, float]:
        """Return the relative spread between neighbourhoods of a class, and that of a class from the nearest other."""
        within, across = [], []
        for key, classes in self._known.items():
            for one in classes:
                if len(one.values) > 1:
                    within.append((one.mean_s, float(one.values.var(ddof=1))))
                others = [other for other in classes if other is not one]
                if others:
                    nearest = self._nearest(others, self._probed.get(key), one.bytes)
                    across.append((one.mean_s, (self._moved(nearest, one.bytes) - one.mean_s) ** 2))
        return _relative(within), _relative(across)


def _networks(
    entries: Sequence[KnownLayer], index: Mapping[tuple[str, str], int], rows: Sequence[ChainRow]
) -> list[list[list[OrderedLayer]]]:
    """Return the chains of each network in order."""
    return [
        [
            [
                OrderedLayer(row.key, entries[index[row.place]].op, row.result_bytes, row.weight_bytes, row.follows)
                for row in chain
            ]
            for number, chain in itertools.groupby(network, key=lambda row: row.chain)
            if number != VIEW
        ]
        for _, network in itertools.groupby(rows, key=lambda row: row.network)
    ]


def _probed(entries: Sequence[KnownLayer], known: Mapping[str, Sequence[_Known]]) -> dict[str, _Known]:
    """Return the single layers between neighbours on chip, of keys that no network has chained on both sides.

    Their times are scaled as those of the other keys are between their probes and their chains.
    """
    places = enumerate(entry.place for entry in entries)
    alone = {key: at for at, (key, context) in places if set(context.split(",")) <= {"map", "chip"}}
    chained = {key: one for key, classes in known.items() for one in classes if one.bytes == _ON_CHIP}
    both = [(one.mean_s, entries[alone[key]].remainder_s) for key, one in chained.items() if key in alone]
    whole_s = sum(alone_s for _, alone_s in both)
    scale = sum(mean_s for mean_s, _ in both) / whole_s if len(both) >= FEWEST_DIFFERENCES and whole_s > 0 else 1.0
    return {
        key: _Known(_ON_CHIP, (at,), np.array([scale * entries[at].remainder_s]))
        for key, at in alone.items()
        if key not in chained and entries[at].remainder_s > 0
    }


def _rates(known: Sequence[Sequence[_Known]]) -> Floats:
    """Return seconds per byte read and per byte written, from the differences between classes of equal keys."""
    pairs = [pair for classes in known for pair in itertools.combinations(classes, 2)]
    if len(pairs) < FEWEST_DIFFERENCES:
        return np.zeros(2)
    weights = np.array([max(one.mean_s + other.mean_s, 1e-12) for one, other in pairs]) ** -0.5
    moved = np.array([np.subtract(one.bytes, other.bytes) for one, other in pairs], float)
    differences = np.array([one.mean_s - other.mean_s for one, other in pairs])
    return _least_squares(moved * weights[:, None], differences * weights)


def _least_squares(design: Floats, wanted: Floats) -> Floats:
    """Return the two coefficients, neither negative, that fit best: both together, only one, or none."""
    together: Floats = np.linalg.lstsq(design, wanted, rcond=None)[0].astype(float)
    found: list[Floats] = [np.zeros(2), together]
    for column, alone in enumerate(np.eye(2)):
        squares = float(design[:, column] @ design[:, column])
        found.append(alone * (float(design[:, column] @ wanted) / squares if squares else 0.0))
    allowed = [one for one in found if min(one) >= 0]
    return min(allowed, key=lambda one: float(((design @ one - wanted) ** 2).sum()))


def _relative(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the root of the mean relative variance, each weighted by its time."""
    if len(pairs) < FEWEST_DIFFERENCES:
        return USUAL_SPREAD
    return float((sum(variance / mean for mean, variance in pairs) / sum(mean for mean, _ in pairs)) ** 0.5)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _name(read_bytes: int, written_bytes: int) -> str:
    """Return on which sides a layer is chained."""
    if read_bytes:
        return "none" if written_bytes else "behind"
    return "front" if written_bytes else "both"
