"""Trees in ONNX predict the same as in Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor
from threadpoolctl import threadpool_limits

from harness.predictor.roofline.feature_matrix import FeatureMatrix
from harness.predictor.tree_model import model_of
from harness.predictor.trees import VOTES, Corrector, Tree, VotingTrees, grow_voting, no_trees

FEATURES = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Grow trees with one thread, as training does: several spin while they wait for each other."""
    with threadpool_limits(1):
        yield


def learnt(count: int, seed: int) -> tuple[FeatureMatrix, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return layers with few different values per feature, so that some are on thresholds."""
    generator = np.random.default_rng(seed)
    columns = generator.choice([0.1, 0.2, 1 / 3, 1e9], (count, FEATURES)).astype(np.float32)
    return columns, np.log1p(columns[:, 0]) + generator.normal(0.0, 0.1, count)


def run(
    model: onnx.ModelProto, operator: list[float], columns: FeatureMatrix
) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return correction and spread by ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    features = np.hstack([np.array(operator, np.float32)[:, None], columns])
    return [output[:, 0] for output in session.run(["log_ratio", "spread"], {"features": features})]


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_voting_trees_are_equal_when_stored(seed: int) -> None:
    """Median and spread in ONNX Runtime are those of scikit-learn, also for layers on thresholds."""
    columns, log_ratio = learnt(30, seed)
    trees = grow_voting(columns, log_ratio, seed)
    asked, _ = learnt(40, seed + 1)
    ratio, spread = run(model_of([trees], FEATURES, {}), [0.0] * 40, asked)
    assert ratio == pytest.approx(trees.correct(asked).log_ratio, abs=1e-5)
    assert spread == pytest.approx(trees.correct(asked).spread, abs=1e-5)


def test_voting_trees_are_those_of_scikit_learn() -> None:
    """The trees, grown one by one, vote as those of scikit-learn's forest of the same seed."""
    columns, log_ratio = learnt(100, 3)
    forest = ExtraTreesRegressor(VOTES, max_features=0.5, random_state=3).fit(columns, log_ratio)
    asked, _ = learnt(150, 4)
    voting = grow_voting(columns, log_ratio, 3)
    assert voting.votes(asked) == pytest.approx(np.stack([tree.predict(asked) for tree in forest.estimators_], axis=1))


def test_each_operator_has_trees_of_its_own() -> None:
    """Trees of two operators and none of a third in one file are independent; an unknown operator gets zero."""
    columns, log_ratio = learnt(60, 5)
    grown: list[Corrector] = [
        grow_voting(columns, log_ratio, 0),
        no_trees(columns, log_ratio, 0),
        grow_voting(columns, -log_ratio, 1),
    ]
    model = model_of(grown, FEATURES, {})
    for index, trees in enumerate(grown):
        ratio, spread = run(model, [float(index)] * 60, columns)
        assert ratio == pytest.approx(trees.correct(columns).log_ratio, abs=1e-5)
        assert spread == pytest.approx(trees.correct(columns).spread, abs=1e-5)
    ratio, spread = run(model, [-1.0] * 60, columns)
    assert not ratio.any()
    assert not spread.any()


def test_a_tree_may_be_a_single_leaf() -> None:
    """Equal examples give trees without a branch, which predict the same when stored."""
    columns = np.ones((20, FEATURES), np.float32)
    ratio, _ = run(model_of([grow_voting(columns, np.full(20, 0.25), 0)], FEATURES, {}), [0.0], columns[:1])
    assert ratio == pytest.approx([0.25])


def test_metadata_and_operators_of_the_file() -> None:
    """The file is a valid ONNX model of standard operators that carries its metadata."""
    columns, log_ratio = learnt(30, 6)
    voting = grow_voting(columns, log_ratio, 0)
    assert isinstance(voting, VotingTrees)
    assert all(isinstance(tree, Tree) for tree in voting.trees)
    model = model_of([voting], FEATURES, {"key": "value"})
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {"", "ai.onnx.ml"}
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [("key", "value")]
