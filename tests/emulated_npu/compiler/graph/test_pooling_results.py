"""Pooling that only picks elements is a view inside a network, and a layer if its result is an output."""

import numpy as np
import pytest
from onnx import ModelProto
from small_models import functions, imported, model, node

PICTURE = np.random.default_rng(0).standard_normal((1, 4, 12, 9)).astype(np.float32)


def picking(op: str, *behind: str) -> ModelProto:
    """Return pooling that keeps one element of each row, with elementwise operators after it."""
    names = ["x", *(f"t{place}" for place in range(len(behind))), "y"]
    pool = node(op, "x", names[1], kernel_shape=[1, 1], strides=[1, 9])
    return model(
        [pool, *(node(one, names[place], names[place + 1]) for place, one in enumerate(behind, start=1))],
        {"x": PICTURE},
    )


@pytest.mark.parametrize(("op", "function"), [("AveragePool", "POOL_AVERAGE"), ("MaxPool", "POOL_MAX")])
def test_a_result_of_the_network_is_pooled(op: str, function: str) -> None:
    """Pooling that computes an output is a layer, because it can follow the layer before it row by row."""
    assert functions(imported(picking(op), {"x": PICTURE})) == [function]


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_inside_a_network_picking_is_a_view(op: str) -> None:
    """The readers of picked elements read them from the original value."""
    assert functions(imported(picking(op, "Exp"), {"x": PICTURE})) == ["MAP"]
