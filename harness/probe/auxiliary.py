"""Auxiliary layers: what is put behind a layer so that its result is used but hardly anything comes back (S1.1).

Each kind leaves a small output at little cost, whatever the rank of the tensor it is put on:

- `avgpool`: average pooling with a 1x1 window that strides over the whole tensor, one value a channel;
- `rowpool`: the same over every row, one value a channel and row, for devices that work beside their host:
  they keep the layer's result on chip where the auxiliary layer can follow row by row, as a next layer would,
  and leave rows out that nobody reads;
- `conv1x1`: a convolution to at most eight channels at every position (a matrix product at rank 2 and 3);
- `conv3x3`: the same with a window of three, which reads neighbours.

Tensors of rank 0 and 1 get leading dimensions first, those of rank 6 and more are folded; tensors of other
types than float32 are sliced to one element and cast, as pooling takes floats alone. A picture that the
device keeps in its plain layout is pooled in three dimensions, one of them of size one: else pooling might
have it reordered, and the layer would be charged for that.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from harness.network.assemble import ModelBuilder
from harness.network.network import TensorType
from harness.probe.overhead_terms import OverheadTerms

AuxiliaryKind = Literal["avgpool", "rowpool", "conv1x1", "conv3x3"]
AUXILIARY_KINDS: tuple[AuxiliaryKind, ...] = get_args(AuxiliaryKind)
DEFAULT_AUXILIARY: AuxiliaryKind = "avgpool"
OUTPUT_CHANNELS = 8
_MAX_RANK = 5


def auxiliary_for(clock: str) -> AuxiliaryKind:
    """The kind for a device of this clock: one with a clock of its own works beside its host."""
    return "rowpool" if clock == "device" else DEFAULT_AUXILIARY


Layout = Literal["outside", "plain", "private"]
"""How a device keeps a tensor: as it came from outside, in the plain layout, or in one of its own."""


def attach(
    builder: ModelBuilder, tensor: str, kind: AuxiliaryKind, layout: Layout = "outside"
) -> tuple[str, OverheadTerms]:
    """Puts an auxiliary layer behind a tensor; returns its result and what it adds to the overhead terms."""
    source, terms = _as_float(builder, tensor)
    shaped = _shaped(builder, source, kind, layout == "plain")
    terms += OverheadTerms(views=int(shaped != source))
    spatial = builder.type_of(shaped).shape[2:]
    if kind == "avgpool":
        result, own = pool(builder, shaped, spatial)
        if layout == "private":  # one pixel is picked where all channels of it lie together
            own = OverheadTerms(auxiliaries=1)
    elif kind == "rowpool":
        result, own = _pool_rows(builder, shaped, (1, *spatial[1:]) if len(spatial) > 1 else spatial)
    else:
        result, own = _convolve(builder, shaped, 1 if kind == "conv1x1" else 3)
    return result, terms + own


def _own_terms(read: TensorType, written: TensorType) -> OverheadTerms:
    return OverheadTerms(auxiliaries=1, auxiliary_input_bytes=read.bytes, auxiliary_output_bytes=written.bytes)


def _shaped(builder: ModelBuilder, tensor: str, kind: AuxiliaryKind, plain: bool) -> str:
    """The tensor in a rank that the auxiliary layer takes."""
    rank = len(builder.type_of(tensor).shape)
    if rank < 2 or (rank == 2 and kind != "conv1x1"):
        return unsqueezed(builder, tensor, tuple(range(3 - rank)))
    if rank > _MAX_RANK:
        return _folded(builder, tensor)
    return unsqueezed(builder, tensor, (2,)) if rank == 4 and plain and kind == "avgpool" else tensor


def pool(builder: ModelBuilder, tensor: str, strides: tuple[int, ...]) -> tuple[str, OverheadTerms]:
    """Average pooling with a 1x1 window and any strides, for null probes that vary their output size."""
    result = _pooled(builder, tensor, (1,) * len(strides), strides)
    return result, _own_terms(builder.type_of(tensor), builder.type_of(result))


def pool_all(builder: ModelBuilder, tensor: str, strides: tuple[int, ...]) -> tuple[str, OverheadTerms]:
    """Average pooling with windows as large as the strides, so that every element is read at any output size.

    The strides divide the sizes.
    """
    return _pooled(builder, tensor, strides, strides), _on_chip_terms(builder.type_of(tensor))


def _pool_rows(builder: ModelBuilder, tensor: str, strides: tuple[int, ...]) -> tuple[str, OverheadTerms]:
    """What is read is what is picked, and what is picked is handed back."""
    result = _pooled(builder, tensor, (1,) * len(strides), strides)
    picked = builder.type_of(result)
    return result, _on_chip_terms(picked) + OverheadTerms(stored_bytes=picked.bytes)


def _on_chip_terms(read: TensorType) -> OverheadTerms:
    """Writing on chip goes along with reading; writing elsewhere is counted as stored."""
    return OverheadTerms(auxiliaries=1, auxiliary_input_bytes=read.bytes)


def _pooled(builder: ModelBuilder, tensor: str, window: tuple[int, ...], strides: tuple[int, ...]) -> str:
    read = builder.type_of(tensor)
    steps = tuple(-(-size // stride) for size, stride in zip(read.shape[2:], strides, strict=True))
    written = TensorType(read.dtype, (*read.shape[:2], *steps))
    attributes = {"kernel_shape": list(window), "strides": list(strides)}
    return builder.operator("AveragePool", [tensor], written, attributes)


def _convolve(builder: ModelBuilder, tensor: str, window: int) -> tuple[str, OverheadTerms]:
    read = builder.type_of(tensor)
    rank = len(read.shape)
    if window == 1 and rank <= 3:
        channels = min(OUTPUT_CHANNELS, read.shape[-1])
        weight = builder.weight(TensorType(read.dtype, (read.shape[-1], channels)), read.shape[-1])
        written = TensorType(read.dtype, (*read.shape[:-1], channels))
        return builder.operator("MatMul", [tensor, weight], written), _own_terms(read, written)
    spatial = rank - 2
    channels = min(OUTPUT_CHANNELS, read.shape[1])
    shape = (channels, read.shape[1], *[window] * spatial)
    weight = builder.weight(TensorType(read.dtype, shape), read.shape[1] * window**spatial)
    attributes = {"kernel_shape": [window] * spatial, "pads": [window // 2] * (2 * spatial)}
    written = TensorType(read.dtype, (read.shape[0], channels, *read.shape[2:]))
    return builder.operator("Conv", [tensor, weight], written, attributes), _own_terms(read, written)


def _as_float(builder: ModelBuilder, tensor: str) -> tuple[str, OverheadTerms]:
    kind = builder.type_of(tensor)
    terms = OverheadTerms()
    if kind.dtype == "float32":
        return tensor, terms
    if kind.shape and kind.elements > 1:
        tensor = slice_leading(builder, tensor, tuple(1 for _ in kind.shape))
        kind = builder.type_of(tensor)
        terms += OverheadTerms(slices=1, slice_bytes=kind.bytes)
    return builder.operator("Cast", [tensor], TensorType("float32", kind.shape), {"to": 1}), terms + OverheadTerms(
        views=1
    )


def slice_leading(builder: ModelBuilder, tensor: str, shape: tuple[int, ...]) -> str:
    """The leading part of a tensor, of the given shape."""
    read = builder.type_of(tensor)
    written = TensorType(read.dtype, shape)
    axes, zeros = list(range(len(shape))), [0] * len(shape)
    if builder.opset < 10:
        return builder.operator("Slice", [tensor], written, {"axes": axes, "starts": zeros, "ends": list(shape)})
    bounds = [builder.constant(zeros), builder.constant(shape), builder.constant(axes)]
    return builder.operator("Slice", [tensor, *bounds], written)


def unsqueezed(builder: ModelBuilder, tensor: str, axes: tuple[int, ...]) -> str:
    """The tensor with dimensions of size one put in at `axes`."""
    read = builder.type_of(tensor)
    shape = list(read.shape)
    for axis in axes:
        shape.insert(axis, 1)
    written = TensorType(read.dtype, tuple(shape))
    if builder.opset < 13:
        return builder.operator("Unsqueeze", [tensor], written, {"axes": list(axes)})
    return builder.operator("Unsqueeze", [tensor, builder.constant(axes)], written)


def _folded(builder: ModelBuilder, tensor: str) -> str:
    """The tensor with its trailing dimensions made one: pooling knows three spatial ones at most."""
    read = builder.type_of(tensor)
    shape = (*read.shape[: _MAX_RANK - 1], math.prod(read.shape[_MAX_RANK - 1 :]))
    return builder.operator("Reshape", [tensor, builder.constant(shape)], TensorType(read.dtype, shape))
