"""Operators that read, write or move elements by their places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.network.operand_shapes.calls import Call, Rule, axis_of, axis_of_input, must_be, same_rank, singles

if TYPE_CHECKING:
    from harness.network.operand_shapes.calls import Array


def _within(indices: Array, axis: int, size: int) -> Iterator[str]:
    """Indices that are known lie within an axis."""
    if indices.size and indices.dtype.kind in "iu":
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            yield f"Its indices, from {low} to {high}, exceed axis {axis} of size {size}"


def gather(call: Call) -> Iterator[str]:
    """A Gather; shape inference checks its axis."""
    read, indices = call.shape(0), call.values.get(1)
    axis = None if read is None else axis_of(call, len(read))
    if read is not None and axis is not None and indices is not None:
        yield from _within(indices, axis, read[axis])


def elements(updates: int | None) -> Rule:
    """GatherElements and ScatterElements: `updates` is the place of the values that are scattered."""

    def rule(call: Call) -> Iterator[str]:
        read, indices = call.shape(0), call.shape(1)
        if read is None or indices is None:
            return
        axis = axis_of(call, len(read))
        if axis is None or len(indices) != len(read):
            yield from axis_of_input(0)(call)
            yield from same_rank("indices", indices, len(read))
            return
        if any(size > read[at] for at, size in enumerate(indices) if at != axis):
            yield f"Its indices of shape {list(indices)} exceed the input's {list(read)}"
        if 1 in call.values:
            yield from _within(call.values[1], axis, read[axis])
        if updates is not None:
            yield from must_be("updates", call.shape(updates), indices)

    return rule


def scatter_nd(call: Call) -> Iterator[str]:
    """A ScatterND."""
    read, indices = call.shape(0), call.shape(1)
    if read is None or indices is None:
        return
    if not indices or not 1 <= indices[-1] <= len(read):
        yield f"Its indices of shape {list(indices)} do not address an input of shape {list(read)}"
        return
    yield from must_be("updates", call.shape(2), indices[:-1] + read[indices[-1] :])
    if 1 in call.values:
        for axis in range(indices[-1]):
            yield from _within(call.values[1][..., axis], axis, read[axis])


def batches_of_gather(call: Call) -> Iterator[str]:
    """A GatherND: shape inference crashes for batch dimensions that are none."""
    read, indices, count = call.shape(0), call.shape(1), call.number("batch_dims", 0)
    if read is None or indices is None:
        return
    if not 0 <= count < min(len(read), len(indices)):
        yield f"Its batch_dims is {count}; its input has {len(read)} dimensions and its indices {len(indices)}"
    elif read[:count] != indices[:count]:
        yield f"Its input and indices have batches of {list(read[:count])} and {list(indices[:count])}"


def split(call: Call) -> Iterator[str]:
    """A Split: shape inference crashes if it has more results than it states."""
    results = len(call.node.outputs)
    if call.shape(1) is None and call.number("num_outputs", results) < results:
        yield f"Its num_outputs is {call.number('num_outputs', results)}; it has {results} results"


def transpose(call: Call) -> Iterator[str]:
    """A Transpose."""
    read, order = call.shape(0), call.numbers("perm")
    if read is not None and order is not None and sorted(order) != list(range(len(read))):
        yield f"Its perm is {list(order[:8])}; its input has {len(read)} dimensions"


def unpool(call: Call) -> Iterator[str]:
    """A MaxUnpool."""
    read = call.shape(0)
    if read is not None:
        yield from must_be("indices", call.shape(1), read)


def complex_numbers(call: Call) -> Iterator[str]:
    """A DFT."""
    read = call.shape(0)
    if read is not None and (not read or read[-1] not in (1, 2)):
        yield f"Its input has shape {list(read)}; the last dimension must be 1 (real) or 2 (complex)"


def signal(call: Call) -> Iterator[str]:
    """An STFT."""
    read = call.shape(0)
    if read is not None and (len(read) not in (2, 3) or (len(read) == 3 and read[2] not in (1, 2))):
        yield f"Its signal has shape {list(read)}; it must be a batch, a length, and 1 (real) or 2 (complex)"
    yield from singles({1: "frame step"})(call)


def region(call: Call) -> Iterator[str]:
    """The part of its input that a Resize reads: first and last place along each axis."""
    read, roi = call.shape(0), call.shape(1)
    if read is None or roi is None or call.text("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return
    counts = {2 * len(read), 2 * len(call.numbers("axes") or read)}
    if math.prod(roi) not in counts:
        yield f"Its roi has shape {list(roi)}; it must be a list of {min(counts)} numbers"


def cumulative(call: Call) -> Iterator[str]:
    """A CumSum or CumProd."""
    yield from singles({1: "axis"})(call)
    read, axis = call.shape(0), call.values.get(1)
    if read is not None and axis is not None and not -len(read) <= int(axis.reshape(-1)[0]) < len(read):
        yield f"Its axis is {int(axis.reshape(-1)[0])}; its input has {len(read)} dimensions"


def classes(call: Call) -> Iterator[str]:
    """A loss: one class for each prediction, and one weight for each class."""
    read = call.shape(0)
    if read is None:
        return
    if len(read) < 2:
        yield f"Its input has {len(read)} dimensions; it must have 2 or more"
        return
    yield from must_be("target", call.shape(1), (read[0], *read[2:]))
    yield from must_be("weight", call.shape(2), (read[1],))


def affine_grid(call: Call) -> Iterator[str]:
    """An AffineGrid of two or three axes."""
    size = call.values.get(1)
    if size is not None and size.size in (4, 5):
        axes = int(size.size) - 2
        yield from must_be("theta", call.shape(0), (int(size.reshape(-1)[0]), axes, axes + 1))


def columns(call: Call) -> Iterator[str]:
    """A Col2Im."""
    read, block = call.shape(0), call.values.get(2)
    taps = 0 if block is None else math.prod(map(int, block.reshape(-1)))
    if read is not None and len(read) == 3 and taps > 0 and read[1] % taps:
        yield f"Its input has {read[1]} rows, no multiple of a block of {taps}"
