"""Features of layers without products: the bytes that they read and write, and their windows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.network.network import ITEM_BYTES, PARTIAL_READS
from harness.network.operator_kinds import WINDOWED_POOLS
from harness.predictor.features.contiguous_lengths import (
    copied_shapes,
    is_paged,
    normalised_rows,
    parts_of,
    reduced,
    run_of,
)
from harness.predictor.features.data_movement_classes import (
    COPY,
    MAP,
    NORM,
    PICKED,
    SCATTERED,
    along_columns,
    class_of_mover,
)
from harness.predictor.features.key_parser import SAMPLING, KeyOperator, ParsedKey, Shape
from harness.predictor.features.layer_features import LayerFeatures, Pair, channelwise, plane_of
from harness.predictor.features.operator_names import names_of

_Image = tuple[int, int, Pair]
"""Batch, channels and plane of a tensor."""


@dataclass(frozen=True)
class _Movement:
    """The class of a layer, what it reads and writes, its window, constants, and further operands of its size."""

    path: str
    in_shape: Shape
    out_shape: Shape
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    weight_elements: int = 0
    extra_operands: int = 0


def mover(layer: ParsedKey, plain: bool) -> LayerFeatures:
    """Return the features of a layer without products.

    `plain` states that no input is a feature map: then the last axis of any tensor holds what lies together.
    """
    pool = next((operator for operator in layer.operators if operator.op in WINDOWED_POOLS), None)
    written = max(layer.outputs, key=lambda tensor: tensor.bytes)
    moved = _movement(layer, pool, written.shape or (1,))
    image: Callable[[Shape], _Image] = _image
    if pool is not None:
        image = _map
    elif plain or moved.path.startswith(NORM):
        image = _rows
    (*read_maps, in_size), (batch, channels, out_size) = image(moved.in_shape), image(moved.out_shape)
    if read_maps != [batch, channels]:  # what a reduction combines is counted in its window
        in_size = (max(1, math.prod(moved.in_shape) // (batch * channels)), 1)
    planes = {"in_size": in_size, "out_size": out_size, "kernel": moved.kernel, "stride": moved.stride}
    return replace(
        channelwise(moved.path, batch=batch, channels=channels, **planes),
        weight_elements=moved.weight_elements,
        extra_operands=moved.extra_operands,
        element_bytes=ITEM_BYTES.get(written.dtype, 4),
        run=run_of(layer),
        parts=parts_of(layer),
        paged=any(map(is_paged, layer.operators)),
    )


def _movement(layer: ParsedKey, pool: KeyOperator | None, out_shape: Shape) -> _Movement:
    read = max(layer.inputs, key=lambda tensor: tensor.bytes, default=layer.outputs[0])
    in_shape = read.shape or (1,)
    axes = len(in_shape) - 2 if pool is not None else 2
    path = class_of_mover(names_of(layer.operators), read.dtype, axes)
    if pool is not None:
        return _pooled(path, in_shape, out_shape, pool)
    if path.startswith(COPY) or any(operator.op in PARTIAL_READS for operator in layer.operators):
        shapes = copied_shapes(layer, out_shape, tables=path.startswith((PICKED, SCATTERED)))
        return _Movement(path, *shapes)
    if math.prod(in_shape) > math.prod(out_shape) and all(one.op != SAMPLING for one in layer.operators):
        return _reduced(path, in_shape, out_shape, layer)
    return _mapped(path, out_shape, layer)


def _pooled(path: str, in_shape: Shape, out_shape: Shape, pool: KeyOperator) -> _Movement:
    """Return the movement of a pool; the part of a window beyond the map is padding, which no device reads."""
    ones = (1,) * (len(in_shape) - 2)
    window, size = plane_of(pool.numbers("kernel_shape", ones)), plane_of(in_shape[2:])
    kernel = (max(1, min(window[0], size[0])), max(1, min(window[1], size[1])))
    return _Movement(path, in_shape, out_shape, kernel, plane_of(pool.numbers("strides", ones)))


def _reduced(path: str, in_shape: Shape, out_shape: Shape, layer: ParsedKey) -> _Movement:
    """Return the movement of a layer that combines elements: they are its window."""
    combined, plane = math.prod(in_shape) // max(1, math.prod(out_shape)), _image(in_shape)[2]
    kernel = plane if math.prod(plane) == combined else (combined, 1)
    whole, sums = reduced(layer)
    out_shape = whole if math.prod(whole) == math.prod(out_shape) else out_shape
    return _Movement(along_columns(path) if sums else path, in_shape, out_shape, kernel)


def _mapped(path: str, out_shape: Shape, layer: ParsedKey) -> _Movement:
    """Return the movement of a layer that computes each element or row from one of each operand.

    Constants of several elements are weights: a device with its own memory loads them from the external one.
    """
    shape = next(filter(None, map(normalised_rows, layer.operators)), out_shape)
    further = sum(math.prod(tensor.shape or ()) >= math.prod(shape) for tensor in layer.inputs) - 1
    reads = [read for operator in layer.operators for read in zip(operator.reads, operator.tensors, strict=True)]
    constants = (math.prod(tensor.shape or ()) for name, tensor in reads if name.startswith("c:"))
    weights = sum(elements for elements in constants if elements > 1) if path.startswith(MAP) else 0
    return _Movement(path, shape, shape, weight_elements=weights, extra_operands=max(0, further))


def _image(shape: Shape) -> _Image:
    """Return batch, channels and plane of a tensor; without spatial axes, the last axis is the channels."""
    return _rows(shape) if len(shape) < 4 else _map(shape)


def _map(shape: Shape) -> _Image:
    """Return a tensor as a map of any number of axes."""
    return shape[0], shape[1], plane_of(shape[2:])


def _rows(shape: Shape) -> _Image:
    """Return a tensor as rows of its last axis."""
    *rest, channels = shape or (1,)
    return 1, channels, (math.prod(rest), 1)
