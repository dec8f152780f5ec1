"""Measured layers to train on, and predictions for layers left out of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints
from harness.predictor.bounds import bounds_of
from harness.predictor.features.layer_arrays import LayerArrays, index_of
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.feature_matrix import FeatureMatrix, feature_matrix
from harness.predictor.roofline.roofline import Roofline
from harness.predictor.roofline.roofline_fit import fit_roofline
from harness.predictor.trees import Corrector, grow_voting, no_trees
from harness.predictor.uncertainty.coverage import Coverage, hull_of
from harness.predictor.uncertainty.intervals import Residuals

FOLDS = 5
"""Parts that layers are held out in; networks stay whole."""
LEAST_FOR_TREES = 16
_LEAST_LEFT = 20
_LEAST_JUDGED = 10
_EXTREME_SHARE = 0.1
_CAP = 0.5
_VAGUE = 0.5
"""The noise above which a layer shows no error of a prediction."""
_JUDGED_SHARE = 0.6
"""The share of layers that a way must be able to learn from: each part leaves fewer than all of them."""

Grow = Callable[[FeatureMatrix, Floats, int], Corrector]
WAYS: Mapping[str, Grow] = {"none": no_trees, "voting": grow_voting}
"""The ways of correcting a roofline."""


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions for layers that were left out of training, one entry per layer.

    `errors` are log latency - log prediction by way of correcting, and `spread` likewise, for the ways tried for a
    layer's operator; `beyond` and `classes` are those of `Hull.locate`.
    """

    arrays: LayerArrays
    latency_s: Floats
    errors: Mapping[str, Floats]
    spread: Mapping[str, Floats]
    classes: Sequence[Coverage]
    beyond: Floats

    def residuals(self, ways: Mapping[str, str]) -> Residuals:
        """Return the residuals with each operator corrected in its own way."""
        chosen = [(ways[operator], place) for place, operator in enumerate(self.arrays.operators)]
        spread, errors = (np.array([by[way][place] for way, place in chosen]) for by in (self.spread, self.errors))
        predicted_s = self.latency_s / np.exp(errors)
        return Residuals(self.arrays.operators, tuple(self.classes), np.abs(errors), spread, self.beyond, predicted_s)


@dataclass(frozen=True)
class Training:
    """Measured layers with the tiling of their device.

    `latency_s` and `noise`, the relative standard error, are (layers,); `sources` names the networks of each.
    """

    arrays: LayerArrays
    latency_s: Floats
    noise: Floats
    sources: tuple[frozenset[str], ...]
    tiling: DeviceTiling
    seed: int

    def roofline(self) -> tuple[Roofline, FeatureMatrix, Floats]:
        """Return the roofline of all layers, their features, and logarithms of latency over roofline."""
        roofline = fit_roofline(self.arrays, self.latency_s, self.tiling, noise=self.noise)
        columns, terms = feature_matrix(self.arrays, roofline)
        return roofline, columns, np.log(self.latency_s) - terms.latency

    def take(self, index: Ints) -> Training:
        """Return the layers at these positions."""
        sources = tuple(self.sources[place] for place in index)
        known = (self.latency_s[index], self.noise[index], sources)
        return Training(self.arrays.take(index), *known, self.tiling, self.seed)

    def held_out(self, part: Ints, tried: Mapping[str, Sequence[str]]) -> HeldOutPredictions:
        """Train on all other layers and predict those of a part, in the ways `tried` for each operator.

        Layers that are measured too badly to show an error are not among them, unless all are.
        """
        train = self.take(np.setdiff1d(np.arange(len(self.arrays)), part))
        is_clear = self.noise[part] <= _VAGUE
        is_clear |= not is_clear.any()
        index = part[is_clear]
        roofline, columns, log_ratio = train.roofline()
        test = self.arrays.take(index)
        test_columns, terms = feature_matrix(test, roofline)
        errors = {name: np.log(self.latency_s[index]) - terms.latency for name in WAYS}
        spread = {name: np.zeros(index.size) for name in WAYS}
        for operator in sorted(set(test.operators)):
            own, asked = index_of(train.arrays, operator), index_of(test, operator)
            for name in ways_for(own.size, tried[operator]):
                found = WAYS[name](columns[own], log_ratio[own], self.seed).correct(test_columns[asked])
                errors[name][asked] -= found.log_ratio
                spread[name][asked] = found.spread
        with np.errstate(divide="ignore"):  # a view has no least latency
            low, high = np.log(np.stack(bounds_of(train.arrays, train.latency_s, train.noise).of(test)))
        known = np.log(self.latency_s[index])
        errors = {name: known - np.clip(known - error, low, high) for name, error in errors.items()}
        hull = hull_of(train.arrays, tuple(sorted(set(train.arrays.operators))))
        return HeldOutPredictions(test, self.latency_s[index], errors, spread, *hull.locate(test))

    def networks(self) -> list[Ints]:
        """Return the layers of whole networks to hold out, as for the prediction of a new network.

        Networks are held out in at most `FOLDS` groups of about as many layers. Groups that leave too few layers to
        learn from are not among them.
        """
        sizes = Counter(name for sources in self.sources for name in sources)
        groups: list[list[str]] = [[] for _ in range(min(FOLDS, len(sizes)))]
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            min(groups, key=lambda group: sum(sizes[other] for other in group)).append(name)
        parts = []
        for group in groups:
            parts.append(np.flatnonzero([not sources.isdisjoint(group) for sources in self.sources]))
        return [part for part in parts if len(self.arrays) - part.size >= _LEAST_LEFT]

    def folds(self) -> list[Ints]:
        """Return the layers of no network in `FOLDS` random parts; all layers where no network can be held out."""
        alone = not self.networks()
        loose = np.flatnonzero([alone or not sources for sources in self.sources])
        order = np.random.default_rng(self.seed).permutation(loose)
        parts = [np.sort(order[place::FOLDS]) for place in range(FOLDS)]
        return [part for part in parts if part.size]

    def extremes(self) -> list[Ints]:
        """Return the smallest and largest layers by pixels, output channels and depth, as for extrapolation."""
        parts = []
        for column in (
            self.arrays.rows,
            self.arrays.sizes["out_channels"],
            self.arrays.group_channels * self.arrays.taps,
        ):
            low, high = np.quantile(column, [_EXTREME_SHARE, 1.0 - _EXTREME_SHARE])
            index = np.flatnonzero((column < low) | (column > high))
            if index.size:
                parts.append(index)
        return parts


def ways_for(layers: int, asked: Sequence[str]) -> list[str]:
    """Return which of the asked ways of growing trees can learn from so many layers of an operator."""
    return [name for name in asked if name != "none" and layers >= LEAST_FOR_TREES]


def best_way(folds: Sequence[HeldOutPredictions], operator: str) -> str:
    """Return the way of correcting with the least mean error on held-out layers; outliers count up to a cap."""
    own = [index_of(fold.arrays, operator) for fold in folds]
    if sum(index.size for index in own) < _LEAST_JUDGED:
        return "none"

    def mean_error(name: str) -> float:
        errors = np.concatenate([fold.errors[name][index] for fold, index in zip(folds, own, strict=True)])
        return float(np.mean(np.minimum(np.abs(errors), _CAP)))

    tried = ["none", *ways_for(round(_JUDGED_SHARE * sum(index.size for index in own)), tuple(WAYS))]
    return min(tried, key=mean_error)
