"""Errors shared by similar layers of a network, and intervals of sums."""

from dataclasses import replace

import numpy as np
import pytest

from harness.predictor.features.layer_features import matrix_product
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.network_errors import LayerPrediction, covariance, stderr_of_sum

ONE = LayerPrediction(1.0, 0.8, 1.25, Coverage.INSIDE, "Conv", 0.1)
ROWS = (1, 2, 3, 4)
LAYERS = [matrix_product(rows=rows, depth=8, columns=8) for rows in ROWS]
FAR = [matrix_product(rows=8**rows, depth=8, columns=8) for rows in ROWS]


def test_sums_by_hand() -> None:
    """Four layers with errors of 10 % sum to 20 % if independent, to 40 % if repeated, and to between if alike."""
    others = [replace(ONE, operator=name) for name in "abcd"]
    assert stderr_of_sum(LAYERS, others) == pytest.approx(0.2)
    assert stderr_of_sum([LAYERS[0]] * 4, [ONE] * 4) == pytest.approx(0.4)
    assert 0.3 < stderr_of_sum(LAYERS, [ONE] * 4) < 0.4
    assert stderr_of_sum(FAR, [ONE] * 4) == pytest.approx(0.2, rel=0.1)
    assert stderr_of_sum([], []) == 0.0


def test_errors_correlate_less_with_distance() -> None:
    """Similar layers share more than different ones, other operators nothing, and no sum has a negative variance."""
    predictions = [*(replace(ONE, latency_s=at) for at in (1.0, 2.0, 3.0)), replace(ONE, operator="Gemm")]
    found = covariance(LAYERS, predictions)
    assert np.allclose(np.diag(found), [0.01, 0.04, 0.09, 0.01])
    related = found / np.sqrt(np.outer(np.diag(found), np.diag(found)))
    assert 1.0 > related[0, 1] > related[0, 2] > 0.0 == related[0, 3]
    assert np.linalg.eigvalsh(found).min() >= 0.0
