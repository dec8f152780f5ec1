"""What candidates save on a device that loads weights while the layers before them compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.architecture_search.block_codes import BlockCodes, Choices, PositionBlock
from harness.architecture_search.position_tables import PositionTable
from harness.array_types import Floats, Ints
from harness.predictor.roofline.weight_loads import WeightLoads

_TOGETHER = 1 << 11
"""Candidates that are walked together."""


@dataclass(frozen=True)
class LoadedAhead:
    """The layers of each position by its number in `codes`, (layers, numbers), and the loads of all layers.

    `layers` are numbers of `loads`, whose last layer takes the place of missing ones. `predicted_s` are the latencies
    of predicted layers, 0 for others.
    """

    codes: BlockCodes
    layers: tuple[Ints, ...]
    predicted_s: tuple[Floats, ...]
    loads: WeightLoads
    ahead_bytes: int

    @classmethod
    def of(
        cls, tables: Sequence[PositionTable], sizes: Sequence[int], loads: WeightLoads, ahead_bytes: int
    ) -> LoadedAhead:
        """Make the tables from those of the positions, whose terms number the layers of `loads`."""
        blocks = tuple(PositionBlock((at, at + 1), table.window) for at, table in enumerate(tables))
        held = [_layers(table, (len(loads.loads_s), 0.0)) for table in tables]
        layers = tuple(np.ascontiguousarray(one[..., 0].T, np.int64) for one in held)
        predicted_s = tuple(np.ascontiguousarray(one[..., 1].T) for one in held)
        return cls(BlockCodes(tuple(sizes), blocks), layers, predicted_s, loads.with_idle_layer(), ahead_bytes)

    def saved_s(self, choices: Choices) -> Floats:
        """Return the seconds that each candidate saves."""
        parts = range(0, max(1, choices.shape[1]), _TOGETHER)
        return np.concatenate([self._saved_s(choices[:, at : at + _TOGETHER]) for at in parts])

    def _saved_s(self, choices: Choices) -> Floats:
        codes = self.codes.of(choices)
        order = np.concatenate([one.take(at, axis=1) for one, at in zip(self.layers, codes, strict=True)])
        predicted_s = np.concatenate([one.take(at, axis=1) for one, at in zip(self.predicted_s, codes, strict=True)])
        saved: Floats = ((1.0 - self.loads.left(self.ahead_bytes, order)) * predicted_s).sum(axis=0)
        return saved


def _layers(table: PositionTable, missing: tuple[int, float]) -> Floats:
    """Return number and predicted latency of the layers of each combination, (combinations, layers, 2)."""
    most = max(len(terms.loads) for terms in table.terms)
    held = [(*terms.loads, *[missing] * (most - len(terms.loads))) for terms in table.terms]
    return np.array(held, float).reshape(len(held), most, 2)[table.kinds.ravel()]
