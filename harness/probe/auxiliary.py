"""Auxiliary layers: operators after a layer that use its result and return little of it (S1.1).

`AuxiliaryKind` declares the kinds; adding one takes one member there. All other code asks a kind for its properties.

`attach` prepares the tensor first. Tensors of rank 0 and 1 get leading dimensions, those of rank 6 and more are folded.
Pooling takes only floats: tensors of other types are sliced to one element and cast. A quantised picture in the
device's own layout gets a quantised convolution of two pixels. A slice would first convert it to the plain layout; for
an average, ONNX Runtime converts the whole picture to floats; and it keeps its own layout up to a convolution, but not
always up to a MaxPool. Devices with their own memory get a MaxPool: some keep a convolution's window, and all that its
strides skip, as weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from harness.errors import UsageError
from harness.network.learnt_weights import INTEGER_RANGE
from harness.network.network import BYTES, TensorType
from harness.probe.overhead_terms import NO_TERMS, OverheadTerms

if TYPE_CHECKING:
    from harness.network.assemble import ModelBuilder

OUTPUT_CHANNELS = 8
MOST_VALUES = 256
"""The most values that pooling reads of a plain tensor: in a large one each is in another line of the caches."""
PADS_AS_INPUT = 11
"""The version of the operator set from which Pad reads its sizes."""
INTEGER_POOLING = 12
"""The version of the operator set from which MaxPool takes integers."""
_MAX_RANK = 5
_SCALE = 1 / 16
_ZERO_POINT = {"int8": 11, "uint8": 128}
"""A signed one that networks hardly use: ONNX Runtime may rewrite a pair whose zero points are equal (fusion_rules)."""
_NEAR = 10

Layout = Literal["outside", "plain", "reordered", "private", "unread"]
"""How a device keeps a tensor: as the host passed it in, in the plain layout, or in the device's own layout.

`reordered` is a plain tensor in front of operators of which one takes another layout. ONNX Runtime moves a Transpose
past a DequantizeLinear only where a Transpose follows somewhere.
`unread` is a tensor that the host passed in and of which one element is read, so that it is never reordered.
"""
Operator = Callable[["ModelBuilder", str, Layout], tuple[str, OverheadTerms]]
StridedOperator = Callable[["ModelBuilder", str, tuple[int, ...]], tuple[str, OverheadTerms]]


@dataclass(frozen=True)
class AuxiliaryLayer:
    """How to build one kind of auxiliary layer, and what it is for.

    `operator` appends the layer to a float32 tensor of rank `least_rank` to 5 and returns its result and terms.
    `strided`, if the kind has one, returns one value per given number of elements along each spatial axis; null probes
    use it to vary their output size. `of_halves`, if the kind has one, reads a half-precision tensor of any rank in the
    plain layout. `device_memory` marks kinds for devices with their own memory, which run in
    parallel with the host: results are stored in that memory before the host reads them.
    """

    help: str
    operator: Operator
    least_rank: int = 3
    strided: StridedOperator | None = None
    of_halves: Callable[[ModelBuilder, str], tuple[str, OverheadTerms]] | None = None
    device_memory: bool = False


def pool(builder: ModelBuilder, tensor: str, strides: tuple[int, ...]) -> tuple[str, OverheadTerms]:
    """Append average pooling with a 1x1 window and any strides."""
    result = _pooled(builder, tensor, (1,) * len(strides), strides)
    return result, _own_terms(builder.type_of(tensor), builder.type_of(result))


def pool_all(builder: ModelBuilder, tensor: str, strides: tuple[int, ...]) -> tuple[str, OverheadTerms]:
    """Append average pooling with windows as large as the strides, which divide the sizes: it reads every element."""
    read = builder.type_of(tensor)  # it writes on chip while it reads; what it stores elsewhere is counted apart
    return _pooled(builder, tensor, strides, strides), OverheadTerms(auxiliaries=1, auxiliary_input_bytes=read.bytes)


def _pool_channels(builder: ModelBuilder, tensor: str, layout: Layout) -> tuple[str, OverheadTerms]:
    """Append pooling to one value per channel, or to MOST_VALUES of a plain tensor with more channels.

    In the plain layout the tensor is one row. Otherwise pooling might reorder all of it, and the layer would be charged
    for that: ONNX Runtime does where channels fill its blocks, OpenVINO for any number above one.
    """
    read = builder.type_of(tensor)
    if layout == "plain" and read.dtype == "float32":
        values = min(MOST_VALUES, math.prod(read.shape[:2]))
        result, own = pool(builder, _reshaped(builder, tensor, (1, 1, read.elements)), (-(-read.elements // values),))
        return result, OverheadTerms(views=1) + own
    result, own = pool(builder, tensor, read.shape[2:])
    # In a private layout all channels of the one pixel that is read lie together.
    return result, OverheadTerms(auxiliaries=1) if layout == "private" else own


def leading_values(builder: ModelBuilder, tensor: str, values: int = 2) -> tuple[str, OverheadTerms]:
    """Append negative padding of a half-precision tensor, which leaves two of each axis, and some of the last one.

    A runtime that computes in float32 has no kernel of half precision for a Pad, as for most neighbours. If it had, as
    for a Reshape or a Slice, it would round the whole tensor in front of it. If fewer axes were left, ONNX Runtime
    would move the Pad in front of a Transpose.
    """
    shape = builder.type_of(tensor).shape
    written = TensorType("float16", (*(min(size, 2) for size in shape[:-1]), min(shape[-1], values)))
    ends = [after - before for before, after in zip(shape, written.shape, strict=True)]
    pads = builder.constant([*[0] * len(shape), *ends])
    return builder.operator("Pad", [tensor, pads], written), OverheadTerms(half_reads=1)


def _pool_rows(builder: ModelBuilder, tensor: str, _: Layout) -> tuple[str, OverheadTerms]:
    """Append pooling to one value per channel and row; it reads only the elements that it returns."""
    spatial = builder.type_of(tensor).shape[2:]
    result = _pooled(builder, tensor, (1,) * len(spatial), (1, *spatial[1:]) if len(spatial) > 1 else spatial)
    size = builder.type_of(result).bytes
    return result, OverheadTerms(auxiliaries=1, auxiliary_input_bytes=size, stored_bytes=size)


def _convolve(builder: ModelBuilder, tensor: str, window: int) -> tuple[str, OverheadTerms]:
    """Append a convolution to at most eight channels; a matrix product for a window of one at rank 2 and 3."""
    read = builder.type_of(tensor)
    spatial = len(read.shape) - 2
    if window == 1 and spatial <= 1:
        channels = min(OUTPUT_CHANNELS, read.shape[-1])
        weight = builder.weight(TensorType(read.dtype, (read.shape[-1], channels)), read.shape[-1])
        result = builder.operator("MatMul", [tensor, weight], read.resized(-1, channels))
    else:
        channels, pads = min(OUTPUT_CHANNELS, read.shape[1]), [window // 2] * (2 * spatial)
        result = builder.convolution(tensor, channels, [window] * spatial, pads=pads)
    return result, _own_terms(read, builder.type_of(result))


class AuxiliaryKind(StrEnum):
    """The kinds of auxiliary layers; each member is the whole declaration of its kind."""

    layer: AuxiliaryLayer

    def __new__(cls, name: str, layer: AuxiliaryLayer) -> AuxiliaryKind:
        """Make a member whose value is the name alone."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.layer = layer
        return member

    AVGPOOL = (
        "avgpool",
        AuxiliaryLayer(
            "average pooling to one value per channel", _pool_channels, strided=pool, of_halves=leading_values
        ),
    )
    ROWPOOL = (
        "rowpool",
        # Computed row by row, as the next layer in a network would be, so that the layer's result stays on chip.
        AuxiliaryLayer("average pooling to one value per row", _pool_rows, strided=pool_all, device_memory=True),
    )
    CONV1X1 = (
        "conv1x1",
        AuxiliaryLayer("1x1 convolution", lambda builder, tensor, _: _convolve(builder, tensor, 1), least_rank=2),
    )
    CONV3X3 = "conv3x3", AuxiliaryLayer("3x3 convolution", lambda builder, tensor, _: _convolve(builder, tensor, 3))


DEFAULT_AUXILIARY = AuxiliaryKind.AVGPOOL
AUTO = "auto"
if TYPE_CHECKING:
    AuxiliaryChoice = str
else:
    AuxiliaryChoice = Literal[AUTO, *(kind.value for kind in AuxiliaryKind)]
    """The text of an option that selects a kind; the command line shows and checks the choices."""
AUXILIARY_HELP = "Auxiliary layer after each layer: {}; {} selects one by the device's clock.".format(
    ", ".join(f"{kind} ({kind.layer.help})" for kind in AuxiliaryKind), AUTO
)


def chosen_kind(choice: AuxiliaryChoice | None) -> AuxiliaryKind | None:
    """Return the kind of a choice; None, for `auto` and None, leaves it to `auxiliary_for`.

    Raises UsageError, which lists the choices, for any other text.
    """
    if choice is None or choice == AUTO:
        return None
    for kind in AuxiliaryKind:
        if kind == choice:
            return kind
    step = f"Choose from {', '.join((AUTO, *AuxiliaryKind))}"
    raise UsageError(f"There is no auxiliary layer {str(choice)[:40]!r}", next_step=step)


def auxiliary_for(clock: str) -> AuxiliaryKind:
    """Return the first kind for a device of this clock; a device with its own clock has its own memory."""
    return next(kind for kind in AuxiliaryKind if kind.layer.device_memory == (clock == "device"))


def attach(
    builder: ModelBuilder, tensor: str, kind: AuxiliaryKind, layout: Layout = "outside"
) -> tuple[str, OverheadTerms]:
    """Append an auxiliary layer to a tensor; return its result and what it adds to the overhead terms."""
    read = builder.type_of(tensor)
    if is_quantised_picture(read) and layout == "private":
        on_chip = kind.layer.device_memory
        is_pooled = on_chip and builder.opset >= INTEGER_POOLING
        pixel = _pooled_pixel(builder, tensor) if is_pooled else _one_pixel(builder, tensor)
        terms = OverheadTerms(auxiliaries=1, views=1) if on_chip else OverheadTerms(byte_reads=1)
        return dequantised(builder, pixel), terms
    is_plain_half = read.dtype == "float16" and layout == "plain" and read.shape
    if kind.layer.of_halves is not None and is_plain_half and builder.opset >= PADS_AS_INPUT:
        return kind.layer.of_halves(builder, tensor)
    source, terms = _as_float(builder, tensor, layout)
    if layout == "reordered":
        last = builder.type_of(source).shape
        written = TensorType(builder.type_of(source).dtype, (last[0], *last[2:], last[1]))
        perm = (0, *range(2, len(last)), 1)
        source, layout = builder.operator("Transpose", [source], written, perm=perm), "plain"
        terms += OverheadTerms(views=1)
    shaped = _shaped(builder, source, kind.layer.least_rank)
    result, own = kind.layer.operator(builder, shaped, layout)
    return result, terms + OverheadTerms(views=int(shaped != source)) + own


def attach_all(
    builder: ModelBuilder, tensors: Iterable[tuple[str, Layout]], kind: AuxiliaryKind
) -> tuple[list[str], OverheadTerms]:
    """Append an auxiliary layer to each tensor; return the results and the sum of the terms."""
    attached = [attach(builder, tensor, kind, layout) for tensor, layout in tensors]
    return [result for result, _ in attached], sum((terms for _, terms in attached), NO_TERMS)


def attach_strided(
    builder: ModelBuilder, tensor: str, kind: AuxiliaryKind, strides: tuple[int, ...]
) -> tuple[str, OverheadTerms]:
    """Append an auxiliary layer that returns one value per stride if the kind can, else as `attach` does."""
    strided = kind.layer.strided
    return strided(builder, tensor, strides) if strided else attach(builder, tensor, kind)


def _own_terms(read: TensorType, written: TensorType) -> OverheadTerms:
    return OverheadTerms(auxiliaries=1, auxiliary_input_bytes=read.bytes, auxiliary_output_bytes=written.bytes)


def _shaped(builder: ModelBuilder, tensor: str, least_rank: int) -> str:
    """Return the tensor in a rank that the auxiliary layer takes; pooling takes at most three spatial dimensions."""
    read = builder.type_of(tensor)
    if len(read.shape) < least_rank:
        return unsqueezed(builder, tensor, tuple(range(3 - len(read.shape))))
    if len(read.shape) <= _MAX_RANK:
        return tensor
    return _reshaped(builder, tensor, (*read.shape[: _MAX_RANK - 1], math.prod(read.shape[_MAX_RANK - 1 :])))


def _reshaped(builder: ModelBuilder, tensor: str, shape: tuple[int, ...]) -> str:
    written = TensorType(builder.type_of(tensor).dtype, shape)
    return builder.operator("Reshape", [tensor, builder.constant(shape)], written)


def _pooled(builder: ModelBuilder, tensor: str, window: tuple[int, ...], strides: tuple[int, ...]) -> str:
    read = builder.type_of(tensor)
    steps = tuple(-(-size // stride) for size, stride in zip(read.shape[2:], strides, strict=True))
    written = TensorType(read.dtype, (*read.shape[:2], *steps))
    return builder.operator("AveragePool", [tensor], written, kernel_shape=window, strides=strides)


def _pooled_pixel(builder: ModelBuilder, tensor: str) -> str:
    """Append a MaxPool of the first pixel of a quantised picture."""
    read = builder.type_of(tensor)
    written = TensorType(read.dtype, (*read.shape[:2], 1, 1))
    return builder.operator("MaxPool", [tensor], written, kernel_shape=(1, 1), strides=read.shape[2:])


def _one_pixel(builder: ModelBuilder, tensor: str) -> str:
    """Append a quantised convolution of the first pixel of a quantised picture, and of one beside it.

    OpenVINO moves the strides of a window of one pixel in front of it: it then converts a whole picture to floats.
    """
    read = builder.type_of(tensor)
    height, width = read.shape[2:]
    window = (1, 2) if width > 1 else (min(height, 2), 1)
    shape = (1, read.shape[1], *window)
    weight = dequantised_weight(builder, builder.integers(TensorType("int8", shape), *INTEGER_RANGE["int8"]))
    operands = [dequantised(builder, tensor), weight]
    written = TensorType("float32", (read.shape[0], 1, 1, 1))
    pixel = builder.operator("Conv", operands, written, kernel_shape=window, strides=read.shape[2:])
    return quantised(builder, pixel, read.dtype)


def _as_float(builder: ModelBuilder, tensor: str, layout: Layout) -> tuple[str, OverheadTerms]:
    kind = builder.type_of(tensor)
    is_float = kind.dtype in ("float32", "float16")
    if is_float and layout != "unread":
        return tensor, OverheadTerms()
    terms = OverheadTerms(views=int(not is_float))
    if kind.shape and kind.elements > 1:
        tensor = slice_leading(builder, tensor, (1,) * len(kind.shape))
        kind = builder.type_of(tensor)
        terms += OverheadTerms(slices=1, slice_bytes=kind.bytes)
    if is_float:
        return tensor, terms
    return builder.operator("Cast", [tensor], TensorType("float32", kind.shape), to=1), terms


def is_quantised_picture(kind: TensorType) -> bool:
    """Return whether a tensor is a picture of 8-bit integers."""
    return kind.dtype in BYTES and len(kind.shape) == 4


def quantised(builder: ModelBuilder, tensor: str, dtype: str) -> str:
    """Append a QuantizeLinear to 8-bit integers of type `dtype`, with a scale of 1/16."""
    written = TensorType(dtype, builder.type_of(tensor).shape)
    scaling = builder.scalar(_SCALE, "float32"), builder.scalar(_ZERO_POINT[dtype], dtype)
    return builder.operator("QuantizeLinear", [tensor, *scaling], written)


def near_zero(dtype: str) -> tuple[int, int]:
    """Return the least and the first above of integers so small that sums of a few times any weight do not saturate."""
    return _ZERO_POINT[dtype] - _NEAR, _ZERO_POINT[dtype] + _NEAR + 1


def dequantised(builder: ModelBuilder, tensor: str) -> str:
    """Append the DequantizeLinear that reverses `quantised`."""
    return _dequantised(builder, tensor, _ZERO_POINT[builder.type_of(tensor).dtype])


def dequantised_weight(builder: ModelBuilder, weight: str) -> str:
    """Append the DequantizeLinear of a weight of signed integers, symmetric as runtimes demand of weights."""
    return _dequantised(builder, weight, 0)


def _dequantised(builder: ModelBuilder, tensor: str, zero_point: int) -> str:
    read = builder.type_of(tensor)
    scaling = builder.scalar(_SCALE, "float32"), builder.scalar(zero_point, read.dtype)
    return builder.operator("DequantizeLinear", [tensor, *scaling], TensorType("float32", read.shape))


def slice_leading(builder: ModelBuilder, tensor: str, shape: tuple[int, ...]) -> str:
    """Append a slice that takes the leading part of a tensor, of the given shape."""
    written = TensorType(builder.type_of(tensor).dtype, shape)
    axes, zeros = range(len(shape)), [0] * len(shape)
    if builder.opset < 10:
        return builder.operator("Slice", [tensor], written, axes=axes, starts=zeros, ends=shape)
    bounds = [builder.constant(zeros), builder.constant(shape), builder.constant(axes)]
    return builder.operator("Slice", [tensor, *bounds], written)


def unsqueezed(builder: ModelBuilder, tensor: str, axes: tuple[int, ...]) -> str:
    """Append an operator that inserts dimensions of size one at `axes`."""
    read = builder.type_of(tensor)
    shape = list(read.shape)
    for axis in axes:
        shape.insert(axis, 1)
    written = TensorType(read.dtype, tuple(shape))
    if builder.opset < 13:
        return builder.operator("Unsqueeze", [tensor], written, axes=axes)
    return builder.operator("Unsqueeze", [tensor, builder.constant(axes)], written)
