"""The work of layers, and what bounds them: arithmetic, or moving weights or feature maps.

A table shows the roofs of its device: the highest rates of multiply-adds, of bytes of weights and of bytes of feature
maps that its layers reach. A layer is bound by the work that takes most of its latency at these rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.array_types import Floats
from harness.lut.table import Entry, Lut
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures

BoundName = Literal["arithmetic", "weights", "features"]
_NAMES: tuple[BoundName, ...] = ("arithmetic", "weights", "features")
_MULTIPLIES = "mac/"
_FEWEST = 20
"""Layers below which a table shows no roofs."""
_MOST = 2000
"""Entries that the roofs are taken from: enough for three rates."""
_LARGEST_ERROR = 0.1
"""The largest standard error, as a fraction, of a latency that shows a rate."""
_ROOF = 0.98
"""The quantile of the rates that is the roof: single layers are faster, because others hide a part of them."""
_LEAST_SHARE, _LEAST_RATIO = 0.5, 2.0
"""What bounds a layer takes at least this share of its latency, and this many times as long as any other work."""


@dataclass(frozen=True)
class LayerWork:
    """The multiply-adds of a layer, None for operators without; the bytes it moves at least; and what bounds it.

    `bound` is None where that is not known: the table has too few layers, no work takes most of the latency, two take
    about equally long, or the layer multiplies nothing, so that arithmetic and bytes grow alike.
    """

    macs: int | None
    moved_bytes: int
    bound: BoundName | None


@dataclass(frozen=True)
class WorkedLayer:
    """A layer by the text of its key, its context, and its latency, None if that is unknown."""

    signature: str
    context: str
    latency_s: float | None


@dataclass(frozen=True)
class DeviceRoofs:
    """The highest rates per second of multiply-adds, bytes of weights and bytes of feature maps; None if not shown."""

    rates: Floats | None

    @classmethod
    def of(cls, table: Lut) -> DeviceRoofs:
        """Return the roofs that a table shows."""
        step = -(-len(table.entries) // _MOST) or 1
        sure = [one for one in table.entries[::step] if one.resolved and one.stderr_s < _LARGEST_ERROR * one.latency_s]
        described = [(describe(one.signature, one.context), one.latency_s) for one in sure]
        rows = np.array([np.array(_amounts(layer)) / latency_s for layer, latency_s in described if layer is not None])
        if len(rows) < _FEWEST:
            return cls(None)
        return cls(np.array([np.quantile(rates[rates > 0], _ROOF) if rates.any() else np.inf for rates in rows.T]))

    def works(self, layers: Sequence[WorkedLayer]) -> tuple[LayerWork | None, ...]:
        """Return the work of layers; None for keys of other versions."""
        return tuple(self._work(one, describe(one.signature, one.context)) for one in layers)

    def _work(self, known: WorkedLayer, layer: LayerFeatures | None) -> LayerWork | None:
        if layer is None:
            return None
        amounts = _amounts(layer)
        macs = int(amounts[0]) if _multiplies(layer) else None
        bound = None
        if macs is not None and self.rates is not None and known.latency_s:
            shares = np.array(amounts) / self.rates / known.latency_s
            second, first = np.sort(shares)[-2:]
            if first >= max(_LEAST_SHARE, _LEAST_RATIO * second):
                bound = _NAMES[int(np.argmax(shares))]
        return LayerWork(macs, layer.moved_bytes, bound)


def entry_works(table: Lut, entries: Sequence[Entry]) -> tuple[LayerWork | None, ...]:
    """Return the work of entries of a table."""
    return DeviceRoofs.of(table).works([WorkedLayer(one.signature, one.context, one.latency_s) for one in entries])


def _multiplies(layer: LayerFeatures) -> bool:
    return layer.operator.startswith(_MULTIPLIES)


def _amounts(layer: LayerFeatures) -> tuple[float, float, float]:
    macs = layer.macs if _multiplies(layer) else 0
    return float(macs), float(layer.weight_bytes), float(layer.moved_bytes - layer.weight_bytes)
