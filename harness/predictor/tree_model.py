"""The stored form of a predictor: one ONNX file with its trees as a graph and everything else as metadata.

The graph has one `TreeEnsemble` (ai.onnx.ml, version 5) with a target for each of the `VOTES` trees. Each tree begins
with branches on feature 0, the operator's index, so that every operator has its own trees; an unknown operator, -1,
gets zeros. Standard operators (TopK, Gather) compute the median and quartiles of the votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Ints
from harness.predictor.trees import VOTES, Corrector, Tree, VotingTrees

if TYPE_CHECKING:
    from onnx import ModelProto

ENSEMBLE = "TreeEnsemble"
_OPSET, _ML_OPSET, _IR = 21, 5, 10


@dataclass(frozen=True)
class EnsembleArrays:
    """All trees as the attributes of one `TreeEnsemble`.

    Branches are in `feature`, `split`, `true` and `false`; the latter two name the branch below, or the leaf where
    `true_is_leaf` or `false_is_leaf` is 1. Leaves are in `target` and `weight`.
    """

    roots: Ints
    feature: Ints
    split: NDArray[np.float32]
    true: Ints
    false: Ints
    true_is_leaf: Ints
    false_is_leaf: Ints
    target: Ints
    weight: NDArray[np.float32]


@dataclass
class _Nodes:
    """Attributes of a `TreeEnsemble` under construction."""

    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    true: list[tuple[int, bool]] = field(default_factory=list)
    false: list[tuple[int, bool]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    def leaf(self, target: int, weight: float) -> tuple[int, bool]:
        self.target.append(target)
        self.weight.append(weight)
        return len(self.target) - 1, True

    def branch(self, feature: int, split: float) -> int:
        self.feature.append(feature)
        self.split.append(split)
        self.true.append((0, True))
        self.false.append((0, True))
        return len(self.feature) - 1

    def add(self, tree: Tree, target: int) -> tuple[int, bool]:
        """Add a tree and return its root."""
        inner = tree.left >= 0
        node = np.cumsum(inner) - 1 + len(self.feature)
        leaf = np.cumsum(~inner) - 1 + len(self.target)
        place = [(int(node[i]), False) if inner[i] else (int(leaf[i]), True) for i in range(inner.size)]
        self.feature.extend((tree.feature[inner] + 1).tolist())
        self.split.extend(tree.threshold[inner].tolist())
        self.true.extend(place[i] for i in tree.left[inner])
        self.false.extend(place[i] for i in tree.right[inner])
        self.target.extend([target] * int((~inner).sum()))
        self.weight.extend(tree.value[~inner].tolist())
        return place[0]

    def arrays(self) -> EnsembleArrays:
        """Return what was added."""

        def whole(values: Sequence[int]) -> Ints:
            return np.array(values, np.int64)

        return EnsembleArrays(
            roots=whole(self.roots),
            feature=whole(self.feature),
            split=np.array(self.split, np.float32),
            true=whole([place for place, _ in self.true]),
            false=whole([place for place, _ in self.false]),
            true_is_leaf=whole([leaf for _, leaf in self.true]),
            false_is_leaf=whole([leaf for _, leaf in self.false]),
            target=whole(self.target),
            weight=np.array(self.weight, np.float32),
        )


def model_of(corrections: Sequence[Corrector], features: int, metadata: dict[str, str]) -> ModelProto:
    """Return the model of the corrections of all operators, in the order of their indices."""
    from onnx import checker

    nodes = _Nodes()
    votes = [part.trees if isinstance(part, VotingTrees) else () for part in corrections]
    for place in range(VOTES):
        _dispatch(nodes, [trees[place] if trees else None for trees in votes], place)
    model = assemble(nodes.arrays(), features + 1, metadata)
    checker.check_model(model)
    return model


def assemble(trees: EnsembleArrays, features: int, metadata: dict[str, str]) -> ModelProto:
    """Return the model with these trees, which are not checked; `features` counts the columns of its input."""
    from onnx import TensorProto, helper

    half, quarter = VOTES // 2, VOTES // 4
    graph = helper.make_graph(
        [
            _ensemble(trees),
            helper.make_node("TopK", ["votes", "count"], ["ordered", "order"], axis=1),
            helper.make_node("Gather", ["ordered", "middle"], ["middles"], axis=1),
            helper.make_node("ReduceMean", ["middles", "one"], ["log_ratio"], keepdims=1),
            helper.make_node("Gather", ["ordered", "upper"], ["high"], axis=1),
            helper.make_node("Gather", ["ordered", "lower"], ["low"], axis=1),
            helper.make_node("Sub", ["high", "low"], ["distance"]),
            helper.make_node("Mul", ["distance", "half"], ["spread"]),
        ],
        "predictor",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["layers", features])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["layers", 1]) for name in ("log_ratio", "spread")],
        initializer=[
            _ints("count", [VOTES]),
            _ints("one", [1]),
            _ints("middle", [half - 1, half]),
            _ints("upper", [quarter]),
            _ints("lower", [VOTES - 1 - quarter]),
            helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5]),
        ],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="harness")
    helper.set_model_props(model, metadata)
    return model


def _dispatch(nodes: _Nodes, trees: Sequence[Tree | None], target: int) -> None:
    """Add a tree that passes each operator's layers to the operator's own tree."""
    root = nodes.branch(0, -0.5)
    nodes.roots.append(root)
    nodes.true[root] = nodes.leaf(target, 0.0)
    above = root
    for index, tree in enumerate(trees):
        start = nodes.leaf(target, 0.0) if tree is None else nodes.add(tree, target)
        if index == len(trees) - 1:
            nodes.false[above] = start
        else:
            branch = nodes.branch(0, index + 0.5)
            nodes.false[above] = (branch, False)
            nodes.true[branch] = start
            above = branch


def _ensemble(trees: EnsembleArrays) -> Any:
    from onnx import helper

    modes = np.zeros(len(trees.feature), np.uint8)  # "at most", everywhere
    return helper.make_node(
        ENSEMBLE,
        ["features"],
        ["votes"],
        domain="ai.onnx.ml",
        n_targets=VOTES,
        aggregate_function=1,  # sum
        post_transform=0,
        tree_roots=trees.roots.tolist(),
        nodes_featureids=trees.feature.tolist(),
        nodes_splits=_tensor("splits", trees.split),
        nodes_modes=_tensor("modes", modes),
        nodes_truenodeids=trees.true.tolist(),
        nodes_falsenodeids=trees.false.tolist(),
        nodes_trueleafs=trees.true_is_leaf.tolist(),
        nodes_falseleafs=trees.false_is_leaf.tolist(),
        leaf_targetids=trees.target.tolist(),
        leaf_weights=_tensor("weights", trees.weight),
    )


def _tensor(name: str, values: NDArray[Any]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(values, name)


def _ints(name: str, values: list[int]) -> Any:
    return _tensor(name, np.array(values, np.int64))
