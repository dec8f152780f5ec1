"""Layers of a network as the table lists them, or predicted, and their sum."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.array_types import Floats
from harness.lut.neighbourhoods import ClassValue, Neighbourhoods
from harness.lut.table import Entry, Lut
from harness.network.chain_rules import OrderedLayer
from harness.network.keyed_network import KeyedLayer, KeyedNetwork
from harness.network.layer_flows import Chained
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import NORMAL_90
from harness.predictor.uncertainty.network_errors import LayerPrediction, stderr_of_sum

PREDICTED = ("interpolated", "extrapolated")
MOSTLY = 0.5
"""A network with more than this share of cold weights has the coverage of its cold layers."""
_Values = TypeVar("_Values", float, Floats)


@dataclass(frozen=True)
class LayerEstimate:
    """One layer of a network; latency and error are None if it is neither measured nor predicted.

    `context` is where the layer's inputs come from: one key has a latency for each context. The network's latency is
    the sum of `remainder_s`, the latencies before they were made positive, which may be negative within their errors.
    """

    name: str
    op: str
    key: str
    latency_s: float | None
    stderr_s: float | None
    source: str
    context: str = ""
    remainder_s: float | None = None

    def times(self, factor: float) -> LayerEstimate:
        """Return the layer where it takes `factor` times as long."""
        figures = (self.latency_s, self.stderr_s, self.remainder_s)
        latency_s, stderr_s, remainder_s = (None if one is None else factor * one for one in figures)
        return replace(self, latency_s=latency_s, stderr_s=stderr_s, remainder_s=remainder_s)

    def share_of(self, whole_s: float) -> float:
        """Return the part of a network's latency that the layer takes, 0 where nothing is known."""
        return max(0.0, self.remainder_s or 0.0) / whole_s if whole_s > 0 else 0.0


@dataclass(frozen=True)
class LookedUp:
    """The estimate of a layer and what it comes from: the table, or a prediction; neither if the layer is unknown."""

    estimate: LayerEstimate
    known: Entry | ClassValue | None = None
    predicted: PredictedLayer | None = None


@dataclass(frozen=True)
class LayerSum:
    """The layers of a network, the sum of what is known of their latencies, and its variance.

    The variance is that of errors which belong to layers, not to the whole network. During `loads_s`, predicted layers
    keep the memory busy with their weights.
    """

    estimates: tuple[LayerEstimate, ...]
    latency_s: float
    variance_s2: float
    loads_s: float

    @classmethod
    def of(cls, layers: Sequence[LookedUp], table: Lut) -> LayerSum:
        """Add up layers; a layer that several others share has one error."""
        found = [one.known for one in layers if one.known is not None]
        plain = (entry for entry in found if isinstance(entry, Entry) and "@" not in entry.context)
        aside_s = sum(entry.remainder_s for entry in plain if table.is_displaced(entry.key))
        variance_s2 = _variance(table, found)
        predicted = [one.predicted for one in layers if one.predicted is not None]
        variance_s2 += stderr_of_sum([one.layer for one in predicted], [one.prediction for one in predicted]) ** 2
        if predicted:  # the predictor is loaded only for layers that need it
            variance_s2 += (table.chain_error * sum(one.latency_s for one in predicted)) ** 2
        # The displacement of large tables takes long.
        variance_s2 += (table.displacement * aside_s) ** 2 if aside_s else 0.0
        estimates = tuple(one.estimate for one in layers)
        latency_s = sum(one.remainder_s for one in estimates if one.remainder_s is not None)
        loads_s = sum(one.prediction.loads_s for one in predicted)
        return cls(estimates, latency_s, variance_s2, loads_s)

    def mixed(self, cold: LayerSum, share: float) -> LayerSum:
        """Return the sum of a network that is cold by this share, and warm, as these layers are, by the rest."""
        mean_s, variance_s2 = mixture(share, (self.latency_s, self.variance_s2), (cold.latency_s, cold.variance_s2))
        pairs = zip(self.estimates, cold.estimates, strict=True)
        loads_s = self.loads_s + share * (cold.loads_s - self.loads_s)
        return LayerSum(tuple(_mixed(one, other, share) for one, other in pairs), mean_s, variance_s2, loads_s)

    def times(self, factor: float) -> LayerSum:
        """Return the layers of a machine on which each takes `factor` times as long."""
        if factor == 1:
            return self
        estimates = tuple(one.times(factor) for one in self.estimates)
        return LayerSum(estimates, factor * self.latency_s, factor**2 * self.variance_s2, factor * self.loads_s)


def mixture(share: _Values, warm: tuple[_Values, _Values], cold: tuple[_Values, _Values]) -> tuple[_Values, _Values]:
    """Return mean and variance of what is cold by `share`, from means and variances of both states.

    Only the mean of the share is known: one half stands for anything from nothing to all.
    """
    (warm_s, warm_s2), (cold_s, cold_s2) = warm, cold
    apart_s = cold_s - warm_s
    return warm_s + share * apart_s, (1.0 - share) * (warm_s2 + share * apart_s**2 / 3.0) + share * cold_s2


def sum_of_layers(network: KeyedNetwork, table: Lut) -> LayerSum:
    """Return the layers of a network that was cut by the table's fusion rules, and their sum.

    Layers without an entry are predicted if the table has a predictor and their keys can be parsed. On a processor they
    are predicted twice, warm and cold.
    """
    layers = look_up(network, table, is_warm=table.cache_bytes is not None)
    found = LayerSum.of(_loaded_ahead(network.layers, layers, table), table)
    if table.cache_bytes is None or all(one.predicted is None for one in layers):
        return found
    share = table.cold_share(network.weight_bytes, found.latency_s)
    cold = _loaded_ahead(network.layers, look_up(network, table, is_warm=False), table)
    return found.mixed(LayerSum.of(cold, table), share)


def _mixed(warm: LayerEstimate, cold: LayerEstimate, share: float) -> LayerEstimate:
    if warm.source not in PREDICTED:
        return warm
    states = ((one.latency_s or 0.0, (one.stderr_s or 0.0) ** 2) for one in (warm, cold))
    latency_s, variance_s2 = mixture(share, *states)
    nearer = cold if share > MOSTLY else warm
    return replace(nearer, latency_s=latency_s, stderr_s=math.sqrt(variance_s2), remainder_s=latency_s)


def look_up(network: KeyedNetwork, table: Lut, *, is_warm: bool) -> tuple[LookedUp, ...]:
    """Find or predict each layer of a network; `is_warm` is whether layers find their weights in the caches.

    Predicted layers load their weights in full.
    """
    layers = network.layers
    found = _find(layers, table)
    missing = [layer for layer, known in zip(layers, found, strict=True) if known is None]
    predicted = _predicted(table, missing, is_warm)
    return tuple(
        _missing(layer, predicted.get((layer.key.digest, layer.context)))
        if known is None
        else LookedUp(_measured(layer, known) if isinstance(known, Entry) else _in_class(layer, known, table), known)
        for layer, known in zip(layers, found, strict=True)
    )


def features_of(layer: KeyedLayer, found: LookedUp) -> LayerFeatures | None:
    """Return the features of a layer that decide about the loads of weights; None if its key cannot be parsed."""
    return describe(layer.key.text, layer.context) if found.predicted is None else found.predicted.layer


def _loaded_ahead(layers: Sequence[KeyedLayer], found: Sequence[LookedUp], table: Lut) -> tuple[LookedUp, ...]:
    """Return layers without the loads of weights that layers before predicted ones hide.

    The values of measured layers are those in their chains. Errors of predictions stay as large.
    """
    if all(one.predicted is None for one in found) or table.loaded_predictor is None or not table.weights_ahead:
        return tuple(found)
    features = [features_of(layer, one) for layer, one in zip(layers, found, strict=True)]
    loads = table.loaded_predictor.weight_loads([one for one in features if one is not None])
    shares = iter(loads.left(table.weights_ahead).tolist())
    left = [1.0 if one is None else next(shares) for one in features]
    return tuple(
        one if one.predicted is None else replace(one, estimate=_shorter(one.estimate, share))
        for one, share in zip(found, left, strict=True)
    )


def _shorter(layer: LayerEstimate, share: float) -> LayerEstimate:
    if layer.latency_s is None or layer.remainder_s is None or share >= 1.0:
        return layer
    return replace(layer, latency_s=share * layer.latency_s, remainder_s=share * layer.remainder_s)


def _missing(layer: KeyedLayer, predicted: PredictedLayer | None) -> LookedUp:
    if predicted is None:
        return LookedUp(LayerEstimate(layer.name, layer.op, layer.key.digest, None, None, "unknown", layer.context))
    known = (predicted.latency_s, predicted.stderr_s, predicted.source, layer.context, predicted.latency_s)
    return LookedUp(LayerEstimate(layer.name, layer.op, layer.key.digest, *known), predicted=predicted)


def _measured(layer: KeyedLayer, entry: Entry) -> LayerEstimate:
    known = (entry.latency_s, entry.stderr_s, "measured", entry.context, entry.remainder_s)
    return LayerEstimate(layer.name, layer.op, layer.key.digest, *known)


def _in_class(layer: KeyedLayer, known: ClassValue, table: Lut) -> LayerEstimate:
    """Return a layer in an unknown neighbourhood, with its class in place of the digest of the neighbourhood."""
    stderr_s = math.sqrt(table.variance(known.weights) + known.spread_s**2)
    near = f"{layer.context}@{known.neighbourhood}"
    return LayerEstimate(
        layer.name, layer.op, layer.key.digest, known.latency_s, stderr_s, "measured", near, known.latency_s
    )


def _find(layers: Sequence[KeyedLayer], table: Lut) -> list[Entry | ClassValue | None]:
    """Return what the table has of each layer: in its neighbourhood, else in the class of that, else in any context."""
    exact = [table.at(layer.key.digest, layer.place) for layer in layers]
    known: Sequence[ClassValue | None] = [None] * len(layers)
    if None in exact and table.neighbourhoods is not None:
        known = class_values(layers, table.neighbourhoods)
    return [
        entry or value or table.find(layer.key.digest, (layer.place, layer.context))
        for entry, value, layer in zip(exact, known, layers, strict=True)
    ]


def _variance(table: Lut, found: Sequence[Entry | ClassValue]) -> float:
    """Return the variance of a sum: a repeated entry has one error, others correlate as the table states."""
    counts: dict[int, float] = defaultdict(float)
    spread = 0.0
    for known in found:
        weights = {table.index_of(known): 1.0} if isinstance(known, Entry) else known.weights
        for at, weight in weights.items():
            counts[at] += weight
        spread += 0.0 if isinstance(known, Entry) else known.spread_s**2
    return (table.variance(counts) if counts else 0.0) + spread


def class_values(layers: Sequence[KeyedLayer], known: Neighbourhoods) -> list[ClassValue | None]:
    """Return the value of each layer in the class of its neighbourhood; None where the table lacks its key.

    Layers that take no time on the device are in no chain and have no value here: their entries hold in any
    neighbourhood.
    """
    views = [place for place, layer in enumerate(layers) if layer.key.digest in known.views]
    chained = Chained([layer.flow for layer in layers], views)
    order = [place for place in range(len(layers)) if place not in chained.views]
    in_order = [
        OrderedLayer(
            layers[place].key.digest,
            layers[place].op,
            chained.result_bytes(place),
            chained.weight_bytes(place),
            at > 0 and chained.reads(place, order[at - 1]),
        )
        for at, place in enumerate(order)
    ]
    found: list[ClassValue | None] = [None] * len(layers)
    for chain in known.rules.chains(in_order):
        group = [order[at] for at in chain]
        for place, borders in zip(group, chained.borders(group), strict=True):
            key = layers[place].key.digest
            found[place] = known.find(key, borders.read_bytes, borders.written_bytes)
    return found


@dataclass(frozen=True)
class PredictedLayer:
    """A layer's features and their prediction."""

    layer: LayerFeatures
    prediction: LayerPrediction

    @property
    def latency_s(self) -> float:
        """The predicted latency."""
        return self.prediction.latency_s

    @property
    def stderr_s(self) -> float:
        """Half the interval in standard errors; an interval beyond a factor of two has no more meaning than that."""
        return min((self.prediction.high_s - self.prediction.low_s) / 2 / NORMAL_90, self.latency_s)

    @property
    def source(self) -> str:
        """Whether measured layers surround the layer."""
        return "extrapolated" if self.prediction.coverage == Coverage.OUTSIDE else "interpolated"


def _predicted(table: Lut, layers: Sequence[KeyedLayer], is_warm: bool) -> Mapping[tuple[str, str], PredictedLayer]:
    """Return the predictions for layers that can be predicted, by key digest and context.

    In a table of mostly warm layers, a layer without weights that reads or writes bytes always counts as warm: maps of
    bytes stay in the caches even of networks whose weights do not. So do all activations of a network if pools of
    probes read theirs from memory.
    """
    if not layers or (predictor := table.loaded_predictor) is None:  # it is loaded only for layers that need it
        return {}
    cold_weights = not is_warm and table.has_cold_activations
    is_warm = is_warm or cold_weights
    is_warm_on_bytes = is_warm or table.is_mostly_warm
    texts = {(layer.key.digest, layer.context): layer.key.text for layer in layers}
    described = {place: describe(text, place[1]) for place, text in texts.items()}
    known = {
        place: replace(features, warm=is_warm_on_bytes if _only_bytes(features) else is_warm, cold_weights=cold_weights)
        for place, features in described.items()
        if features is not None
    }
    learnt = zip(list(known), predictor.knows(list(known.values())), strict=True)
    known = {place: known[place] for place, is_learnt in learnt if is_learnt}
    predictions = predictor.predict_all(list(known.values()))
    return {
        place: PredictedLayer(features, prediction)
        for (place, features), prediction in zip(known.items(), predictions, strict=True)
        if 0 < prediction.latency_s < math.inf
    }


def _only_bytes(layer: LayerFeatures) -> bool:
    on_bytes = layer.element_bytes == 1 or layer.operator.split("/")[2].endswith("-int8")
    return on_bytes and not layer.weight_elements
