"""Trees predict the same when they are stored as they did when they were grown."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from threadpoolctl import threadpool_limits

from harness.predictor.roofline.feature_matrix import FeatureMatrix
from harness.predictor.stored_trees import StoredTrees, read_trees, write_trees
from harness.predictor.trees import NODE, VOTES, Corrector, NoTrees, grow_voting, no_trees

FEATURES = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Grow trees with one thread, as training does: several spin while they wait for each other."""
    with threadpool_limits(1):
        yield


def learnt(count: int, seed: int) -> tuple[FeatureMatrix, NDArray[np.float64]]:
    """Return layers with few different values per feature, so that some are on thresholds."""
    generator = np.random.default_rng(seed)
    columns = generator.choice([0.1, 0.2, 1 / 3, 1e9], (count, FEATURES)).astype(np.float32)
    return columns, np.log1p(columns[:, 0]) + generator.normal(0.0, 0.1, count)


def stored(*corrections: Corrector) -> StoredTrees:
    """Return the corrections of operators, written and read again."""
    return read_trees(write_trees(corrections), len(corrections))


def assert_equal(trees: StoredTrees, operator: int, grown: Corrector, columns: FeatureMatrix) -> None:
    """Assert that the trees of an operator correct as the grown ones, up to single precision."""
    found, wanted = trees.correct(np.full(len(columns), operator), columns), grown.correct(columns)
    assert found.log_ratio == pytest.approx(wanted.log_ratio, abs=1e-5)
    assert found.spread == pytest.approx(wanted.spread, abs=1e-5)


@settings(max_examples=5)
@given(seed=st.integers(0, 1000))
def test_voting_trees_are_equal_when_stored(seed: int) -> None:
    """Median and spread are those of scikit-learn, also for layers on thresholds."""
    trees = grow_voting(*learnt(30, seed), seed)
    assert_equal(stored(trees), 0, trees, learnt(40, seed + 1)[0])


def test_layers_do_not_depend_on_others_beside_them() -> None:
    """Several thousand layers, which are more than walk together, are corrected to the last bit as one by one."""
    trees = stored(grow_voting(*learnt(50, 1), 1))
    asked = np.random.default_rng(2).choice([0.1, 0.15, 1 / 3, 1e9], (2500, FEATURES)).astype(np.float32)
    together = trees.correct(np.zeros(2500, int), asked)
    for at in (0, 1023, 1024, 2499):
        alone = trees.correct(np.zeros(1, int), asked[at : at + 1])
        assert (alone.log_ratio[0], alone.spread[0]) == (together.log_ratio[at], together.spread[at])


def test_votes_are_followed_by_hand() -> None:
    """A layer on a threshold goes left, one with no number right; the median and quartiles are those of the votes."""
    tree = np.array([(1, 2.0, 4), (0, 1.0, 3), (0, 10.0, 0), (0, 20.0, 0), (0, 30.0, 0)], NODE)
    other = np.array([(0, 50.0, 0)], NODE)
    trees = stored(NoTrees(), NoTrees((tree,) * (VOTES - 20) + (other,) * 20))
    columns = np.array([[1.0, 2.0], [1.1, 2.0], [1.0, 2.1], [0.0, np.nan]], np.float32)
    found = trees.correct(np.ones(4, int), columns)
    assert found.log_ratio.tolist() == [10.0, 20.0, 30.0, 30.0]
    assert found.spread.tolist() == [20.0, 15.0, 10.0, 10.0]


def test_voting_trees_are_those_of_scikit_learn() -> None:
    """The trees, grown one by one, vote as those of scikit-learn's forest of the same seed."""
    columns, log_ratio = learnt(100, 3)
    forest = ExtraTreesRegressor(VOTES, max_features=0.5, random_state=3).fit(columns, log_ratio)
    asked, _ = learnt(150, 4)
    voting = grow_voting(columns, log_ratio, 3)
    assert voting.votes(asked) == pytest.approx(np.stack([tree.predict(asked) for tree in forest.estimators_], axis=1))


def test_each_operator_has_trees_of_its_own() -> None:
    """Trees of two operators and none of a third are independent."""
    columns, log_ratio = learnt(60, 5)
    grown: list[Corrector] = [
        grow_voting(columns, log_ratio, 0),
        no_trees(columns, log_ratio, 0),
        grow_voting(columns, -log_ratio, 1),
    ]
    trees = stored(*grown)
    for index, one in enumerate(grown):
        assert_equal(trees, index, one, columns)


@pytest.mark.parametrize("operator", [-1, 1])
def test_a_layer_of_another_operator_is_refused(operator: int) -> None:
    """A layer whose operator has no trees is not corrected by those of another."""
    trees = stored(grow_voting(*learnt(30, 1), 1))
    with pytest.raises(ValueError, match="has no trees"):
        trees.correct(np.array([0, operator]), learnt(2, 2)[0])


def test_a_tree_may_be_a_single_leaf() -> None:
    """Equal examples give trees without a branch, which predict the same when stored."""
    trees = stored(grow_voting(np.ones((20, FEATURES), np.float32), np.full(20, 0.25), 0))
    assert trees.correct(np.zeros(1, int), np.ones((1, FEATURES), np.float32)).log_ratio.tolist() == [0.25]
