"""Predictions for layers that were never measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.errors import LutCorrupt, UsageError
from harness.predictor.features.layer_arrays import LayerArrays, layer_arrays
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.feature_matrix import FeatureMatrix, feature_matrix
from harness.predictor.roofline.weight_loads import WeightLoads
from harness.predictor.stored_parameters import OtherVersion
from harness.predictor.stored_trees import read_predictor
from harness.predictor.trees import Corrections
from harness.predictor.uncertainty.coverage import Coverage, operator_index
from harness.predictor.uncertainty.network_errors import LayerPrediction

_BUILD_AGAIN = (
    "Build the table again from its journal: harness lut build --device NAME. Without one, measure the device again"
)
_OTHER_VERSION = "The predictor of this table is of another version of harness"


class Predictor:
    """A predictor in its stored form, which it predicts with."""

    def __init__(self, content: bytes) -> None:
        """Load the bytes of a predictor's file; raises LutCorrupt if they are not a predictor."""
        try:
            self._parameters, self._trees = read_predictor(content)
        except OtherVersion as error:
            raise LutCorrupt(_OTHER_VERSION, why=str(error), next_step=_BUILD_AGAIN) from error
        except ValueError as error:
            raise _corrupt(str(error)) from error
        self.content = content

    @property
    def operators(self) -> tuple[str, ...]:
        """The learnt operators."""
        return self._parameters.hull.operators

    @property
    def tiling(self) -> DeviceTiling:
        """The device's tiling, as found from the data."""
        return self._parameters.roofline.tiling

    def knows(self, layers: Sequence[LayerFeatures]) -> tuple[bool, ...]:
        """Return whether the operator of each layer was learnt; no other is predicted."""
        return tuple(self._parameters.hull.knows([layer.operator for layer in layers]).tolist())

    def predict(self, layer: LayerFeatures) -> LayerPrediction:
        """Predict the latency of one layer; raises UsageError if its operator was never learnt."""
        return self.predict_all([layer])[0]

    def predict_all(self, layers: Sequence[LayerFeatures]) -> tuple[LayerPrediction, ...]:
        """Predict the latencies of many layers, much faster than one by one.

        Raises UsageError if the operator of one was never learnt: nothing is known of its latency.
        """
        if not layers:
            return ()
        for layer, known in zip(layers, self.knows(layers), strict=True):
            if not known:
                what = f"The predictor has no training data for {layer.operator}"
                raise UsageError(what, next_step="Measure layers of this operator")
        try:
            with np.errstate(all="ignore"):
                found = self._predictions(layers)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _corrupt(f"its parts do not fit each other ({type(error).__name__})") from error
        # An interval may reach to infinity.
        if not all(math.isfinite(one.latency_s) and one.low_s <= one.latency_s <= one.high_s for one in found):
            raise _corrupt("it predicts a value that is not a latency")
        return found

    def _predictions(self, layers: Sequence[LayerFeatures]) -> tuple[LayerPrediction, ...]:
        known = self._parameters
        arrays = known.roofline.tiling.described(layer_arrays(layers))
        columns, terms = feature_matrix(arrays, known.roofline)
        fix = self.corrections(arrays, columns)
        classes, beyond = known.hull.locate(arrays)
        low, high = np.log(np.stack(known.bounds.of(arrays)))
        free = terms.latency + fix.log_ratio
        log_latency = np.clip(free, low, high)
        moved = (log_latency != free) & ~known.bounds.moves_nothing(arrays)
        classes = [Coverage.OUTSIDE if is_moved else place for is_moved, place in zip(moved, classes, strict=True)]
        asked = (fix.spread, beyond, np.exp(log_latency))
        half_width = known.calibration.half_widths(arrays.operators, classes, *asked)
        errors = known.calibration.errors(arrays.operators, *asked)
        ends = (log_latency, log_latency - half_width, log_latency + half_width)
        figures = np.exp(np.stack([*ends, np.minimum(terms.weights, log_latency)]))
        return tuple(
            LayerPrediction(latency_s, low_s, high_s, place, operator, error, loads_s)
            for (latency_s, low_s, high_s, loads_s), place, operator, error in zip(
                figures.T.tolist(), classes, arrays.operators, errors.tolist(), strict=True
            )
        )

    def weight_loads(self, layers: Sequence[LayerFeatures]) -> WeightLoads:
        """Return the loads of weights of a network's layers, in their order."""
        roofline = self._parameters.roofline
        return WeightLoads.of(roofline, roofline.tiling.described(layer_arrays(layers)))

    def corrections(self, arrays: LayerArrays, columns: FeatureMatrix) -> Corrections:
        """Return the trees' corrections for layers of learnt operators with these features."""
        return self._trees.correct(operator_index(self.operators, arrays), columns)


def _corrupt(why: str) -> LutCorrupt:
    return LutCorrupt(
        "This file is not a predictor",
        why=why,
        next_step=_BUILD_AGAIN,
    )
