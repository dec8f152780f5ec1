"""Convolutions, matrix products, recurrent operators, and their scales."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.network.operand_shapes.node_operands import (
    NodeOperands,
    Rule,
    Shape,
    axis_of,
    axis_of_input,
    must_be,
    must_fit,
    same_count,
    same_rank,
)
from harness.network.operator_kinds import GATES

_PEEPHOLES = 3


def convolution(weight: int, bias: int | None, offsets: bool = False) -> Rule:
    """A convolution; `weight` and `bias` are the places of these operands, None for an operator without bias."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        read, kernel = operands.shape(0), operands.shape(weight)
        if read is None or kernel is None:
            return
        if len(kernel) != len(read) or len(read) < 3:
            yield _ranks(read, kernel)
            return
        group, channels = operands.number("group", 1), read[-1 if operands.number("channels_last", 0) else 1]
        if channels != kernel[1] * group:
            groups = f"{group} group{'s' if group > 1 else ''}"
            yield f"Its input has {channels} channels; its weights are for {groups} of {kernel[1]}"
        if kernel[0] % group:
            yield f"Its {kernel[0]} output channels cannot be divided into {group} groups"
        yield from _kernel(operands, kernel)
        if bias is not None:
            yield from must_be("bias", operands.shape(bias), (kernel[0],))
        if offsets:
            yield from _offsets(operands, read, kernel)

    return rule


def _ranks(read: Shape, kernel: Shape) -> str:
    return f"Its weights have {len(kernel)} dimensions and its input {len(read)}; both need the same, 3 or more"


def _kernel(operands: NodeOperands, kernel: Shape) -> Iterator[str]:
    stated = operands.numbers("kernel_shape")
    if stated is not None and stated != kernel[2:]:
        yield f"Its kernel_shape is {list(stated[:8])}; its weights have {list(kernel[2:])}"


def _offsets(operands: NodeOperands, read: Shape, kernel: Shape) -> Iterator[str]:
    """The offsets and the mask of a deformable convolution."""
    groups, taps = operands.number("offset_group", 1), math.prod(kernel[2:])
    if read[1] % groups:
        yield f"Its {read[1]} input channels cannot be divided into {groups} groups of offsets"
    windows = tuple(_windows(operands, read[2:], kernel[2:]))
    for place, what, channels in ((2, "offset", groups * taps * (len(read) - 2)), (4, "mask", groups * taps)):
        yield from must_be(what, operands.shape(place), (read[0], channels, *windows))


def _windows(operands: NodeOperands, read: Shape, kernel: Shape) -> Iterator[int]:
    """Yield the number of places of a kernel along each axis; nothing if its attributes are of another rank."""
    axes = len(read)
    pads = operands.numbers("pads") or (0,) * 2 * axes
    strides, dilations = (operands.numbers(name) or (1,) * axes for name in ("strides", "dilations"))
    if len(pads) != 2 * axes or not len(strides) == len(dilations) == axes or min(strides) < 1:
        return
    for axis in range(axes):
        span = dilations[axis] * (kernel[axis] - 1) + 1
        yield (read[axis] + pads[axis] + pads[axis + axes] - span) // strides[axis] + 1


def transposed_convolution(operands: NodeOperands) -> Iterator[str]:
    """A ConvTranspose, whose weights have the input's channels first."""
    read, kernel = operands.shape(0), operands.shape(1)
    if read is None or kernel is None:
        return
    if len(kernel) != len(read) or len(read) < 3:
        yield _ranks(read, kernel)
        return
    group = operands.number("group", 1)
    if read[1] != kernel[0]:
        yield f"Its input has {read[1]} channels; its weights are for {kernel[0]}"
    if read[1] % group:
        yield f"Its {read[1]} input channels cannot be divided into {group} groups"
    yield from _kernel(operands, kernel)
    yield from must_be("bias", operands.shape(2), (kernel[1] * group,))


def gemm(operands: NodeOperands) -> Iterator[str]:
    """A Gemm: what it adds must fit the product, whose own sizes shape inference checks."""
    left, right = operands.shape(0), operands.shape(1)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return
    rows = left[1 if operands.number("transA", 0) else 0]
    columns = right[0 if operands.number("transB", 0) else 1]
    yield from must_fit("C", operands.shape(2), (rows, columns))


def recurrent(operands: NodeOperands) -> Iterator[str]:
    """An LSTM, GRU or RNN; shape inference checks the rank of its input."""
    read, recurrence = operands.shape(0), operands.shape(2)
    if read is None or recurrence is None or len(read) != 3:
        return
    if len(recurrence) != 3:
        yield from same_rank("recurrence weights", recurrence, 3)
        return
    gates, hidden = GATES[operands.node.op], operands.number("hidden_size", recurrence[2])
    directions = 2 if operands.text("direction", "forward") == "bidirectional" else 1
    batch_first = operands.number("layout", 0) == 1
    batch = read[0 if batch_first else 1]
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    wanted = [
        (1, "weights", (directions, gates * hidden, read[2])),
        (2, "recurrence weights", (directions, gates * hidden, hidden)),
        (3, "bias", (directions, 2 * gates * hidden)),
        (4, "sequence lengths", (batch,)),
        (5, "initial state", state),
    ]
    if operands.node.op == "LSTM":
        wanted += [(6, "initial cell state", state), (7, "peepholes", (directions, _PEEPHOLES * hidden))]
    for place, what, shape in wanted:
        yield from must_be(what, operands.shape(place), shape)


def scales_of_convolution(operands: NodeOperands) -> Iterator[str]:
    """Scales and zero points of the weights of a QLinearConv: one number, or one per output channel."""
    kernel = operands.shape(3)
    for place, what in ((4, "scale of weights"), (5, "zero point of weights")):
        shape = operands.shape(place)
        if shape is not None and kernel is not None and math.prod(shape) != 1:
            yield from must_be(what, shape, kernel[:1])


def scales_of_product(operands: NodeOperands) -> Iterator[str]:
    """Scales and zero points of a QLinearMatMul come in pairs; lists of them belong to rows of a and columns of b."""
    for place, what in ((2, "zero point of a"), (5, "zero point of b"), (7, "zero point of the result")):
        if (scale := operands.shape(place - 1)) is not None:
            yield from same_count(what, operands.shape(place), scale)
    left, right = operands.shape(0), operands.shape(3)
    for place, what, side in ((1, "scale of a", left and left[-2:-1]), (4, "scale of b", right and right[-1:])):
        scale = operands.shape(place)
        if scale is not None and len(scale) == 1 and scale != (1,) and side:
            yield from must_be(what, scale, side)


def scaled(operands: NodeOperands) -> Iterator[str]:
    """QuantizeLinear and DequantizeLinear: one scale, one for each place on an axis, or one for each block."""
    read, scale = operands.shape(0), operands.shape(1)
    if read is None or scale is None:
        return
    yield from same_count("zero point", operands.shape(2), scale)
    along = axis_of(operands, len(read), 1)
    if operands.number("block_size", 0):
        yield from same_rank("scale", scale, len(read))
    elif math.prod(scale) != 1 and along is None:
        yield from axis_of_input(1)(operands)
    elif math.prod(scale) != 1 and along is not None:
        yield from must_be("scale", scale, (read[along],))
