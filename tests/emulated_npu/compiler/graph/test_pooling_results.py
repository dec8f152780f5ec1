"""Pooling that only picks elements: a view inside a network, a layer of its own where its result is the network's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from small_models import functions, imported, model, node

PICTURE = np.random.default_rng(0).standard_normal((1, 4, 12, 9)).astype(np.float32)


def picking(op: str, *behind: str) -> ModelProto:
    """Pooling that keeps one element of each row, and element-wise operators behind it."""
    names = ["x", *(f"t{place}" for place in range(len(behind))), "y"]
    pool = node(op, "x", names[1], kernel_shape=[1, 1], strides=[1, 9])
    return model(
        [pool, *(node(one, names[place], names[place + 1]) for place, one in enumerate(behind, start=1))],
        {"x": PICTURE},
    )


@pytest.mark.parametrize(("op", "function"), [("AveragePool", "POOL_AVERAGE"), ("MaxPool", "POOL_MAX")])
def test_a_result_of_the_network_is_pooled(op: str, function: str) -> None:
    """Writing the result takes a layer anyway; pooling can follow the layer before it row by row, a copy cannot."""
    assert functions(imported(picking(op), {"x": PICTURE})) == [function]


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_inside_a_network_picking_is_a_view(op: str) -> None:
    """What reads the result reads the picked elements where they lie."""
    assert functions(imported(picking(op, "Exp"), {"x": PICTURE})) == ["MAP"]
