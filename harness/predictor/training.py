"""Measured layers to train on, and what comes out when some of them are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.predictor.features.layer_arrays import Floats, Ints, LayerArrays, index_of
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.feature_matrix import FeatureMatrix, feature_matrix
from harness.predictor.roofline.roofline_fit import Roofline, fit_roofline
from harness.predictor.trees import Corrector, grow_boosted, grow_voting, no_trees
from harness.predictor.uncertainty.coverage import Coverage, hull_of
from harness.predictor.uncertainty.intervals import Residuals

FOLDS = 10
JUDGED_FOLDS = 3
"""So many of the folds decide how each operator is corrected."""
LEAST_FOR_TREES = 20
_LEAST_JUDGED = 10
_EXTREME_SHARE = 0.1
_CAP = 0.5

Grow = Callable[[FeatureMatrix, Floats, int], Corrector]
WAYS: Mapping[str, Grow] = {"none": no_trees, "boosted": grow_boosted, "voting": grow_voting}
"""The ways of correcting a roofline."""


@dataclass(frozen=True)
class Part:
    """Positions of layers to hold out together, and the network that they are, if they are one."""

    index: Ints
    source: str = ""


@dataclass(frozen=True)
class HeldOut:
    """Predictions for layers that were left out of training, one entry per layer.

    `errors` are log latency - log prediction by way of correcting, `spread` likewise, for the ways that were
    tried for a layer's operator; `beyond` and `classes` are those of `Hull.locate`. `source` is the network
    that the layers were held out with, "" where they are random ones.
    """

    index: Ints
    work: LayerArrays
    latency_s: Floats
    source: str
    errors: Mapping[str, Floats]
    spread: Mapping[str, Floats]
    classes: Sequence[Coverage]
    beyond: Floats

    def residuals(self, ways: Mapping[str, str]) -> Residuals:
        """The residuals where each operator is corrected in its own way."""
        chosen = [(ways[operator], place) for place, operator in enumerate(self.work.operators)]
        spread = np.array([self.spread[way][place] for way, place in chosen])
        errors = self.signed(ways)
        predicted_s = self.latency_s / np.exp(errors)
        return Residuals(self.work.operators, tuple(self.classes), np.abs(errors), spread, self.beyond, predicted_s)

    def signed(self, ways: Mapping[str, str]) -> Floats:
        """log latency - log prediction where each operator is corrected in its own way."""
        return np.array([self.errors[ways[operator]][place] for place, operator in enumerate(self.work.operators)])


@dataclass(frozen=True)
class Training:
    """Measured layers with the steps of their device.

    `latency_s` and `noise`, the relative standard error, are (layers,); `sources` names the networks of each.
    """

    work: LayerArrays
    latency_s: Floats
    noise: Floats
    sources: tuple[frozenset[str], ...]
    steps: DeviceTiling
    seed: int

    def roofline(self) -> tuple[Roofline, FeatureMatrix, Floats]:
        """The roofline of all layers, their features and logarithms of latency over roofline."""
        roofline = fit_roofline(self.work, self.latency_s, self.steps, noise=self.noise)
        columns, base = feature_matrix(self.work, roofline)
        return roofline, columns, np.log(self.latency_s) - base

    def take(self, index: Ints) -> Training:
        """The layers at these positions."""
        sources = tuple(self.sources[place] for place in index)
        return Training(self.work.take(index), self.latency_s[index], self.noise[index], sources, self.steps, self.seed)

    def held_out(self, part: Part, tried: Mapping[str, Sequence[str]]) -> HeldOut:
        """Trains on all other layers and predicts those of a part, in the ways `tried` for each operator."""
        index = part.index
        train = self.take(np.setdiff1d(np.arange(len(self.work)), index))
        roofline, columns, log_ratio = train.roofline()
        test = self.work.take(index)
        test_columns, base = feature_matrix(test, roofline)
        errors = {name: np.log(self.latency_s[index]) - base for name in WAYS}
        spread = {name: np.zeros(index.size) for name in WAYS}
        for operator in sorted(set(test.operators)):
            own, asked = index_of(train.work, operator), index_of(test, operator)
            for name in tried[operator] if own.size >= LEAST_FOR_TREES else ():
                found = WAYS[name](columns[own], log_ratio[own], self.seed).correct(test_columns[asked])
                errors[name][asked] -= found.log_ratio
                spread[name][asked] = found.spread
        hull = hull_of(train.work, tuple(sorted(set(train.work.operators))))
        return HeldOut(index, test, self.latency_s[index], part.source, errors, spread, *hull.locate(test))

    def networks(self) -> list[Part]:
        """The layers of each network, all others of which are known: what predicting a new network is like.

        Only networks that leave enough layers to learn from.
        """
        names = sorted(set().union(*self.sources))
        parts = [Part(np.flatnonzero([name in sources for sources in self.sources]), name) for name in names]
        return [part for part in parts if len(self.work) - part.index.size >= LEAST_FOR_TREES]

    def folds(self) -> list[Part]:
        """The layers that belong to no network in `FOLDS` random parts; all where no network can be left out."""
        alone = not self.networks()
        loose = np.flatnonzero([alone or not sources for sources in self.sources])
        order = np.random.default_rng(self.seed).permutation(loose)
        return [Part(np.sort(order[place::FOLDS])) for place in range(FOLDS) if order[place::FOLDS].size]

    def extremes(self) -> list[Part]:
        """The smallest and largest layers by pixels, output channels and depth: what extrapolation looks like."""
        parts = []
        for column in (self.work.rows, self.work.sizes["out_channels"], self.work.group_channels * self.work.taps):
            low, high = np.quantile(column, [_EXTREME_SHARE, 1.0 - _EXTREME_SHARE])
            index = np.flatnonzero((column < low) | (column > high))
            if index.size:
                parts.append(Part(index))
        return parts


def best_way(folds: Sequence[HeldOut], operator: str) -> str:
    """The way of correcting with the least mean error on held-out layers; strays count up to a cap."""
    own = [index_of(fold.work, operator) for fold in folds]
    if sum(index.size for index in own) < _LEAST_JUDGED:
        return "none"

    def mean_error(name: str) -> float:
        errors = np.concatenate([fold.errors[name][index] for fold, index in zip(folds, own, strict=True)])
        return float(np.mean(np.minimum(np.abs(errors), _CAP)))

    return min(WAYS, key=mean_error)
