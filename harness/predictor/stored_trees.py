"""The stored form of a predictor: one line of JSON with its parameters, then the nodes of all trees as records.

The records are those of `harness.predictor.trees.NODE`, without a gap; `right` counts from the first of all. Each
operator has `VOTES` trees, in the order of the parameters' operators.

A table may come from anybody. Numbers contain no code, and only trees are accepted. The children of a branch are behind
it, so that no layer comes to a node twice, and nothing is deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Ints
from harness.predictor.roofline.feature_matrix import FeatureMatrix
from harness.predictor.stored_parameters import Parameters, parameters_from, text_of
from harness.predictor.trees import NODE, VOTES, Corrections, Corrector, corrections_of

MAX_BYTES = 1 << 25
"""A predictor trained on the maximum number of entries of a table with correlations has half of it."""
MAX_DEPTH = 2000
_MAX_PARAMETERS = 1 << 24
_BLOCK = 1024
"""Layers that walk through the trees together: what they need at a time stays in the processor's caches."""
_STEPS = 4
"""Branches that layers pass before those that came to a leaf are taken out."""


@dataclass(frozen=True)
class StoredTrees:
    """The nodes of all trees, field by field, and the places of the roots, (operators, VOTES).

    A branch passes a layer on to `left` if its feature is at most `number`, else to `right`; from leaves both lead back
    to the leaf.
    """

    feature: Ints
    number: NDArray[np.float32]
    left: Ints
    right: Ints
    roots: Ints

    def correct(self, operators: Ints, columns: FeatureMatrix) -> Corrections:
        """Return what the trees correct of layers, whose operators are given by their indices, (layers,).

        Raises ValueError for an index that is no operator's, and trees that use another feature than the columns.
        """
        if operators.min(initial=0) < 0 or operators.max(initial=-1) >= len(self.roots):
            raise ValueError("a layer is of an operator that has no trees")
        if self.feature.max(initial=0) >= columns.shape[1]:
            raise ValueError("its trees use a feature that layers do not have")
        parts = [slice(start, start + _BLOCK) for start in range(0, len(columns), _BLOCK)]
        return corrections_of(np.concatenate([self._votes(operators[part], columns[part]) for part in parts]))

    def _votes(self, operators: Ints, columns: FeatureMatrix) -> NDArray[np.float32]:
        """Return the numbers of the leaves that layers come to, (layers, VOTES)."""
        leaves = self.roots[operators].ravel()
        walking, values = np.arange(leaves.size), columns.ravel()
        node, row = leaves, walking // VOTES * columns.shape[1]
        while walking.size:
            for _ in range(_STEPS):
                passes_left = values.take(row + self.feature.take(node)) <= self.number.take(node)
                node = np.where(passes_left, self.left.take(node), self.right.take(node))
            leaves[walking] = node
            further = np.flatnonzero(self.left.take(node) != node)
            walking, node, row = walking.take(further), node.take(further), row.take(further)
        return self.number.take(leaves).reshape(-1, VOTES)


def write_predictor(parameters: Parameters, corrections: Sequence[Corrector]) -> bytes:
    """Return the stored form; the corrections are those of the parameters' operators, in their order."""
    return text_of(parameters).encode() + b"\n" + write_trees(corrections)


def read_predictor(content: bytes) -> tuple[Parameters, StoredTrees]:
    """Read what `write_predictor` wrote; raises ValueError for other bytes, OtherVersion for another version's."""
    line, _, nodes = content[:MAX_BYTES].partition(b"\n")
    if len(line) > _MAX_PARAMETERS or len(content) > MAX_BYTES:
        raise ValueError("it is larger than a predictor")
    parameters = parameters_from(line.decode())
    return parameters, read_trees(nodes, len(parameters.hull.operators))


def write_trees(corrections: Sequence[Corrector]) -> bytes:
    """Return the nodes of the trees of these operators."""
    trees = [tree for correction in corrections for tree in correction.trees]
    sizes = [len(tree) for tree in trees]
    nodes = np.concatenate(trees)
    nodes["right"] += np.where(nodes["right"] > 0, np.repeat(np.cumsum(sizes) - sizes, sizes), 0).astype(np.int32)
    return nodes.tobytes()


def read_trees(content: bytes, operators: int) -> StoredTrees:
    """Read the nodes of the trees of so many operators; raises ValueError for anything else."""
    if len(content) % NODE.itemsize:
        raise ValueError("the last node of its trees is cut")
    nodes = np.frombuffer(content, NODE)
    own, right = np.arange(len(nodes)), nodes["right"].astype(np.int64)
    roots = _roots(right, operators)
    left, right = (np.where(right > 0, further, own) for further in (own + 1, right))
    return StoredTrees(nodes["feature"].astype(np.int64), nodes["number"].copy(), left, right, roots)


def _roots(right: Ints, operators: int) -> Ints:
    """Return the places of the roots; raises ValueError unless the nodes are `VOTES` trees for each operator."""
    branches = np.flatnonzero(right)
    below = np.concatenate([branches + 1, right[branches]])
    if (right[branches] <= branches).any() or below.max(initial=-1) >= len(right):
        raise ValueError("a branch of its trees leads back, or to no node")
    count = np.bincount(below, minlength=len(right))
    roots = np.flatnonzero(count == 0)
    if count.max(initial=0) > 1 or len(roots) != operators * VOTES:
        raise ValueError(f"its nodes are not {VOTES} trees for each operator")
    _check_depth(right, roots)
    return roots.reshape(operators, VOTES)


def _check_depth(right: Ints, level: Ints) -> None:
    for _ in range(MAX_DEPTH + 1):
        level = level[right[level] > 0]
        if not level.size:
            return
        level = np.concatenate([level + 1, right[level]])
    raise ValueError(f"its trees are deeper than {MAX_DEPTH:,} branches")
