"""The work of layers, and what bounds them: arithmetic, moved weights or feature maps, or the start of a layer.

A table shows the rates of its device: latencies are fitted, by relative error, as a sum of time per multiply-add, per
byte of weights, per byte of feature maps, and per layer. The largest term of a layer is what bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.array_types import Floats
from harness.lut.learning import training_examples
from harness.lut.table import Entry, Lut
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures

BoundName = Literal["arithmetic", "weights", "features", "start"]
_NAMES: tuple[BoundName, ...] = ("arithmetic", "weights", "features", "start")
_MULTIPLIES = "mac/"
_FEWEST = 8
"""Layers below which no rates are fitted."""
_MOST = 2000
"""Entries that the rates are fitted to: enough for four numbers."""


@dataclass(frozen=True)
class LayerWork:
    """The multiply-adds of a layer, None for operators without; the bytes it moves at least; and what bounds it.

    `bound` is None if the table has too few layers to show the rates of its device.
    """

    macs: int | None
    moved_bytes: int
    bound: BoundName | None


@dataclass(frozen=True)
class DeviceRates:
    """Seconds per multiply-add, byte of weights, byte of feature maps, and layer; None of a table of few layers."""

    seconds: Floats | None

    @classmethod
    def of(cls, table: Lut) -> DeviceRates:
        """Return the rates that a table shows."""
        step = -(-len(table.entries) // _MOST) or 1
        examples = tuple(training_examples(table.entries[::step]))
        if len(examples) < _FEWEST:
            return cls(None)
        from scipy.optimize import nnls  # takes longer to load than a command to estimate

        latency_s = np.array([one.latency_s for one in examples])
        terms = np.array([_terms(one.layer) for one in examples]) / latency_s[:, None]
        scale = np.maximum(np.linalg.norm(terms, axis=0), np.finfo(float).tiny)
        found, _ = nnls(terms / scale, np.ones(len(examples)))
        return cls(np.asarray(found / scale))

    def works(self, layers: Sequence[tuple[str, str]]) -> tuple[LayerWork | None, ...]:
        """Return the work of layers by the text of their key and their context; None for keys of other versions."""
        return tuple(self._work(describe(signature, context)) for signature, context in layers)

    def _work(self, layer: LayerFeatures | None) -> LayerWork | None:
        if layer is None:
            return None
        terms = _terms(layer)
        macs = int(terms[0]) if layer.operator.startswith(_MULTIPLIES) else None
        bound = None if self.seconds is None else _NAMES[int(np.argmax(self.seconds * np.array(terms)))]
        return LayerWork(macs, layer.moved_bytes, bound)


def entry_works(table: Lut, entries: Sequence[Entry]) -> tuple[LayerWork | None, ...]:
    """Return the work of entries of a table."""
    return DeviceRates.of(table).works([(entry.signature, entry.context) for entry in entries])


def _terms(layer: LayerFeatures) -> tuple[float, float, float, float]:
    macs = layer.macs if layer.operator.startswith(_MULTIPLIES) else 0
    return float(macs), float(layer.weight_bytes), float(layer.moved_bytes - layer.weight_bytes), 1.0
