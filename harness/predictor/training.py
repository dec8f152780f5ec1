"""Measured layers to train on, and what comes out when some of them are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.predictor.columns import Columns, feature_columns
from harness.predictor.coverage import Coverage, hull_of
from harness.predictor.intervals import Residuals
from harness.predictor.roofline import Roofline, fit_roofline
from harness.predictor.steps import Steps
from harness.predictor.trees import Corrector, grow_boosted, grow_voting, no_trees
from harness.predictor.work import Floats, Ints, Work, index_of

FOLDS = 10
JUDGED_FOLDS = 3
"""So many of the folds decide how each operator is corrected."""
LEAST_FOR_TREES = 20
_LEAST_JUDGED = 10
_EXTREME_SHARE = 0.1
_CAP = 0.5

Grow = Callable[[Columns, Floats, int], Corrector]
WAYS: Mapping[str, Grow] = {"none": no_trees, "boosted": grow_boosted, "voting": grow_voting}
"""The ways of correcting a roofline."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions for layers that were left out of training, one entry per layer.

    `errors` are log latency - log prediction by way of correcting, `spread` likewise, for the ways that were
    tried for a layer's operator; `beyond` and `classes` are those of `Hull.locate`.
    """

    index: Ints
    work: Work
    errors: Mapping[str, Floats]
    spread: Mapping[str, Floats]
    classes: Sequence[Coverage]
    beyond: Floats

    def residuals(self, ways: Mapping[str, str]) -> Residuals:
        """The residuals where each operator is corrected in its own way."""
        chosen = [(ways[operator], place) for place, operator in enumerate(self.work.operators)]
        errors = np.array([abs(self.errors[way][place]) for way, place in chosen])
        spread = np.array([self.spread[way][place] for way, place in chosen])
        return Residuals(self.work.operators, tuple(self.classes), errors, spread, self.beyond)


@dataclass(frozen=True)
class Training:
    """Measured layers with the steps of their device; `latency_s` is (layers,)."""

    work: Work
    latency_s: Floats
    steps: Steps
    seed: int

    def roofline(self) -> tuple[Roofline, Columns, Floats]:
        """The roofline of all layers, their features and logarithms of latency over roofline."""
        roofline = fit_roofline(self.work, self.latency_s, self.steps)
        columns, base = feature_columns(self.work, roofline)
        return roofline, columns, np.log(self.latency_s) - base

    def held_out(self, index: Ints, tried: Mapping[str, Sequence[str]]) -> HeldOut:
        """Trains on all other layers and predicts those at `index`, in the ways `tried` for each operator."""
        others = np.setdiff1d(np.arange(len(self.work)), index)
        train = Training(self.work.take(others), self.latency_s[others], self.steps, self.seed)
        roofline, columns, log_ratio = train.roofline()
        test = self.work.take(index)
        test_columns, base = feature_columns(test, roofline)
        errors = {name: np.log(self.latency_s[index]) - base for name in WAYS}
        spread = {name: np.zeros(index.size) for name in WAYS}
        for operator in sorted(set(test.operators)):
            own, asked = index_of(train.work, operator), index_of(test, operator)
            for name in tried[operator] if own.size >= LEAST_FOR_TREES else ():
                found = WAYS[name](columns[own], log_ratio[own], self.seed).correct(test_columns[asked])
                errors[name][asked] -= found.log_ratio
                spread[name][asked] = found.spread
        hull = hull_of(train.work, tuple(sorted(set(train.work.operators))))
        return HeldOut(index, test, errors, spread, *hull.locate(test))

    def folds(self) -> list[Ints]:
        """The layers in `FOLDS` random parts."""
        order = np.random.default_rng(self.seed).permutation(len(self.work))
        return [np.sort(order[place::FOLDS]) for place in range(FOLDS)]

    def extremes(self) -> list[Ints]:
        """The smallest and largest layers by pixels, output channels and depth: what extrapolation looks like."""
        parts = []
        for column in (self.work.rows, self.work.sizes["out_channels"], self.work.group_channels * self.work.taps):
            low, high = np.quantile(column, [_EXTREME_SHARE, 1.0 - _EXTREME_SHARE])
            part = np.flatnonzero((column < low) | (column > high))
            if part.size:
                parts.append(part)
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
