"""Convolutions, matrix products, attention, recurrent operators, normalisations, and their scales."""

import math
from collections.abc import Iterator, Sequence

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
_GROUP_SCALES_OF_CHANNELS = 21
"""The opset since which GroupNormalization has a scale for each channel, not for each group."""


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


def attention(operands: NodeOperands) -> Iterator[str]:
    """An Attention; its Q, K and V have three dimensions, or four with the heads in the second."""
    query, key, value = shapes = tuple(operands.shape(place) for place in range(3))
    if query is None or key is None or value is None:
        return
    if not len(query) == len(key) == len(value) or len(query) not in (3, 4):
        yield f"Its Q, K and V have {len(query)}, {len(key)} and {len(value)} dimensions; all need 3, or all 4"
        return
    if not query[0] == key[0] == value[0]:
        yield f"Its Q, K and V have batches of {query[0]}, {key[0]} and {value[0]}"
    if key[-2] != value[-2]:
        yield f"Its K and V have sequences of {key[-2]} and {value[-2]}"
    own = operands.number("kv_num_heads", 0)
    heads = [query[1], key[1], value[1]] if len(query) == 4 else [operands.number("q_num_heads", 0), own, own]
    flat = [shape for shape in shapes if shape is not None and len(shape) == 3]
    if min(heads) < 1 or any(shape[2] % count for shape, count in zip(flat, heads, strict=False)):
        yield f"Its Q, K and V of {query[2]}, {key[2]} and {value[2]} cannot be divided into {heads} heads"
        return
    if heads[1] != heads[2] or heads[0] % heads[1]:
        yield f"Its Q, K and V have {heads[0]}, {heads[1]} and {heads[2]} heads"
    sizes = [shape[2] // count for shape, count in zip(flat, heads, strict=False)]
    sizes = sizes or [query[3], key[3], value[3]]
    if sizes[0] != sizes[1]:
        yield f"The heads of its Q and K have sizes of {sizes[0]} and {sizes[1]}"
    yield from _mask(operands, (query[0], heads[0], query[-2]))
    yield from _past(operands, (query[0], heads[1]), sizes[1:])
    yield from must_be("nonpad_kv_seqlen", operands.shape(6), (query[0],))


def _mask(operands: NodeOperands, into: Shape) -> Iterator[str]:
    mask = operands.shape(3)
    if mask is None:
        return
    ends = zip(mask[-2::-1], into[::-1], strict=False)
    if not 2 <= len(mask) <= 4 or any(own not in (1, size) for own, size in ends):
        yield f"Its mask has shape {list(mask)}; it must fit {list(into)} and the sequence of K"


def _past(operands: NodeOperands, batch_and_heads: Shape, sizes: list[int]) -> Iterator[str]:
    lengths = set()
    for place, what, size in ((4, "past key", sizes[0]), (5, "past value", sizes[1])):
        past = operands.shape(place)
        if past is None:
            continue
        if len(past) != 4 or past[:2] != batch_and_heads or past[3] != size:
            yield f"Its {what} has shape {list(past)}; it must have {[*batch_and_heads, 'any length', size]}"
            return
        lengths.add(past[2])
    if len(lengths) > 1:
        yield f"Its past key and past value have different lengths: {sorted(lengths)}"


def rotary(operands: NodeOperands) -> Iterator[str]:
    """A RotaryEmbedding."""
    read, cosines, sines, positions = (operands.shape(place) for place in range(4))
    if read is None or cosines is None or sines is None:
        return
    yield from must_be("sin_cache", sines, cosines)
    yield from same_rank("cos_cache", cosines, 3 if positions is None else 2)
    if len(read) not in (3, 4):
        yield f"Its input has {len(read)} dimensions; it must have 3 or 4"
        return
    if positions is not None:
        yield from must_be("position_ids", positions, (read[0], read[-2]))
    heads = 1 if len(read) == 4 else max(1, operands.number("num_heads", 1))
    if read[-1] % heads:
        yield f"Its input of {read[-1]} cannot be divided into {heads} heads"
    rotated = operands.number("rotary_embedding_dim", 0) or read[-1] // heads
    if rotated > read[-1] // heads or (cosines and cosines[-1] != rotated // 2):
        yield f"Its cos_cache ends with {cosines[-1:]}; it must end with half of {rotated}"


def per_channel(names: Sequence[str]) -> Rule:
    """Operands after the input with one number for each of its channels."""

    def rule(operands: NodeOperands) -> Iterator[str]:
        read = operands.shape(0)
        if read is None or len(read) < 2:
            return
        for place, what in enumerate(names, 1):
            yield from must_be(what, operands.shape(place), (read[1],))

    return rule


def group_normalization(operands: NodeOperands) -> Iterator[str]:
    """A GroupNormalization."""
    read, groups = operands.shape(0), operands.number("num_groups", 0)
    if read is None or len(read) < 2:
        return
    if groups < 1 or read[1] % groups:
        yield f"Its {read[1]} channels cannot be divided into {groups} groups"
        return
    size = read[1] if operands.opset >= _GROUP_SCALES_OF_CHANNELS else groups
    for place, what in ((1, "scale"), (2, "bias")):
        shape = operands.shape(place)
        if shape is not None and math.prod(shape) not in (1, size):
            yield from must_be(what, shape, (size,))


def layer_normalization(operands: NodeOperands) -> Iterator[str]:
    """A normalisation over the last axes."""
    read = operands.shape(0)
    yield from axis_of_input(-1)(operands)
    if read is not None:
        yield from must_fit("scale", operands.shape(1), read)
        yield from must_fit("bias", operands.shape(2), read)


def slope(operands: NodeOperands) -> Iterator[str]:
    """A PRelu."""
    read = operands.shape(0)
    if read is not None:
        yield from must_fit("slope", operands.shape(1), read)
