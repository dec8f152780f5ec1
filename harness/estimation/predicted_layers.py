"""Layers that the table lacks, predicted from its other layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.network.keyed_network import KeyedLayer
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.predictor import Predictor
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import NORMAL_90
from harness.predictor.uncertainty.network_errors import LayerPrediction, stderr_of_sum


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


def predict_layers(
    predictor: Predictor, layers: Sequence[KeyedLayer], is_warm: bool, is_warm_on_bytes: bool
) -> dict[tuple[str, str], PredictedLayer]:
    """Return the predictions for layers that can be predicted, by key digest and context.

    A layer counts as warm by `is_warm`; one without weights that reads or writes bytes by `is_warm_on_bytes`, because
    maps of bytes stay in the caches of networks whose weights do not.
    """
    texts = {(layer.key.digest, layer.context): layer.key.text for layer in layers}
    described = {place: describe(text, place[1]) for place, text in texts.items()}
    known = {
        place: replace(features, warm=is_warm_on_bytes if _only_bytes(features) else is_warm)
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


def variance_of_sum(layers: Sequence[PredictedLayer]) -> float:
    """Return the variance in s² of the sum of predicted latencies."""
    return stderr_of_sum([one.layer for one in layers], [one.prediction for one in layers]) ** 2
