"""Scattering to places that the network computes has ONNX Runtime's values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import NodeProto
from small_models import imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import Array

REDUCTIONS = st.sampled_from(["none", "add", "mul", "max", "min"])
KINDS = st.sampled_from(["float32", "float32", "int32", "int64"])


def check(made: NodeProto, shapes: Sequence[Sequence[int]], places: Array, kind: str, constant: bool) -> None:
    """Assert that a scattering of x and u, of two shapes, has the runtime's values; its places may be constant."""
    fed = {
        name: values(shape, seed, -6, 6).astype(kind)
        for seed, (name, shape) in enumerate(zip("xu", shapes, strict=True))
    }
    constants = {"i": places} if constant else {}
    fed |= {} if constant else {"i": places}
    imported(model([made], fed, constants, opset=18), fed)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), REDUCTIONS, KINDS, st.booleans())
@settings(max_examples=36)
def test_elements(shape: list[int], data: st.DataObject, reduction: str, kind: str, constant: bool) -> None:
    """Updates go to places along an axis; places count from either end, and several updates of one are combined.

    Without a reduction the last one counts.
    """
    axis, count = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 5))
    several = [count if place == axis else size for place, size in enumerate(shape)]
    places = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-shape[axis], shape[axis], several)
    made = node("ScatterElements", "x i u", "y", axis=axis, reduction=reduction)
    check(made, (shape, several), places, kind, constant)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), REDUCTIONS, KINDS, st.booleans())
@settings(max_examples=36)
def test_rows(shape: list[int], data: st.DataObject, reduction: str, kind: str, constant: bool) -> None:
    """Updates go to rows of any number of axes."""
    depth, outer = data.draw(st.integers(1, len(shape))), data.draw(st.lists(st.integers(1, 3), max_size=2))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = np.stack([random.integers(-size, size, outer) for size in shape[:depth]], axis=-1)
    made = node("ScatterND", "x i u", "y", reduction=reduction)
    check(made, (shape, (*outer, *shape[depth:])), places, kind, constant)


@pytest.mark.parametrize("axis", [1, 2])
def test_elements_of_an_expanded_table_are_picked_from_the_original(axis: int) -> None:
    """A GatherElements behind an Expand copies no expanded table."""
    fed = {"x": values((1, 4, 3)), "i": np.random.default_rng(0).integers(-3, 3, (50, 2, 3))}
    nodes = [node("Expand", "x k", "e"), node("GatherElements", "e i", "y", axis=axis)]
    graph = imported(model(nodes, fed, {"k": np.array([50, 4, 3])}, opset=18), fed)
    assert not any(math.prod(value.shape) == 600 for value in graph.values.values())


def test_too_many_pairs_are_refused() -> None:
    """A scattering that would compare too many places and updates is refused with both numbers.

    With a reduction each element of a row counts.
    """
    fed = {"x": values((8192, 1)), "i": np.zeros((4096, 1), np.int64), "u": values((4096, 1))}
    rows = {"x": values((2048, 16)), "i": np.zeros((1024, 1), np.int64), "u": values((1024, 16))}
    import_model(model([node("ScatterND", "x i u", "y")], rows, opset=18))
    assert "4096 updates with 8192 places" in refusal("ScatterElements", fed)
    assert "1024 updates with 2048 places, 16 times" in refusal("ScatterND", rows, reduction="add")


def refusal(op: str, fed: dict[str, Array], error: type[EmulatorError] = UnsupportedOperator, **given: Any) -> str:
    """Return why a scattering of x, i and u is refused."""
    with pytest.raises(error) as caught:
        import_model(model([node(op, "x i u", "y", **given)], fed, opset=18))
    return caught.value.why


def test_updates_that_do_not_fit_are_refused() -> None:
    """Updates of another shape than their indices are not valid; none, and sums of truth values, are not supported."""
    fed = {"x": values((4, 3)), "i": np.zeros((2, 3), np.int64), "u": values((3, 2))}
    assert "updates have shape [3, 2]" in refusal("ScatterElements", fed, InvalidModel)
    rows = {"x": values((4, 3)), "i": np.zeros((2, 1), np.int64), "u": values((3, 2))}
    assert "its indices need [2, 3]" in refusal("ScatterND", rows, InvalidModel)
    none = {"x": values((4, 3)), "i": np.zeros((0, 1), np.int64), "u": values((0, 3))}
    assert "no elements" in refusal("ScatterND", none)
    truth = {**fed, "x": np.zeros((4, 3), bool), "u": np.ones((2, 3), bool)}
    assert "type bool" in refusal("ScatterElements", truth, reduction="max")
