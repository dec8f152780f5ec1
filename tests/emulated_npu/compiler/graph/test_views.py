"""The algebra of views agrees with numpy for every operation."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.lib.stride_tricks import as_strided

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.numpy_types import Array

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def base(shape: tuple[int, ...]) -> Array:
    """Return an array of different numbers."""
    return np.arange(math.prod(shape)).reshape(shape)


def shown(array: Array, view: View) -> Array:
    """Return the elements of a view of that array, by its definition."""
    if 0 in view.shape:
        return np.zeros(view.shape, array.dtype)
    result = np.empty(view.shape, array.dtype)
    for index in np.ndindex(*view.shape):
        place = list(view.start)
        for position, axis in zip(index, view.axes, strict=True):
            if axis.base is not None:
                place[axis.base] += position * axis.step
        assert all(0 <= at < size for at, size in zip(place, array.shape, strict=True))
        result[index] = array[tuple(place)]
    return result


@st.composite
def viewed(draw: st.DrawFn) -> tuple[Array, View, Array]:
    """Draw an array, a view of it after random operations, and numpy's result of the same operations."""
    shape = draw(shapes)
    array = base(shape)
    view, result = views.whole("v", shape), array
    for _ in range(draw(st.integers(0, 4))):
        rank = result.ndim
        action = draw(st.sampled_from(("permute", "slice", "axis", "expand", "divide")))
        if action == "permute":
            order = draw(st.permutations(range(rank)))
            view, result = views.permuted(view, order), result.transpose(order)
        elif action == "slice" and rank:
            axis = draw(st.integers(0, rank - 1))
            picked = range(result.shape[axis])[:: draw(st.sampled_from((1, 2, -1, -3)))]
            first = draw(st.integers(0, len(picked) - 1))
            picked = picked[first : draw(st.integers(first + 1, len(picked)))]
            view = views.sliced(view, axis, picked[0], len(picked), picked.step)
            result = result.take(list(picked), axis)
        elif action == "axis" and rank < 5:
            axis, size = draw(st.integers(0, rank)), draw(st.integers(1, 3))
            view = views.with_axis(view, axis, size)
            result = np.repeat(np.expand_dims(result, axis), size, axis)
        elif action == "expand":
            target = tuple(size if size != 1 else draw(st.integers(1, 3)) for size in result.shape)
            view, result = views.expanded(view, (2, *target)), np.broadcast_to(result, (2, *target))
        elif action == "divide":
            target = tuple(part for size in result.shape for part in ((size // 2, 2) if size % 2 == 0 else (size, 1)))
            view, result = views.divided(view, target), result.reshape(target)
        if result.ndim > 5 or result.size > 2000:
            break
    return array, view, result


@given(viewed())
def test_views_show_what_numpy_makes(case: tuple[Array, View, Array]) -> None:
    """Permuting, slicing, repeating and dividing a view has the same result as on the array."""
    array, view, result = case
    np.testing.assert_array_equal(shown(array, view), result)


@given(viewed(), st.data())
def test_a_reshape_is_right_or_refused(case: tuple[Array, View, Array], data: st.DataObject) -> None:
    """A reshape that is a view has the elements in row-major order under the new shape."""
    array, view, result = case
    sizes = []
    left = result.size
    while left > 1:
        factor = data.draw(st.sampled_from([size for size in range(2, left + 1) if left % size == 0]))
        sizes.append(factor)
        left //= factor
    found = views.reshaped(view, sizes)
    if found is not None:
        np.testing.assert_array_equal(shown(array, found), result.reshape(sizes))


@given(viewed())
def test_reshaping_is_refused_only_where_strides_cannot_express_it(case: tuple[Array, View, Array]) -> None:
    """Flattening a view of a one-dimensional value succeeds exactly if numpy needs no copy."""
    _, _, result = case
    flat = np.arange(max(math.prod(result.shape), 1))
    over = views.reshaped(views.whole("flat", flat.shape), result.shape)
    assert over is not None
    strided = as_strided(flat, result.shape, [axis.step * flat.itemsize for axis in over.axes])
    order = tuple(reversed(range(result.ndim)))
    moved = views.permuted(over, order)
    expected = np.shares_memory(strided.transpose(order).reshape(-1), flat)
    assert (views.reshaped(moved, (result.size,)) is not None) == expected


@given(viewed(), st.data())
def test_composition_is_a_view_of_a_view(case: tuple[Array, View, Array], data: st.DataObject) -> None:
    """A view of a view composes to one view with the same elements."""
    array, inner, middle = case
    outer = views.permuted(views.whole("inner", middle.shape), data.draw(st.permutations(range(middle.ndim))))
    if middle.ndim:
        axis = data.draw(st.integers(0, middle.ndim - 1))
        start = data.draw(st.integers(0, outer.shape[axis] - 1))
        outer = views.sliced(outer, axis, start, start + 1, -1)
    np.testing.assert_array_equal(shown(array, views.composed(outer, inner)), shown(middle, outer))


@given(shapes, st.data())
def test_a_home_puts_a_value_where_its_view_is_the_target(shape: tuple[int, ...], data: st.DataObject) -> None:
    """A value that is written at its home appears at the target of its view."""
    order = data.draw(st.permutations(range(len(shape))))
    view = views.with_axis(views.permuted(views.whole("v", shape), order), data.draw(st.integers(0, len(shape))))
    larger = tuple(size + 2 for size in view.shape)
    target = views.whole("w", larger)
    for axis, size in enumerate(view.shape):
        target = views.sliced(target, axis, 1, size)
    home = views.home(view, shape, target)
    assert home is not None
    array = base(larger)
    np.testing.assert_array_equal(shown(shown(array, home), view), shown(array, target))


@pytest.mark.parametrize("case", ["part", "reversed", "repeated", "divided"])
def test_there_is_no_home_for_a_view_of_less_or_more_than_the_value(case: str) -> None:
    """A view that is a part of a value, repeats it, or reverses it cannot be written in place."""
    view = {
        "part": views.sliced(views.whole("v", (4, 4)), 0, 1, 3),
        "reversed": views.sliced(views.whole("v", (4, 4)), 0, 3, 4, -1),
        "repeated": views.with_axis(views.whole("v", (4, 4)), 0, 2),
        "divided": views.divided(views.whole("v", (4, 4)), (2, 2, 4)),
    }[case]
    assert views.home(view, (4, 4), views.whole("w", view.shape)) is None


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4), st.data())
def test_two_shapes_are_divisions_of_their_common_shape(sizes: list[int], data: st.DataObject) -> None:
    """The common shape divides into both, so that one copy takes any view from one to the other."""
    cut = data.draw(st.integers(0, len(sizes)))
    other = (math.prod(sizes[:cut]), 1, math.prod(sizes[cut:]))
    common = views.whole("v", views.common_shape(sizes, other))
    assert views.reshaped(common, sizes) is not None
    assert views.reshaped(common, other) is not None
