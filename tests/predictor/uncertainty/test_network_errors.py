"""Errors shared by the layers of a network, and intervals of sums."""

from dataclasses import replace

import numpy as np
import pytest

from harness.predictor.features.layer_features import matrix_product
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import ANY, NORMAL_90
from harness.predictor.uncertainty.network_errors import (
    ALL_ALIKE,
    PRODUCT_SHARE,
    UNKNOWN_SHARE,
    LayerPrediction,
    NetworkResiduals,
    share_of,
    shares_of,
    stderr_of_sum,
)

ONE = LayerPrediction(1.0, np.exp(-0.1 * NORMAL_90), np.exp(0.1 * NORMAL_90), Coverage.INSIDE, "Conv", 0.0)
LAYERS = [matrix_product(rows=rows, depth=8, columns=8) for rows in (1, 2, 3, 4)]


def scores(shared: float, networks: int, layers: int) -> NetworkResiduals:
    """Return residuals of unit variance, of which the share `shared` is common to a network."""
    generator = np.random.default_rng(3)
    common = np.repeat(generator.normal(0.0, np.sqrt(shared), networks), layers)
    own = generator.normal(0.0, np.sqrt(1.0 - shared), networks * layers)
    names = tuple(f"n{network}" for network in range(networks) for _ in range(layers))
    return NetworkResiduals(("Conv",) * len(names), names, common + own)


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.8])
def test_shares_are_found(shared: float) -> None:
    """The share of variance common to a network's layers is found within 0.1."""
    found = shares_of(scores(shared, networks=200, layers=8))
    assert found["Conv"] == pytest.approx(shared, abs=0.1)
    assert found[ANY] == found["Conv"]


def test_few_pairs_give_no_share() -> None:
    """An operator with few pairs has the share of all operators, or else that of a processor."""
    found = shares_of(scores(0.5, networks=3, layers=2))
    assert found == {ALL_ALIKE: 0.5}  # one operator shows nothing of others
    assert share_of(found, "Conv") == UNKNOWN_SHARE
    assert share_of(found, "mac/conv/dense") == PRODUCT_SHARE
    assert share_of({ANY: 0.25}, "Conv") == 0.25


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.8])
def test_what_different_operators_share_is_found(shared: float) -> None:
    """The share common to layers of different operators is found within 0.1, and is large where networks are few."""

    def found(networks: int) -> float:
        residuals = scores(shared, networks, layers=8)
        return shares_of(replace(residuals, operators=("Conv", "Add") * (networks * 4)))[ALL_ALIKE]

    assert found(networks=200) == pytest.approx(shared, abs=0.1)
    assert found(networks=2) >= 0.25


def test_a_common_error_of_all_operators_adds_up_by_hand() -> None:
    """Layers of four operators with errors of 10 % sum to 40 % if all share them, and to 20 % if only operators do."""
    for common, whole in ((1.0, 0.4), (0.0, 0.2), (0.25, np.sqrt(0.75 * 0.04 + 0.25 * 0.16))):
        others = [replace(ONE, operator=name, shared=1.0, common=common) for name in "abcd"]
        assert stderr_of_sum(LAYERS, others) == pytest.approx(whole)


def test_sums_by_hand() -> None:
    """Four layers with errors of 10 % sum to an error of 20 % if independent and 40 % if shared or repeated."""
    assert stderr_of_sum(LAYERS, [ONE] * 4) == pytest.approx(0.2)
    assert stderr_of_sum(LAYERS, [replace(ONE, shared=1.0)] * 4) == pytest.approx(0.4)
    assert stderr_of_sum([LAYERS[0]] * 4, [ONE] * 4) == pytest.approx(0.4)
    assert stderr_of_sum(LAYERS, [replace(ONE, shared=0.25)] * 4) == pytest.approx(np.sqrt(0.75 * 0.04 + 0.25 * 0.16))
    others = [replace(ONE, operator=name, shared=1.0) for name in "abcd"]
    assert stderr_of_sum(LAYERS, others) == pytest.approx(0.2)


def test_an_unbounded_interval_counts_as_a_factor_of_e() -> None:
    """An infinite interval counts as a factor of e and leaves the sum's error finite."""
    unknown = replace(ONE, low_s=0.0, high_s=np.inf)
    assert stderr_of_sum(LAYERS[:1], [unknown]) == pytest.approx(1.0 / NORMAL_90)
