"""Errors that similar layers share, and the standard error of a sum of predictions.

A predictor that is wrong about one layer of a network is wrong about a similar one for the same reason: a size it never
saw, a layout, a kernel of the device. Layers of one operator that were held out together show it: on a processor and on
an accelerator their errors correlate by 0.2 to 0.4 where sizes differ by less than a factor of 4, by 0.04 to 0.15 up to
a factor of 20, and not beyond.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.uncertainty.coverage import Coverage


@dataclass(frozen=True)
class LayerPrediction:
    """A latency, the interval that holds it with probability `intervals.LEVEL`, and its coverage.

    `operator` is the class that was learnt together. `error` is the relative standard error of the layer in a sum.
    `loads_s` is the part of the latency during which the layer loads weights.
    """

    latency_s: float
    low_s: float
    high_s: float
    coverage: Coverage
    operator: str
    error: float
    loads_s: float = 0.0


def covariance(layers: Sequence[LayerFeatures], predictions: Sequence[LayerPrediction]) -> Floats:
    """Return the covariance of the errors of different layers in s², (layers, layers).

    Those of an operator correlate by exp(-d), where d is the distance of their sizes in logarithms.
    """
    arrays = layer_arrays(layers)
    sizes = (arrays.rows, arrays.sizes["out_channels"], arrays.group_channels * arrays.taps, arrays.moved_bytes)
    squares = np.zeros((len(layers), len(layers)))
    for size in sizes:
        logs = np.log(np.maximum(size, 1.0))
        squares += np.subtract.outer(logs, logs) ** 2
    operators = np.unique([found.operator for found in predictions], return_inverse=True)[1]
    stderr_s = np.array([found.latency_s * found.error for found in predictions])
    alike = np.where(np.equal.outer(operators, operators), np.exp(-np.sqrt(squares)), 0.0)
    return np.asarray(alike * np.outer(stderr_s, stderr_s))


def stderr_of_sum(layers: Sequence[LayerFeatures], predictions: Sequence[LayerPrediction]) -> float:
    """Return the standard error in seconds of the sum of predictions for the layers of one network.

    A repeated layer has the same error each time.
    """
    if not layers:
        return 0.0
    found = dict(zip(layers, predictions, strict=True))
    counts = Counter(layers)
    times = np.array([counts[layer] for layer in found], dtype=np.float64)
    return math.sqrt(times @ covariance(list(found), list(found.values())) @ times)
