"""TopK: the largest or smallest elements along an axis, in order, with their indices.

Few elements are selected one after the other: the largest is taken, and loses its value. Many elements are selected by
rank: the number of elements before each is counted, and the element of each rank is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.indexing import gather_along_axis
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

MOST_SELECTIONS = 1024
"""The most elements that are selected one after the other: each takes three layers."""
_MOST_PAIRS = 1 << 27
"""The most pairs of elements that are compared for ranks."""
_SELECTED_TOGETHER = 1 << 19
"""The most elements of which some are selected at once: more do not stay on the chip between these layers."""
_LAYERS_OF_A_SELECTION = 3
_LAYERS_OF_PAIRS = 8
_ELEMENTS_OF_A_LAYER = 2048
"""Elements that the vector unit computes in about the time that a further layer takes."""
_LOWEST = -1e300
"""Below all numbers of float32 and int32, and above what a selected element becomes."""
_EXACT_IN_FLOAT64 = frozenset(
    {DataType.FLOAT32, DataType.FLOAT16, DataType.INT8, DataType.UINT8, DataType.INT32, DataType.BOOL}
)


@dataclass(frozen=True)
class _Selection:
    """What to select: `count` elements along an axis of `size` elements; the largest, or the smallest."""

    source: View
    axis: int
    count: int
    largest: bool

    @property
    def size(self) -> int:
        """Elements along the axis."""
        return self.source.shape[self.axis]

    def spread(self, place: int, size: int) -> tuple[int, ...]:
        """Return the shape of the source with another axis of this size at a place."""
        return (*self.source.shape[:place], size, *self.source.shape[place:])

    def along(self, size: int) -> tuple[int, ...]:
        """Return the shape of the source with another size of the axis."""
        return (*self.source.shape[: self.axis], size, *self.source.shape[self.axis + 1 :])


def top_k(build: Builder, node: OnnxNode) -> None:
    """Add a TopK by a constant k; equal elements keep their order. The order is always that of `sorted`."""
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", -1) % len(source.axes)
    count = int(build.number(node.inputs[1], "k")) if node.input(1) else node.attribute("k")
    if not 1 <= count <= source.shape[axis]:
        raise unsupported(node, f"Its k is {count}, of {source.shape[axis]} elements")
    wanted = _Selection(source, axis, count, bool(node.attribute("largest", 1)))
    if len(node.outputs) > 1 and node.outputs[1]:
        indices = build.result(1)
    else:
        indices = build.temporary("indices", wanted.along(count), DataType.INT64)
    if _is_ranked(build, node, wanted):
        _by_rank(build, wanted, indices)
    else:
        for part, own in _rows_together(wanted, indices):
            _one_by_one(build, part, own)
    if node.outputs[0]:
        gather_along_axis(build, source, indices, axis, build.result())


def _is_ranked(build: Builder, node: OnnxNode, wanted: _Selection) -> bool:
    """Return whether ranks take fewer operations; raises UnsupportedOperator if both ways take too many."""
    rows = math.prod(wanted.source.shape) // wanted.size
    each = rows * wanted.size
    pairs = each * wanted.size
    one_by_one = _LAYERS_OF_A_SELECTION * wanted.count * (each + _ELEMENTS_OF_A_LAYER)
    can_select = wanted.count <= MOST_SELECTIONS and build.dtype(wanted.source) in _EXACT_IN_FLOAT64
    if not can_select and pairs > _MOST_PAIRS:
        raise unsupported(node, f"It selects {wanted.count} of {wanted.size} elements, {rows} times")
    return not can_select or (pairs <= _MOST_PAIRS and _LAYERS_OF_PAIRS * pairs <= one_by_one)


def _rows_together(wanted: _Selection, indices: View) -> Iterator[tuple[_Selection, View]]:
    """Yield the selection in parts of the first axis with several rows, if one is before that of the selection."""
    source = wanted.source
    along = next((place for place in range(wanted.axis) if source.shape[place] > 1), None)
    if along is None:
        yield wanted, indices
        return
    rows = source.shape[along]
    together = max(1, _SELECTED_TOGETHER * rows // math.prod(source.shape))
    for first in range(0, rows, together):
        count = min(together, rows - first)
        part = replace(wanted, source=views.sliced(source, along, first, count))
        yield part, views.sliced(indices, along, first, count)


def _one_by_one(build: Builder, wanted: _Selection, indices: View) -> None:
    """Add layers that find the largest element, and give it a value below all others, again and again.

    They compute in float64, which has such a value.
    """
    source, axis = wanted.source, wanted.axis
    rest = build.temporary("wide", source.shape, DataType.FLOAT64)
    build.copy(source, rest)
    if not wanted.largest:
        rest = build.mapped("negated", rest, Activation.NEGATE)
    rest = build.mapped("bounded", rest, Activation.CLIP, _LOWEST, float("inf"))
    mask = axes_mask((axis,), len(source.axes))
    shape = tuple(wanted.size if place == axis else 1 for place in range(len(source.axes)))
    name = build.node.inputs[0]
    places = build.constant_view(known(f"{name}.places{axis}", np.arange(wanted.size).reshape(shape), DataType.INT64))
    taken = build.constant_view(known(f"{name}.taken", np.array(-np.inf), DataType.FLOAT64))
    for place in range(wanted.count):
        found = views.sliced(indices, axis, place, 1)
        build.layer(Function.REDUCE, [rest], found, Settings(axes=mask, mode=Reduction.ARGMAX))
        if place < wanted.count - 1:
            chosen = build.combined(f"chosen{place}", Binary.EQUAL, found, places, DataType.BOOL)
            left = build.temporary(f"left{place}", source.shape, DataType.FLOAT64)
            build.layer(Function.WHERE, [chosen, views.expanded(taken, source.shape), rest], left)
            rest = left


def _by_rank(build: Builder, wanted: _Selection, indices: View) -> None:
    """Add layers that compare all pairs, count what comes before each element, and find the element of each rank."""
    source, axis, size = wanted.source, wanted.axis, wanted.size
    pairs = wanted.spread(axis + 1, size)
    own, other = (views.expanded(views.with_axis(source, place), pairs) for place in (axis + 1, axis))
    beyond = Binary.GREATER if wanted.largest else Binary.LESS
    before = build.combined("before", beyond, other, own, DataType.BOOL)
    equal = build.combined("equal", Binary.EQUAL, other, own, DataType.BOOL)
    lower = np.tri(size, size, -1, dtype=bool)  # the other element has a lower index
    behind = (1,) * (len(source.axes) - axis - 1)
    mask = known(f"{build.node.inputs[0]}.lower{axis}", lower.reshape((size, size, *behind)), DataType.BOOL)
    tied = build.combined("tied", Binary.AND, equal, build.constant_view(mask))
    earlier = build.combined("earlier", Binary.OR, before, tied)
    rank = build.temporary("rank", wanted.spread(axis + 1, 1), DataType.FLOAT32)
    _along(build, earlier, rank, axis + 1, Reduction.SUM)
    ranks = known(
        f"{build.node.inputs[0]}.ranks{wanted.count}", np.arange(wanted.count).reshape(-1, 1, *behind), DataType.FLOAT32
    )
    by_rank = views.with_axis(views.divided(rank, source.shape), axis)
    chosen = build.combined("chosen", Binary.EQUAL, by_rank, build.constant_view(ranks), DataType.BOOL)
    _along(build, chosen, views.with_axis(indices, axis + 1), axis + 1, Reduction.ARGMAX)


def _along(build: Builder, source: View, output: View, axis: int, mode: Reduction) -> None:
    """Add a reduction of booleans, as numbers."""
    numbers = build.temporary(f"numbers{mode.name.lower()}", source.shape, DataType.FLOAT32)
    build.copy(source, numbers)
    build.layer(Function.REDUCE, [numbers], output, Settings(axes=axes_mask((axis,), len(source.axes)), mode=mode))


HANDLERS: Mapping[str, Handler] = {"TopK": top_k}
