"""What the chains of a table's networks show: how far a device loads weights ahead, and how far sums are off."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.lut.chain_rows import VIEW, ChainRow
from harness.lut.neighbourhoods import KnownLayer
from harness.predictor.features.key_features import describe
from harness.predictor.roofline.weight_loads import LoadsOf, WeightLoads

_SIZES = (0, *(1 << power for power in range(14, 27)))


Entries = Mapping[tuple[str, str], KnownLayer]
"""Entries by key digest and context."""


@dataclass(frozen=True)
class _Network:
    """The loads of a network's layers, their latencies as single layers, and that of its chains, in seconds."""

    loads: WeightLoads
    singles_s: Floats
    chains_s: float

    def error(self, size: int) -> float:
        """Return how far the single layers are off the chains if the device loads so many bytes ahead."""
        return abs(math.log(float(self.loads.left(size) @ self.singles_s) / self.chains_s))


@dataclass(frozen=True)
class ChainFit:
    """The bytes of weights that a device loads ahead, and the relative error of sums of single layers that is left."""

    ahead_bytes: int
    error: float


def fit_chains(entries: Entries, rows: Sequence[ChainRow], loads_of: LoadsOf) -> ChainFit:
    """Return the bytes with which single layers add up to the chains of networks best; zeros without chains.

    The smallest of equally good sizes counts; the error allows for its choice. No latency of a whole network is used.
    """
    networks = _networks(entries, rows, loads_of)
    size = min(_SIZES, key=lambda size: sum(network.error(size) for network in networks))
    return ChainFit(size, math.hypot(*(one.error(size) for one in networks)) / math.sqrt(max(1, len(networks) - 1)))


def _networks(entries: Entries, rows: Sequence[ChainRow], loads_of: LoadsOf) -> list[_Network]:
    groups = itertools.groupby(rows, key=lambda row: row.network)
    found = [_network(entries, [row for row in group if row.chain != VIEW], loads_of) for _, group in groups]
    return [one for one in found if one is not None]


def _network(entries: Entries, rows: Sequence[ChainRow], loads_of: LoadsOf) -> _Network | None:
    """Return a network of the table; None if one of its layers was not measured by itself or has no features."""
    alone = list(_alone(entries, rows))
    features = [describe(one.signature, context) for one, context in alone]
    known = [one for one in features if one is not None]
    chains_s = sum(entries[row.place].remainder_s for row in rows)
    singles_s = np.array([one.remainder_s for one, _ in alone])
    if len(known) != len(rows) or chains_s <= 0.0 or singles_s.sum() <= 0.0:
        return None
    return _Network(loads_of(known), np.maximum(singles_s, 0.0), chains_s)


def _alone(entries: Entries, rows: Sequence[ChainRow]) -> Iterator[tuple[KnownLayer, str]]:
    """Yield the entries of layers by themselves, and their contexts without a neighbourhood."""
    for row in rows:
        context = row.context.partition("@")[0]
        if (row.key, context) in entries:
            yield entries[row.key, context], context
