"""Hypotheses about latency over a space, and where they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.predictor.features.layer_arrays import Floats
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.predictor import Predictor

TREES = 48
_FEATURES_TRIED = 0.5
_TREND_PULL = 0.1
_WIDTHS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Opinion:
    """What is believed of some layers: logarithms of seconds, and of how much the hypotheses differ, (layers,)."""

    log_latency: Floats
    disagreement: Floats


class Hypotheses(Protocol):
    """What was learnt from measured layers."""

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """The best guess for some layers and the disagreement about it."""


@dataclass(frozen=True)
class Trees:
    """Trees with random thresholds on the rest that a power law of work and bytes leaves; they know of no steps.

    Where a step lies between two measured layers, every tree puts it elsewhere: they disagree right there, and
    a layer measured there halves the range in which the step may be.
    """

    operators: tuple[str, ...]
    trend: Floats
    forest: Any

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """Median of the trees, and the standard deviation of their votes."""
        columns = _columns(layers, self.operators)
        votes = np.stack([tree.predict(columns) for tree in self.forest.estimators_], axis=1)
        return Opinion(_trend_columns(layers) @ self.trend + np.median(votes, axis=1), votes.std(axis=1))


@dataclass(frozen=True)
class Committee:
    """The predictor that a table would get from these layers, which knows of steps, and the trees, which do not."""

    predictor: Predictor
    trees: Trees

    def opinion(self, layers: Sequence[LayerFeatures]) -> Opinion:
        """The predictor's word; the trees disagree among each other and with it."""
        said = np.log([each.latency_s for each in self.predictor.predict_all(layers)])
        other = self.trees.opinion(layers)
        return Opinion(said, np.hypot(other.disagreement, said - other.log_latency))


def learn_committee(samples: Sequence[TrainingExample], seed: int) -> Committee:
    """The committee of some measured layers; raises UsageError where they are too few for a predictor."""
    return Committee(fit_predictor(samples, seed=seed), learn_trees(samples, seed))


def learn_trees(samples: Sequence[TrainingExample], seed: int) -> Trees:
    """The trees alone, in a fraction of a second."""
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


def places_of(layers: Sequence[LayerFeatures]) -> Floats:
    """Layers as places whose axes are doublings of their sizes, operators far apart, (layers, axes)."""
    sizes = [
        (
            layer.batch, layer.in_channels, layer.out_channels, *layer.out_size, layer.taps**2, layer.stride[0] ** 2,
            layer.groups, 1 + layer.extra_operands,
        )
        for layer in layers
    ]  # fmt: skip
    known = {name: float(place) for place, name in enumerate(sorted({layer.operator for layer in layers}))}
    apart = np.array([[16.0 * known[layer.operator]] for layer in layers])
    return np.hstack([np.log2(np.array(sizes, dtype=np.float64)), apart])


def _trend_columns(layers: Sequence[LayerFeatures]) -> Floats:
    logs = np.log([(layer.macs, layer.moved_bytes, layer.rows) for layer in layers])
    return np.hstack([np.ones((len(layers), 1)), logs])


def _columns(layers: Sequence[LayerFeatures], operators: tuple[str, ...]) -> NDArray[np.float32]:
    """Sizes and what follows from them in doublings, shares of tiles that are filled, operators as flags."""
    sizes = np.array([_sizes(layer) for layer in layers], dtype=np.float64)
    filled = [sizes[:, [axis]] / (np.ceil(sizes[:, [axis]] / width) * width) for axis in range(4) for width in _WIDTHS]
    flags = np.array([[layer.operator == name for name in operators] for layer in layers], dtype=np.float64)
    intensity = np.array([[np.log2(layer.macs / layer.moved_bytes)] for layer in layers])
    return np.hstack([np.log2(sizes), *filled, intensity, flags]).astype(np.float32)


def _sizes(layer: LayerFeatures) -> tuple[int, ...]:
    depth = layer.in_channels // layer.groups * layer.taps
    return (
        layer.in_channels, layer.out_channels, layer.out_size[0], layer.out_size[1], layer.batch, *layer.kernel,
        *layer.stride, layer.groups, 1 + layer.extra_operands, layer.rows, depth, layer.macs, layer.in_bytes,
        layer.out_bytes, 1 + layer.weight_bytes, layer.moved_bytes,
    )  # fmt: skip
