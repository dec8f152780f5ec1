"""Operators that read, write or move elements by their places."""

import math
from collections.abc import Iterator

from harness.array_types import Array
from harness.network.operand_shapes.node_operands import (
    NodeOperands,
    Rule,
    axis_of,
    axis_of_input,
    must_be,
    same_rank,
    singles,
)


def _within(indices: Array, axis: int, size: int) -> Iterator[str]:
    """Indices that are known lie within an axis."""
    if indices.size and indices.dtype.kind in "iu":
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            yield f"Its indices, from {low} to {high}, exceed axis {axis} of size {size}"


def gather(operands: NodeOperands) -> Iterator[str]:
    """A Gather; shape inference checks its axis."""
    read, indices = operands.shape(0), operands.values.get(1)
    axis = None if read is None else axis_of(operands, len(read))
    if read is not None and axis is not None and indices is not None:
        yield from _within(indices, axis, read[axis])


def elements(updates: int | None) -> Rule:
    """GatherElements and ScatterElements: `updates` is the place of the values that are scattered."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        read, indices = operands.shape(0), operands.shape(1)
        if read is None or indices is None:
            return
        axis = axis_of(operands, len(read))
        if axis is None or len(indices) != len(read):
            yield from axis_of_input(0)(operands)
            yield from same_rank("indices", indices, len(read))
            return
        if any(size > read[at] for at, size in enumerate(indices) if at != axis):
            yield f"Its indices of shape {list(indices)} exceed the input's {list(read)}"
        if 1 in operands.values:
            yield from _within(operands.values[1], axis, read[axis])
        if updates is not None:
            yield from must_be("updates", operands.shape(updates), indices)

    return rule


def scatter_nd(operands: NodeOperands) -> Iterator[str]:
    """A ScatterND."""
    read, indices = operands.shape(0), operands.shape(1)
    if read is None or indices is None:
        return
    if not indices or not 1 <= indices[-1] <= len(read):
        yield f"Its indices of shape {list(indices)} do not address an input of shape {list(read)}"
        return
    yield from must_be("updates", operands.shape(2), indices[:-1] + read[indices[-1] :])
    if 1 in operands.values:
        for axis in range(indices[-1]):
            yield from _within(operands.values[1][..., axis], axis, read[axis])


def batches_of_gather(operands: NodeOperands) -> Iterator[str]:
    """A GatherND: shape inference crashes for batch dimensions that are none."""
    read, indices, count = operands.shape(0), operands.shape(1), operands.number("batch_dims", 0)
    if read is None or indices is None:
        return
    if not 0 <= count < min(len(read), len(indices)):
        yield f"Its batch_dims is {count}; its input has {len(read)} dimensions and its indices {len(indices)}"
    elif read[:count] != indices[:count]:
        yield f"Its input and indices have batches of {list(read[:count])} and {list(indices[:count])}"


def split(operands: NodeOperands) -> Iterator[str]:
    """A Split: shape inference crashes if it has more results than it states."""
    results = len(operands.node.outputs)
    if operands.shape(1) is None and operands.number("num_outputs", results) < results:
        yield f"Its num_outputs is {operands.number('num_outputs', results)}; it has {results} results"


def transpose(operands: NodeOperands) -> Iterator[str]:
    """A Transpose."""
    read, order = operands.shape(0), operands.numbers("perm")
    if read is not None and order is not None and sorted(order) != list(range(len(read))):
        yield f"Its perm is {list(order[:8])}; its input has {len(read)} dimensions"


def unpool(operands: NodeOperands) -> Iterator[str]:
    """A MaxUnpool."""
    read = operands.shape(0)
    if read is not None:
        yield from must_be("indices", operands.shape(1), read)


def complex_numbers(operands: NodeOperands) -> Iterator[str]:
    """A DFT."""
    read = operands.shape(0)
    if read is not None and (not read or read[-1] not in (1, 2)):
        yield f"Its input has shape {list(read)}; the last dimension must be 1 (real) or 2 (complex)"


def signal(operands: NodeOperands) -> Iterator[str]:
    """An STFT."""
    read = operands.shape(0)
    if read is not None and (len(read) not in (2, 3) or (len(read) == 3 and read[2] not in (1, 2))):
        yield f"Its signal has shape {list(read)}; it must be a batch, a length, and 1 (real) or 2 (complex)"
    yield from singles({1: "frame step"})(operands)


def region(operands: NodeOperands) -> Iterator[str]:
    """The part of its input that a Resize reads: first and last place along each axis."""
    read, roi = operands.shape(0), operands.shape(1)
    if read is None or roi is None or operands.text("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return
    counts = {2 * len(read), 2 * len(operands.numbers("axes") or read)}
    if math.prod(roi) not in counts:
        yield f"Its roi has shape {list(roi)}; it must be a list of {min(counts)} numbers"


def cumulative(operands: NodeOperands) -> Iterator[str]:
    """A CumSum or CumProd."""
    yield from singles({1: "axis"})(operands)
    read, axis = operands.shape(0), operands.values.get(1)
    if read is not None and axis is not None and not -len(read) <= int(axis.reshape(-1)[0]) < len(read):
        yield f"Its axis is {int(axis.reshape(-1)[0])}; its input has {len(read)} dimensions"


def classes(operands: NodeOperands) -> Iterator[str]:
    """A loss: one class for each prediction, and one weight for each class."""
    read = operands.shape(0)
    if read is None:
        return
    if len(read) < 2:
        yield f"Its input has {len(read)} dimensions; it must have 2 or more"
        return
    yield from must_be("target", operands.shape(1), (read[0], *read[2:]))
    yield from must_be("weight", operands.shape(2), (read[1],))


def affine_grid(operands: NodeOperands) -> Iterator[str]:
    """An AffineGrid of two or three axes."""
    size = operands.values.get(1)
    if size is not None and size.size in (4, 5):
        axes = int(size.size) - 2
        yield from must_be("theta", operands.shape(0), (int(size.reshape(-1)[0]), axes, axes + 1))


def columns(operands: NodeOperands) -> Iterator[str]:
    """A Col2Im."""
    read, block = operands.shape(0), operands.values.get(2)
    taps = 0 if block is None else math.prod(map(int, block.reshape(-1)))
    if read is not None and len(read) == 3 and taps > 0 and read[1] % taps:
        yield f"Its input has {read[1]} rows, no multiple of a block of {taps}"
