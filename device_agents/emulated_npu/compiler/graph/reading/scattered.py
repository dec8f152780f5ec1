"""Scattering to computed places, and reductions of computed updates: all places are compared with all updates."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from device_agents.emulated_npu.compiler.graph.constants import number_of
from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decompose, Decomposition
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import DataType

_MOST_PAIRS = 1 << 24
"""The most pairs of an update and a place; with a reduction, of an element of each."""
_COMBINED: Mapping[str, tuple[str, str, float]] = {
    "add": ("ReduceSum", "Add", 0.0),
    "mul": ("ReduceProd", "Mul", 1.0),
    "max": ("ReduceMax", "Max", -math.inf),
    "min": ("ReduceMin", "Min", math.inf),
}
"""Reductions of updates: what combines those of a place, what adds them to the tensor, and what changes nothing."""


def is_computed(node: NodeProto, constants: Collection[str]) -> bool:
    """Return whether the network computes the places of a scattering, or updates that a reduction combines."""
    reductions = (item.s for item in node.attribute if item.name == "reduction")
    places = (1,) if next(reductions, b"") in (b"", b"none") else (1, 2)
    return any(place < len(node.input) and node.input[place] not in constants for place in places)


def _elements(found: Decomposition) -> None:
    """Decompose ScatterElements: an update goes to another place along the axis."""
    shape, indices = found.shape(0), found.shape(1)
    axis = found.attributes().get("axis", 0)
    if len(indices) != len(shape) or not -len(shape) <= axis < len(shape):
        raise found.invalid(f"Its indices {list(indices)} do not fit axis {axis} of a tensor {list(shape)}")
    axis %= len(shape)
    if any(own != size for place, (own, size) in enumerate(zip(indices, shape, strict=True)) if place != axis):
        raise found.unsupported(f"Its indices {list(indices)} do not cover the other axes of a tensor {list(shape)}")
    _check_updates(found, indices)
    size = found.constant(np.array(shape[axis], NUMPY_TYPES[found.types[found.required(1)].dtype]))
    numbers = found.compute("Mod", [found.required(1), size])
    found.bound(_scattered(found, (found.required(0), numbers, found.required(2)), shape, indices, axis))


def _rows(found: Decomposition) -> None:
    """Decompose ScatterND: an update is a row of the tensor whose first axes are one."""
    shape, indices = found.shape(0), found.shape(1)
    depth = indices[-1] if indices else 0
    if not 0 < depth <= len(shape):
        raise found.invalid(f"Its indices {list(indices)} do not fit a tensor {list(shape)}")
    outer, inner, count = shape[:depth], math.prod(shape[depth:]), math.prod(indices[:-1])
    _check_updates(found, (*indices[:-1], *shape[depth:]))
    strides = [math.prod(outer[place + 1 :]) for place in range(depth)]
    wrapped = found.compute("Mod", [found.required(1), found.integers(outer)])
    scaled = found.compute("Mul", [wrapped, found.integers(strides)])
    total = found.reduced("ReduceSum", scaled, len(indices) - 1) if depth > 1 else scaled
    table = math.prod(outer), inner
    tensor, updates = found.reshaped(found.required(0), table), found.reshaped(found.required(2), (count, inner))
    operands = tensor, found.reshaped(total, (count, 1)), updates
    found.bound(found.reshaped(_scattered(found, operands, table, (count, 1), 0), shape))


def _check_updates(found: Decomposition, wanted: Sequence[int]) -> None:
    if found.shape(2) != tuple(wanted):
        raise found.invalid(f"Its updates have shape {list(found.shape(2))}, and its indices need {list(wanted)}")


def _scattered(
    found: Decomposition, operands: tuple[str, str, str], shape: Sequence[int], indices: Sequence[int], axis: int
) -> str:
    """Return a tensor with its updates; operands are the tensor, places along the axis, and the updates.

    Places of rows have one element for each update, others as many as the updates.
    """
    tensor, places, updates = operands
    count, size = indices[axis], shape[axis]
    before, behind = tuple(indices[:axis]), tuple(indices[axis + 1 :])
    reduction = (found.attributes().get("reduction") or b"none").decode(errors="replace")
    times = math.prod((*before, *(behind if reduction == "none" else shape[axis + 1 :])))
    if size * count * times > _MOST_PAIRS:
        raise found.unsupported(f"It compares {count} updates with {size} places, {times} times")
    dtype = NUMPY_TYPES[found.types[found.required(1)].dtype]
    ones = (1,) * len(before)
    own = found.constant(np.arange(size, dtype=dtype).reshape((*ones, size, 1, *[1] * len(behind))))
    hit = found.compute("Equal", [found.reshaped(places, (*before, 1, count, *behind)), own])
    if reduction == "none":
        return _replaced(found, (tensor, hit, updates), shape, indices, axis)
    if reduction not in _COMBINED:
        raise found.unsupported(f"Its reduction is {reduction[:40]!r}")
    reduce, combine, neutral = _COMBINED[reduction]
    kind = found.types[found.required(0)].dtype
    if kind is DataType.BOOL:
        raise found.unsupported("It reduces elements of type bool")
    around = (*shape[:axis], 1, count, *shape[axis + 1 :])
    unchanged = found.constant(number_of(neutral, NUMPY_TYPES[kind]))
    spread = found.compute("Where", [hit, found.reshaped(updates, around), unchanged])
    total = found.reshaped(found.reduced(reduce, spread, axis + 1), shape)
    return found.compute(combine, [tensor, total])


def _replaced(
    found: Decomposition, operands: tuple[str, str, str], shape: Sequence[int], indices: Sequence[int], axis: int
) -> str:
    """Return a tensor with the last update of each place.

    Operands are the tensor, which update goes to which place, and the updates. The tensor and its updates are one
    table: a place without updates picks its own element.
    """
    tensor, hit, updates = operands
    count, size = indices[axis], shape[axis]
    behind = [1] * (len(shape) - axis - 1)
    order = found.constant(np.arange(1, count + 1, dtype=np.float32).reshape((count, *behind)))
    ranks = found.compute("Where", [hit, order, found.constant(np.array(0.0, np.float32))])
    highest = found.reshaped(found.reduced("ReduceMax", ranks, axis + 1), (*indices[:axis], size, *indices[axis + 1 :]))
    last = found.compute("Cast", [highest], {"to": TensorProto.INT64})
    own = found.integers(np.arange(size).reshape((size, *behind)))
    behind_tensor = found.compute("Add", [last, found.integers(size - 1)])
    picked = found.compute("Where", [found.compute("Greater", [last, found.integers(0)]), behind_tensor, own])
    table = found.joined([tensor, updates], axis)
    if axis == 0 and tuple(indices) == (count, 1):
        return found.compute("Gather", [table, found.reshaped(picked, (size,))], {"axis": 0})
    return found.compute("GatherElements", [table, picked], {"axis": axis})


DECOMPOSITIONS: Mapping[str, Decompose] = {"ScatterElements": _elements, "ScatterND": _rows}
