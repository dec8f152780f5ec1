"""How many bytes of weights a device loads ahead of their layers, found from the chains of a table's networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from harness.array_types import Floats
from harness.lut.chain_rows import VIEW, ChainRow
from harness.predictor.features.key_features import describe
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.weight_loads import WeightLoads

_SIZES = (0, *(1 << power for power in range(14, 27)))


class KnownLayer(Protocol):
    """An entry of a table; see `harness.lut.table.Entry`."""

    @property
    def signature(self) -> str:
        """The text of its key."""
        ...

    @property
    def remainder_s(self) -> float:
        """Its part of a sum, in seconds."""
        ...


Entries = Mapping[tuple[str, str], KnownLayer]
"""Entries by key digest and context."""
_Network = tuple[WeightLoads, Floats, float]
"""The loads of a network's layers, their latencies as single layers, and the latency of its chains, in seconds."""


def weights_ahead(entries: Entries, rows: Sequence[ChainRow], predictor: Predictor) -> int:
    """Return the bytes with which single layers add up to the chains of networks best; 0 without chains.

    The smallest of equally good sizes counts. No latency of a whole network is used.
    """
    networks = [
        found
        for _, group in itertools.groupby(rows, key=lambda row: row.network)
        if (found := _network(entries, [row for row in group if row.chain != VIEW], predictor)) is not None
    ]
    if not networks:
        return 0

    def error(size: int) -> float:
        return sum(_error(network, size) for network in networks)

    return min(_SIZES, key=error)


def _error(network: _Network, size: int) -> float:
    loads, singles_s, chains_s = network
    return abs(math.log(float(loads.left(size) @ singles_s) / chains_s))


def _network(entries: Entries, rows: Sequence[ChainRow], predictor: Predictor) -> _Network | None:
    """Return a network of the table; None if one of its layers was not measured by itself or has no features."""
    alone = list(_alone(entries, rows))
    features = [describe(one.signature, context) for one, context in alone]
    known = [one for one in features if one is not None]
    chains_s = sum(entries[row.place].remainder_s for row in rows)
    singles_s = np.array([one.remainder_s for one, _ in alone])
    if len(known) != len(rows) or chains_s <= 0.0 or singles_s.sum() <= 0.0:
        return None
    return predictor.weight_loads(known), np.maximum(singles_s, 0.0), chains_s


def _alone(entries: Entries, rows: Sequence[ChainRow]) -> Iterator[tuple[KnownLayer, str]]:
    """Yield the entries of layers by themselves, and their contexts without a neighbourhood."""
    for row in rows:
        context = row.context.partition("@")[0]
        if (row.key, context) in entries:
            yield entries[row.key, context], context
