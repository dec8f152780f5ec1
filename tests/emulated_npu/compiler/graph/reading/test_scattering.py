"""Scattering to places that the network computes has ONNX Runtime's values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator

REDUCTIONS = st.sampled_from(["none", "add", "mul", "max", "min"])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), REDUCTIONS)
@settings(max_examples=60, deadline=None)
def test_elements(shape: list[int], data: st.DataObject, reduction: str) -> None:
    """Updates go to places along an axis; places count from either end, and several updates of one are combined.

    Without a reduction the last one counts.
    """
    axis, count = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 5))
    several = [count if place == axis else size for place, size in enumerate(shape)]
    places = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-shape[axis], shape[axis], several)
    fed = {"x": values(shape), "i": places, "u": values(several, 1)}
    imported(model([node("ScatterElements", "x i u", "y", axis=axis, reduction=reduction)], fed, opset=18), fed)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), REDUCTIONS)
@settings(max_examples=60, deadline=None)
def test_rows(shape: list[int], data: st.DataObject, reduction: str) -> None:
    """Updates go to rows of any number of axes."""
    depth, outer = data.draw(st.integers(1, len(shape))), data.draw(st.lists(st.integers(1, 3), max_size=2))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = np.stack([random.integers(-size, size, outer) for size in shape[:depth]], axis=-1)
    fed = {"x": values(shape), "i": places, "u": values((*outer, *shape[depth:]), 1)}
    imported(model([node("ScatterND", "x i u", "y", reduction=reduction)], fed, opset=18), fed)


def test_too_many_pairs_are_refused() -> None:
    """A scattering that would compare too many places and updates is refused with both numbers."""
    fed = {"x": values((8192, 1)), "i": np.zeros((4096, 1), np.int64), "u": values((4096, 1))}
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(model([node("ScatterElements", "x i u", "y")], fed, opset=18))
    assert "4096 updates with 8192 places" in refusal.value.why
