"""Arrays that a device makes from their specifications."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from device_agents import arrays

shapes = st.lists(st.integers(1, 400), min_size=1, max_size=2)


def normal(shape: list[int], seed: int, scale: float = 1.0, dtype: str = "float32") -> np.ndarray:
    """Return a normal array."""
    return arrays.make({"dtype": dtype, "shape": shape, "seed": seed, "distribution": "normal", "scale": scale})


@settings(max_examples=40)
@given(shapes, st.integers(0, 2**31), st.floats(1e-3, 10), st.sampled_from(["float16", "float32", "float64"]))
def test_a_specification_has_one_array(shape: list[int], seed: int, scale: float, dtype: str) -> None:
    """The same specification gives the same array of its shape and type, and the scale multiplies its numbers."""
    array = normal(shape, seed, scale, dtype)
    assert (array.shape, array.dtype) == (tuple(shape), dtype)
    assert np.array_equal(array, normal(shape, seed, scale, dtype))
    assert np.allclose(array, normal(shape, seed) * scale, rtol=2e-3, atol=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 1 << 16), st.integers(0, 1 << 16))
def test_seeds_give_different_arrays(one: int, other: int) -> None:
    """Two weights of a network do not have the same values."""
    if one % (1 << 16) != other % (1 << 16):
        assert not np.array_equal(normal([64], one), normal([64], other))


@pytest.mark.parametrize("count", [1 << 14, 1 << 18])
def test_numbers_are_normal(count: int) -> None:
    """Mean, deviation and tails are those of a normal distribution, also of an array that repeats a block."""
    values = normal([count], 7)
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03
    assert 0.03 < (abs(values) > 1.96).mean() < 0.07


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("count", [1, 8, 9])
def test_elements_of_four_bits_share_bytes(dtype: str, count: int) -> None:
    """An array of a packed type has the bytes that ONNX stores, and all their values."""
    spec = {"dtype": dtype, "seed": 1, "distribution": "integers", "low": 0, "high": 2}
    assert arrays.make({**spec, "shape": [count]}).nbytes == (count + 1) // 2
    assert set(arrays.make({**spec, "shape": [3, 1 << 13]}).view("uint8").tolist()) == set(range(256))
