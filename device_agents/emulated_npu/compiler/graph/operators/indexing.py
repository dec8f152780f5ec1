"""Operators that pick elements by indices: Gather and its relatives, scattering, and one-hot codes.

Indices that are evenly spaced are views. Others number the rows, or single elements, of a table for the GATHER command.
Indices of several axes become such numbers by arithmetic on integers, at compilation if they are constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import FLOATS, derived, number_of
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Binary, Reduction, Settings


def _gather(build: Builder, node: OnnxNode) -> None:
    """Add a Gather: a slice if the indices are constant and evenly spaced, else a layer that picks rows."""
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", 0) % len(source.axes)
    size = source.shape[axis]
    indices = build.known(node.inputs[1])
    if indices is not None:
        _check_indices(node, indices, size)
        if (picked := _evenly_spaced(indices, size)) is not None:
            start, step = picked
            view = views.sliced(source, axis, start, indices.size, step)
            shape = (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])
            build.bind(node.outputs[0], views.divided(view, shape))
            return
    second = _row_numbers(build, node, size)
    _gather_along(build, source, second, axis, build.result())


def _evenly_spaced(indices: Array, size: int) -> tuple[int, int] | None:
    """Return first index and step if the indices are start, start + step, ... with a step other than 0."""
    flat = np.where(indices < 0, indices + size, indices).reshape(-1)
    steps = np.unique(np.diff(flat))
    if len(steps) > 1 or (len(steps) == 1 and steps[0] == 0):
        return None
    return int(flat[0]), int(steps[0]) if len(steps) else 1


def _check_indices(node: OnnxNode, indices: Array, size: int) -> None:
    wrong = indices[(indices < -size) | (indices >= size)]
    if wrong.size:
        raise unsupported(node, f"Its index {int(wrong.flat[0])} is outside an axis of {size} elements")


def _row_numbers(build: Builder, node: OnnxNode, size: int) -> View:
    """Return the indices as rows; negative constants count from the end."""
    tensor = node.inputs[1]
    constant = build.constant(tensor)
    if constant is None:
        return build.view(tensor)

    def count(array: Array) -> Array:
        _check_indices(node, array, size)
        return np.where(array < 0, array + size, array)

    return build.constant_view(derived(f"{tensor}.of{size}", constant.shape, constant.dtype, (constant,), count))


def _compress(build: Builder, node: OnnxNode) -> None:
    """Bind or add a Compress by a constant condition: a Gather of the indices where it is true."""
    source, output = build.view(node.inputs[0]), build.type(node.outputs[0])
    (places,) = np.nonzero(build.required(node.inputs[1], "condition").reshape(-1))
    axis = node.attribute("axis")
    if axis is None:
        source, axis = build.reshape(source, (math.prod(source.shape),), f"{node.outputs[0]}.flat"), 0
    axis %= len(source.axes)
    if not len(places) or places[-1] >= source.shape[axis]:
        raise unsupported(node, f"Its condition selects no element, or one outside an axis of {source.shape[axis]}")
    if output.shape != (*source.shape[:axis], len(places), *source.shape[axis + 1 :]):
        raise unsupported(node, f"Its result has the shape {list(output.shape)} in the file")
    if (picked := _evenly_spaced(places, source.shape[axis])) is not None:
        build.bind(node.outputs[0], views.sliced(source, axis, picked[0], len(places), picked[1]))
        return
    second = build.fixed("places", places, DataType.INT64)
    _gather_along(build, source, second, axis, build.result())


def _gather_along(build: Builder, source: View, second: View, axis: int, output: View) -> None:
    """Add a layer that picks parts of the source along an axis; the axes of `second` take its place."""
    picks, places = range(axis, axis + len(second.axes)), range(len(output.axes))
    first = views.permuted(source, (axis, *(place for place in range(len(source.axes)) if place != axis)))
    moved = views.permuted(output, (*picks, *(place for place in places if place not in picks)))
    build.layer(Function.GATHER, [first, second], moved)


def _gather_elements(build: Builder, node: OnnxNode) -> None:
    """Add a GatherElements: the table has single elements as rows, those that repeat along other axes once."""
    source, shape = build.view(node.inputs[0]), build.type(node.inputs[1]).shape
    axis = node.attribute("axis", 0) % len(source.axes)
    if len(shape) != len(source.axes) or any(
        own > size for place, (own, size) in enumerate(zip(shape, source.shape, strict=True)) if place != axis
    ):
        raise unsupported(node, f"Its indices of shape {list(shape)} do not fit a tensor of shape {list(source.shape)}")
    once = views.unrepeated(source, axis)
    axes = [(source.shape[axis], _strides(once.shape)[axis])]
    second = _numbered(build, node, axes, _first_elements(once.shape, shape, axis))
    first = build.reshape(once, (math.prod(once.shape),), f"{node.outputs[0]}.flat")
    build.layer(Function.GATHER, [first, second], build.result())


def _first_elements(source: Sequence[int], shape: Sequence[int], axis: int) -> Array:
    """Return, for indices of a shape along an axis, the number of the source element at index 0.

    A source of size 1 repeats along its axis.
    """
    grids = np.meshgrid(*map(np.arange, shape), indexing="ij", sparse=True)
    own = enumerate(zip(grids, source, _strides(source), strict=True))
    numbers = (grid * stride for place, (grid, size, stride) in own if place != axis and size > 1)
    return sum(numbers, np.zeros(shape, np.int64))


def gather_along_axis(build: Builder, source: View, indices: View, axis: int, output: View) -> None:
    """Add layers that pick elements along an axis by computed int64 indices, which count from its beginning."""
    stride, offset = _strides(source.shape)[axis], _first_elements(source.shape, indices.shape, axis)
    if stride != 1:
        factor = build.fixed("stride", stride, DataType.INT64)
        indices = build.combined("by stride", Binary.MULTIPLY, indices, factor)
    if offset.any():
        indices = build.combined("by offset", Binary.ADD, indices, build.fixed("offset", offset, DataType.INT64))
    flat = build.reshape(source, (math.prod(source.shape),), f"{build.node.outputs[0]}.flat")
    build.layer(Function.GATHER, [flat, indices], output)


def _gather_nd(build: Builder, node: OnnxNode) -> None:
    """Add a GatherND: indices along several axes number the rows of a table."""
    source, shape = build.view(node.inputs[0]), build.type(node.inputs[1]).shape
    batch = node.attribute("batch_dims", 0)
    picked = batch + shape[-1] if shape else 0
    if not 0 <= batch < len(shape) or not batch < picked <= len(source.axes) or shape[:batch] != source.shape[:batch]:
        raise unsupported(node, f"Its indices of shape {list(shape)} do not fit a tensor of shape {list(source.shape)}")
    rows, row = source.shape[:picked], source.shape[picked:]
    strides = _strides(rows)
    grids = np.meshgrid(*map(np.arange, shape[:-1]), indexing="ij", sparse=True)
    offset = sum((grid * stride for grid, stride in zip(grids, strides[:batch], strict=False)), np.zeros(shape[:-1]))
    second = _numbered(build, node, list(zip(rows[batch:], strides[batch:], strict=True)), offset, last=True)
    first = build.reshape(source, (math.prod(rows), *row), f"{node.outputs[0]}.rows")
    build.layer(Function.GATHER, [first, second], build.result())


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[place + 1 :]) for place in range(len(shape))]


def _numbered(
    build: Builder, node: OnnxNode, axes: Sequence[tuple[int, int]], offset: Array, last: bool = False
) -> View:
    """Return the numbers of rows of indices along axes of (size, stride), plus the offset.

    With `last` the last axis of the indices has one index for each of the axes. Negative indices count from the end.
    """
    tensor = node.inputs[1]
    sizes, strides = (np.array(column, np.int64) for column in zip(*axes, strict=True))
    constant = build.constant(tensor)

    def count(array: Array) -> Array:
        for place, (size, _) in enumerate(axes):
            _check_indices(node, array[..., place] if last else array, size)
        found: Array = np.mod(array, sizes) * strides
        return (found.sum(axis=-1) if last else found) + offset

    if constant is not None:
        name = f"{node.outputs[0]}.rows of {tensor}"
        return build.constant_view(derived(name, offset.shape, constant.dtype, (constant,), count))
    view = build.view(tensor)
    dtype = build.dtype(view)
    if not last:
        sizes, strides = sizes.reshape(()), strides.reshape(())
    wrapped = build.combined("wrapped", Binary.MODULO, view, build.fixed("sizes", sizes, dtype))
    scaled = build.combined("scaled", Binary.MULTIPLY, wrapped, build.fixed("strides", strides, dtype))
    if last:
        total = build.temporary("total", (*offset.shape, 1), dtype)
        mask = axes_mask((-1,), len(view.axes))
        build.layer(Function.REDUCE, [scaled], total, Settings(axes=mask, mode=Reduction.SUM))
        scaled = views.divided(total, offset.shape)
    if not offset.any():
        return scaled
    return build.combined("numbers", Binary.ADD, scaled, build.fixed("offset", offset, dtype))


def _one_hot(build: Builder, node: OnnxNode) -> None:
    """Add a OneHot: indices are compared with all places, including those counted from the end."""
    indices, output = build.view(node.inputs[0]), build.result()
    depth = int(build.number(node.inputs[1], "depth"))
    axis = node.attribute("axis", -1) % len(output.axes)
    if output.shape[axis] != depth or depth < 1:
        raise unsupported(node, f"Its depth is {depth}, and its result has the shape {list(output.shape)}")
    dtype = build.dtype(indices)
    spread = views.with_axis(indices, axis, depth)
    shape = [depth if place == axis else 1 for place in range(len(output.axes))]
    parts: list[View] = []
    for name, first in (("front", 0), ("back", -depth)):
        places = build.fixed(f"{name} places", np.arange(first, first + depth).reshape(shape), dtype)
        parts.append(build.combined(name, Binary.EQUAL, spread, places, DataType.BOOL))
    chosen = build.combined("chosen", Binary.OR, parts[0], parts[1])
    off, on = (views.sliced(build.view(node.inputs[2]), 0, place, 1) for place in (0, 1))
    build.layer(Function.WHERE, [chosen, *(views.expanded(view, output.shape) for view in (on, off))], output)


def _hardmax(build: Builder, node: OnnxNode) -> None:
    """Add a Hardmax: one at the first of the largest elements; before opset 13, along all axes from one on."""
    source, output = build.view(node.inputs[0]), build.result()
    rank = len(source.axes)
    recent = build.source.opset >= 13
    axis = node.attribute("axis", -1 if recent else 1) % rank
    if not recent:
        rows = (math.prod(source.shape[:axis]), math.prod(source.shape[axis:]))
        source = build.reshape(source, rows, f"{node.outputs[0]}.rows")
        axis, rank = 1, 2
    size = source.shape[axis]
    reduced = tuple(1 if place == axis else own for place, own in enumerate(source.shape))
    largest = build.temporary("largest", reduced, DataType.INT64)
    build.layer(Function.REDUCE, [source], largest, Settings(axes=axes_mask((axis,), rank), mode=Reduction.ARGMAX))
    shape = tuple(size if place == axis else 1 for place in range(rank))
    places = build.fixed("places", np.arange(size).reshape(shape), DataType.INT64)
    chosen = build.combined("chosen", Binary.EQUAL, largest, places, DataType.BOOL)
    build.copy(build.divided(chosen, output.shape), output)


_COMBINED: Mapping[str, tuple[Binary, np.ufunc, float]] = {
    "add": (Binary.ADD, np.add, 0.0),
    "mul": (Binary.MULTIPLY, np.multiply, 1.0),
    "max": (Binary.MAXIMUM, np.maximum, -math.inf),
    "min": (Binary.MINIMUM, np.minimum, math.inf),
}
"""Reductions of scattered values: the functions of the machine and of numpy that combine them, and their neutral."""


def _scatter(numbers: Callable[[OnnxNode, Array, tuple[int, ...]], Array]) -> Handler:
    def handler(build: Builder, node: OnnxNode) -> None:
        """Add a scattering to constant places: what lies there is picked from the updates."""
        source = build.view(node.inputs[0])
        size = math.prod(source.shape)
        places = numbers(node, build.required(node.inputs[1], "index"), source.shape)
        reduction = (node.attribute("reduction") or b"none").decode()
        if reduction != "none":
            _combined(build, node, places, reduction)
            return
        origin = np.full(size, -1, np.int64)
        origin[places.reshape(-1)] = np.arange(places.size)  # the last of several updates of an element counts
        chosen = build.fixed("chosen", (origin >= 0).reshape(source.shape), DataType.BOOL)
        second = build.fixed("origin", np.maximum(origin, 0).reshape(source.shape), DataType.INT64)
        flat = build.reshape(build.view(node.inputs[2]), (places.size,), f"{node.outputs[0]}.updates")
        spread = build.temporary("spread", source.shape, build.dtype(source))
        build.layer(Function.GATHER, [flat, second], spread)
        build.layer(Function.WHERE, [chosen, spread, source], build.result())

    return handler


def _combined(build: Builder, node: OnnxNode, places: Array, reduction: str) -> None:
    """Add the combination of a tensor with constant updates; several updates of an element are combined first."""
    if reduction not in _COMBINED:
        raise unsupported(node, f"Its reduction is {reduction[:40]!r}")
    source = build.view(node.inputs[0])
    kind = build.dtype(source)
    if kind is DataType.BOOL:
        raise unsupported(node, "It reduces elements of type bool")
    mode, function, neutral = _COMBINED[reduction]
    updates = build.parameter(node.inputs[2], "update")
    dtype = np.dtype(np.float64) if kind in FLOATS else NUMPY_TYPES[kind]

    def spread(array: Array) -> Array:
        found = np.full(math.prod(source.shape), number_of(neutral, dtype))
        function.at(found, places.reshape(-1), np.asarray(array, dtype).reshape(-1))
        return found.reshape(source.shape)

    name = f"{node.outputs[0]}.updates"
    second = build.constant_view(derived(name, source.shape, kind, (updates,), spread))
    build.binary(mode, source, second, build.result())


def _element_numbers(node: OnnxNode, indices: Array, shape: tuple[int, ...]) -> Array:
    """Return the numbers of the elements that a ScatterElements writes."""
    axis = node.attribute("axis", 0) % len(shape)
    _check_indices(node, indices, shape[axis])
    if indices.ndim != len(shape):
        raise unsupported(node, f"Its indices have {indices.ndim} axes, and its input {len(shape)}")
    grids = list(np.meshgrid(*map(np.arange, indices.shape), indexing="ij"))
    grids[axis] = np.mod(indices, shape[axis])
    return np.ravel_multi_index(grids, shape, mode="clip")


def _row_elements(node: OnnxNode, indices: Array, shape: tuple[int, ...]) -> Array:
    """Return the numbers of the elements that a ScatterND writes."""
    depth = indices.shape[-1]
    for axis in range(depth):
        _check_indices(node, indices[..., axis], shape[axis])
    size = math.prod(shape[depth:])
    rows = (np.mod(indices, shape[:depth]) * _strides(shape[:depth])).sum(axis=-1)
    return np.asarray(rows[..., None] * size + np.arange(size))


HANDLERS: Mapping[str, Handler] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Compress": _compress,
    "OneHot": _one_hot,
    "Hardmax": _hardmax,
    "Scatter": _scatter(_element_numbers),
    "ScatterElements": _scatter(_element_numbers),
    "ScatterND": _scatter(_row_elements),
}
