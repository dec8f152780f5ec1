"""Regression trees as records, whose votes correct a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Floats
from harness.predictor.roofline.feature_matrix import FeatureMatrix

VOTES = 64
_FEATURES_TRIED = 0.5
_LEAF = -1
_QUARTERS = (VOTES // 4, VOTES - 1 - VOTES // 4)
NODE = np.dtype([("feature", "<u2"), ("number", "<f4"), ("right", "<i4")])
"""A node of a tree; `right` is 0 in leaves, whose `number` is what the tree votes.

A layer goes from a branch to the next node if its feature `feature` is at most `number`, else to the node `right`.
"""
Tree = NDArray[np.void]
"""The nodes of one tree, its root first and each branch in front of all that is below it."""
_ONE_LEAF = np.zeros(1, NODE)


@dataclass(frozen=True)
class Corrections:
    """Logarithms of latency over roofline: the correction and the spread of the votes for it, (layers,)."""

    log_ratio: Floats
    spread: Floats


@dataclass(frozen=True)
class NoTrees:
    """The roofline without correction."""

    trees: tuple[Tree, ...] = (_ONE_LEAF,) * VOTES

    def correct(self, columns: FeatureMatrix) -> Corrections:
        """Return corrections and spreads of zero."""
        return Corrections(np.zeros(len(columns)), np.zeros(len(columns)))


@dataclass(frozen=True)
class VotingTrees:
    """Trees grown with random thresholds down to single layers; the median of their votes is the correction.

    Latency jumps where a device changes its kernel. The mean over trees is between the sides of a jump, the median on
    one of them.
    """

    grown: tuple[Any, ...]

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees as records."""
        return tuple(_from_forest(tree) for tree in self.grown)

    def votes(self, columns: FeatureMatrix) -> Floats:
        """Return what each tree predicts, (layers, VOTES)."""
        return np.stack([tree.predict(columns).ravel() for tree in self.grown], axis=1)

    def correct(self, columns: FeatureMatrix) -> Corrections:
        """Return the median of the votes, and half the distance between their quartiles."""
        return corrections_of(self.votes(columns))


Corrector = NoTrees | VotingTrees


def corrections_of(votes: Floats) -> Corrections:
    """Return median and half the quartile distance of `VOTES` votes for each layer, (layers, VOTES)."""
    ordered = np.sort(votes, axis=1)
    middle = (ordered[:, VOTES // 2 - 1] + ordered[:, VOTES // 2]) / 2.0
    low, high = _QUARTERS
    spread = (ordered[:, high] - ordered[:, low]) / 2.0
    return Corrections(middle.astype(np.float64), spread.astype(np.float64))


def no_trees(columns: FeatureMatrix, log_ratio: Floats, seed: int) -> NoTrees:  # noqa: ARG001 - the signature of the others
    """Return no trees, for operators with few layers or an exact roofline."""
    return NoTrees()


def grow_voting(columns: FeatureMatrix, log_ratio: Floats, seed: int) -> VotingTrees:
    """Grow voting trees on logarithms of latency over roofline.

    They are those of `ExtraTreesRegressor`, which takes as long to copy and check its parameters as to grow the trees.
    """
    from sklearn import config_context
    from sklearn.tree import ExtraTreeRegressor

    columns, log_ratio = np.ascontiguousarray(columns, np.float32), np.ascontiguousarray(log_ratio)
    seeds = np.random.RandomState(seed).randint(np.iinfo(np.int32).max, size=VOTES)
    with config_context(skip_parameter_validation=True):
        trees = [ExtraTreeRegressor(max_features=_FEATURES_TRIED, random_state=one) for one in seeds.tolist()]
        return VotingTrees(tuple(tree.fit(columns, log_ratio, check_input=False).tree_ for tree in trees))


def _from_forest(tree: Any) -> Tree:
    leaf = tree.children_left == _LEAF
    nodes = np.zeros(leaf.size, NODE)
    nodes["feature"] = np.where(leaf, 0, tree.feature)
    nodes["number"] = np.where(leaf, tree.value.ravel().astype(np.float32), _rounded_down(tree.threshold))
    nodes["right"] = np.where(leaf, 0, tree.children_right)
    return nodes


def _rounded_down(threshold: Sequence[float] | Floats) -> NDArray[np.float32]:
    """Return the largest single at or below each threshold: singles compare with it as with the double."""
    exact = np.clip(np.asarray(threshold, dtype=np.float64), np.finfo(np.float32).min, np.finfo(np.float32).max)
    single = exact.astype(np.float32)
    return np.where(single > exact, np.nextafter(single, np.float32(-np.inf)), single).astype(np.float32)
