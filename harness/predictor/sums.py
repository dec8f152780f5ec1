"""The uncertainty of a sum of predictions: what several layers of a network are off by together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.predictor import LayerPrediction
from harness.predictor.uncertainty.intervals import NORMAL_90

_WIDEST = 1.0


def stderr_of_sum(layers: Sequence[LayerFeatures], predictions: Sequence[LayerPrediction]) -> float:
    """Standard error in seconds of the sum of predictions for the layers of one network.

    A layer that occurs again errs the same way again; different layers of an operator share
    `LayerPrediction.shared` of their variance. An interval wider than a factor of e either way counts as that.
    """
    counts = Counter(layers)
    shared_s: dict[str, float] = defaultdict(float)
    own = 0.0
    for layer, found in dict(zip(layers, predictions, strict=True)).items():
        total_s = counts[layer] * _stderr_s(found)
        shared_s[found.operator] += math.sqrt(found.shared) * total_s
        own += (1.0 - found.shared) * total_s**2
    return math.sqrt(own + sum(value**2 for value in shared_s.values()))


def _stderr_s(found: LayerPrediction) -> float:
    half_width = math.log(found.high_s / found.low_s) / 2.0 if found.low_s > 0.0 else math.inf
    return found.latency_s * min(half_width, _WIDEST) / NORMAL_90
