"""Models of the latency over a space, and where they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Floats
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.predictor import Predictor

TREES = 48
_FEATURES_TRIED = 0.5
_TREND_PULL = 0.1
_WIDTHS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Opinion:
    """Predictions for layers: logarithms of seconds, and how much the models differ, each of shape (layers,)."""

    log_latency: Floats
    disagreement: Floats


class Hypotheses(Protocol):
    """Models trained on measured layers."""

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """Return the predictions for layers, and the disagreement of the models."""


@dataclass(frozen=True)
class Trees:
    """Trees with random thresholds, fitted to the residuals of a power law of work and bytes; they do not model steps.

    If a step lies between two measured layers, every tree places it elsewhere. The trees disagree there, and a layer
    measured there halves the range in which the step may lie.
    """

    operators: tuple[str, ...]
    trend: Floats
    forest: Any

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """Return the median of the trees, and the standard deviation of their votes."""
        columns = _columns(layers, self.operators)
        votes = np.stack([tree.predict(columns) for tree in self.forest.estimators_], axis=1)
        return Opinion(_trend_columns(layers) @ self.trend + np.median(votes, axis=1), votes.std(axis=1))


@dataclass(frozen=True)
class Committee:
    """The predictor that a table of these layers would get, which models steps, and the trees, which do not."""

    predictor: Predictor
    trees: Trees

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """Return the predictions of the predictor, and the disagreement of the trees with each other and with it."""
        predicted = np.log([each.latency_s for each in self.predictor.predict_all(layers)])
        other = self.trees.opinion(layers)
        return Opinion(predicted, np.hypot(other.disagreement, predicted - other.log_latency))


def learn_committee(samples: Sequence[TrainingExample], seed: int) -> Committee:
    """Train the committee on measured layers; raises UsageError if they are too few for a predictor."""
    return Committee(fit_predictor(samples, seed=seed), learn_trees(samples, seed))


def learn_trees(samples: Sequence[TrainingExample], seed: int) -> Trees:
    """Train the trees alone, which takes a fraction of a second."""
    from sklearn.ensemble import ExtraTreesRegressor

    layers = [sample.layer for sample in samples]
    log_latency = np.log([sample.latency_s for sample in samples])
    operators = tuple(sorted({layer.operator for layer in layers}))
    design = _trend_columns(layers)
    trend = np.linalg.solve(design.T @ design + _TREND_PULL * np.eye(design.shape[1]), design.T @ log_latency)
    forest = ExtraTreesRegressor(TREES, max_features=_FEATURES_TRIED, random_state=seed)
    return Trees(
        operators,
        np.asarray(trend, dtype=np.float64),
        forest.fit(_columns(layers, operators), log_latency - design @ trend),
    )


def points_of(layers: Sequence[LayerFeatures]) -> Floats:
    """Return layers as points whose axes count doublings of their sizes, operators far apart; shape (layers, axes)."""
    sizes = [
        (
            *(layer.batch, layer.in_channels, layer.out_channels),
            *(*layer.out_size, layer.taps**2, layer.stride[0] ** 2),
            *(layer.groups, 1 + layer.extra_operands),
        )
        for layer in layers
    ]
    known = {name: float(index) for index, name in enumerate(sorted({layer.operator for layer in layers}))}
    apart = np.array([[16.0 * known[layer.operator]] for layer in layers])
    return np.hstack([np.log2(np.array(sizes, dtype=np.float64)), apart])


def _trend_columns(layers: Sequence[LayerFeatures]) -> Floats:
    logs = np.log([(layer.macs, layer.moved_bytes, layer.rows) for layer in layers])
    return np.hstack([np.ones((len(layers), 1)), logs])


def _columns(layers: Sequence[LayerFeatures], operators: tuple[str, ...]) -> NDArray[np.float32]:
    """Sizes and derived figures as base-2 logarithms, filled shares of tiles, and operators as flags."""
    rows = [
        (
            *(layer.in_channels, layer.out_channels, *layer.out_size, layer.batch, *layer.kernel, *layer.stride),
            *(layer.groups, 1 + layer.extra_operands, layer.rows, layer.in_channels // layer.groups * layer.taps),
            *(layer.macs, layer.in_bytes, layer.out_bytes, 1 + layer.weight_bytes, layer.moved_bytes),
        )
        for layer in layers
    ]
    sizes = np.array(rows, dtype=np.float64)
    filled = [sizes[:, [axis]] / (np.ceil(sizes[:, [axis]] / width) * width) for axis in range(4) for width in _WIDTHS]
    flags = np.array([[layer.operator == name for name in operators] for layer in layers], dtype=np.float64)
    intensity = np.array([[np.log2(layer.macs / layer.moved_bytes)] for layer in layers])
    return np.hstack([np.log2(sizes), *filled, intensity, flags]).astype(np.float32)
