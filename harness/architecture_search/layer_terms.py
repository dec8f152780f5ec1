"""What the layers of a position add to an estimate: latency, coverage, and the errors that they share with others.

The variance of an estimate is a quadratic form of counts: how often each entry of the table, and each predicted layer,
occurs in the network. So the terms of layers hold counts, and `ErrorSources` the matrix of the form.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.estimation.layer_estimates import LookedUp, features_of
from harness.estimation.network_estimate import COVERAGE_CLASSES
from harness.lut.error_correlations import unpack
from harness.lut.table import Entry, Lut
from harness.network.keyed_network import KeyedLayer
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.roofline.weight_loads import WeightLoads
from harness.predictor.uncertainty.network_errors import LayerPrediction, covariance

_DISPLACED, _CHAINED = 0, 1
"""The sources of errors of entries that the table also lists in a neighbourhood, and of predictions; they count
seconds."""


@dataclass(frozen=True)
class Terms:
    """What some layers add to an estimate.

    `remainder_s` is the sum of the known layers. `spread_s2` is the variance that no other layer shares. `coverage`
    counts layers in the order of `COVERAGE_CLASSES`; `counts` are the numbers of sources of errors, and how often each
    occurs. `loads` are the layers in their order, where the device loads weights ahead: the number of each, and its
    latency if it is predicted, else 0. During `loads_s`, predicted layers keep the memory busy with their weights.
    """

    remainder_s: float
    spread_s2: float
    coverage: tuple[int, ...]
    counts: tuple[tuple[int, float], ...]
    loads: tuple[tuple[int, float], ...] = ()
    loads_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether each layer is measured or predicted."""
        return not self.coverage[COVERAGE_CLASSES.index("unknown")]


class ErrorSources:
    """The entries and predictions that estimates of a space use, numbered by their first use."""

    def __init__(self, table: Lut) -> None:
        self._table = table
        self._entries: dict[int, int] = {}
        self._predicted: dict[LayerFeatures, int] = {}
        self._predictions: dict[LayerFeatures, LayerPrediction] = {}
        self._loading: dict[LayerFeatures, int] = {}
        self._number = _CHAINED + 1

    def terms(self, layers: Iterable[tuple[KeyedLayer, LookedUp]]) -> Terms:
        """Return the terms of some layers of a network, in their order."""
        remainder_s = spread_s2 = loads_s = 0.0
        coverage: Counter[str] = Counter()
        counts: dict[int, float] = defaultdict(float)
        loads: list[tuple[int, float]] = []
        for keyed, layer in layers:
            known = layer.known
            coverage[layer.estimate.source] += 1
            if isinstance(known, Entry):
                remainder_s += known.remainder_s
                counts[self._of_entry(self._table.index_of(known))] += 1.0
                if "@" not in known.context and self._table.is_displaced(known.key):
                    counts[_DISPLACED] += known.remainder_s
            elif known is not None:
                remainder_s += known.latency_s
                spread_s2 += known.spread_s**2
                for entry, weight in known.weights.items():
                    counts[self._of_entry(entry)] += weight
            elif layer.predicted is not None:
                predicted = layer.predicted
                prediction = self._predictions.setdefault(predicted.layer, predicted.prediction)
                remainder_s += prediction.latency_s
                loads_s += prediction.loads_s
                counts[self._of_prediction(predicted.layer)] += 1.0
                if self._table.chain_error:
                    counts[_CHAINED] += prediction.latency_s
            loads += self._loads(keyed, layer)
        held = tuple(coverage[name] for name in COVERAGE_CLASSES)
        return Terms(remainder_s, spread_s2, held, tuple(sorted(counts.items())), tuple(loads), loads_s)

    def weight_loads(self) -> WeightLoads | None:
        """Return the loads of the layers by their numbers; None where they change no latency."""
        if self._table.loaded_predictor is None or not self._loading or not self._predicted:
            return None
        return self._table.loaded_predictor.weight_loads([*self._loading])

    def _loads(self, keyed: KeyedLayer, layer: LookedUp) -> Iterator[tuple[int, float]]:
        """Yield the number of a layer and its latency if it is predicted; nothing if no weights are loaded ahead."""
        features = features_of(keyed, layer) if self._table.weights_ahead else None
        if features is not None:
            latency_s = 0.0 if layer.predicted is None else self._predictions[features].latency_s
            yield self._loading.setdefault(features, len(self._loading)), latency_s

    def covariance(self) -> Floats:
        """Return the matrix of the quadratic form, in s²."""
        found = np.zeros((self._number, self._number))
        found[_DISPLACED, _DISPLACED] = self._table.displacement**2
        found[_CHAINED, _CHAINED] = self._table.chain_error**2 if self._predicted else 0.0
        if self._entries:
            at = np.array([*self._entries.values()])
            found[np.ix_(at, at)] = self._of_entries(np.array([*self._entries]))
        if self._predicted:
            at, layers = np.array([*self._predicted.values()]), [*self._predicted]
            found[np.ix_(at, at)] = covariance(layers, [self._predictions[layer] for layer in layers])
        return found

    def _of_entries(self, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        """Return the covariance of these entries."""
        table, count = self._table, len(self._table.entries)
        stderr_s = np.array([table.entries[index].remainder_stderr_s for index in at.tolist()])
        row, column = np.minimum.outer(at, at), np.maximum.outer(at, at)
        correlation = np.eye(len(at))
        if table.correlations:
            start = row * (count - 1) - row * (row - 1) // 2
            between = row != column
            correlation[between] = unpack(table.correlations, count)[(start + column - row - 1)[between]]
        found: Floats = correlation * np.outer(stderr_s, stderr_s)
        return found

    def _of_entry(self, index: int) -> int:
        if index not in self._entries:
            self._entries[index] = self._next()
        return self._entries[index]

    def _of_prediction(self, layer: LayerFeatures) -> int:
        if layer not in self._predicted:
            self._predicted[layer] = self._next()
        return self._predicted[layer]

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
