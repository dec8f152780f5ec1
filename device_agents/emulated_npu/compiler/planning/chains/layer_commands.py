"""The commands that compute a region of a layer's output, given the places of its operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, View
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis, depth_axis, reduced_channels
from device_agents.emulated_npu.compiler.graph.regions import (
    Interval,
    Region,
    input_channels,
    intersection,
    is_windowed,
    multiplier,
    read_interval,
    read_region,
    size_of,
    takes_pictures,
    window_interval,
)
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import VECTOR_BYTES, WeightBlock
from device_agents.emulated_npu.compiler.planning.chains.side_by_side import side_by_side
from device_agents.emulated_npu.compiler.planning.memory_places import Axes, Buffer, view_axes, view_operand
from device_agents.emulated_npu.machine import Mfu
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space, descriptor_of
from device_agents.emulated_npu.unit_settings import Activation, Settings

_ONE = (1, 0)


@dataclass(frozen=True)
class Buffers:
    """The places of a layer's operands: its output, each of `layer.reads`, and its constants by name."""

    target: Buffer
    reads: tuple[Buffer, ...]
    constants: Mapping[str, Buffer]


def commands_of(layer: HardwareLayer, region: Region, buffers: Buffers) -> Iterator[Command]:
    """Yield the commands for a region of the output of a layer that does not use the weight buffer."""
    if takes_pictures(layer):
        for part in _single(region, 1):
            yield _windowed(layer, part, buffers)
    elif layer.function is Function.GATHER:
        yield from _gather(layer, region, buffers)
    else:
        reads = [
            view_operand(buffers.reads[place], view, read_region(layer, place, region))
            for place, view in enumerate(layer.reads)
        ]
        first, second, third, *_ = [*reads, None, None, None]
        target = view_operand(buffers.target, layer.output, region)
        yield Command(layer.function, target, first, second, third, settings=layer.settings, layer=layer.index)


def convolve(
    layer: HardwareLayer, region: Region, block: WeightBlock, buffers: Buffers, weights: Operand, mfu: Mfu
) -> Iterator[Command]:
    """Yield the commands of the matrix unit for a region of the output and a block whose `weights` lie in SB."""
    axis = channel_axis(layer)
    cut = list(region)
    low, high = cut[axis] = intersection((block.outputs,), (region[axis],))[0]
    if high <= low:
        return
    scale = layer.scale_shift
    vectors = None if scale is None or not block.vector_bytes else _vectors(scale, block, weights)
    skipped, count = low - block.outputs[0], high - low
    pixels = block.pixels if count == size_of(block.outputs) else 1
    if count < size_of(block.outputs):
        weights = _columns(weights, skipped, count)
        vectors = None if vectors is None else _columns(vectors, skipped, count)
    # A command covers one picture of a map, or four axes of a matrix.
    for part in _single(tuple(cut), max(0, len(region) - 4) if layer.matrix else 1):
        command = _convolution(layer, part, block, buffers, weights, vectors)
        alone = layer.matrix or (pixels == 1 and layer.settings.kernel[1] == 1)
        yield from [command] if alone else side_by_side(command, pixels, mfu)


def _convolution(
    layer: HardwareLayer,
    region: Region,
    block: WeightBlock,
    buffers: Buffers,
    weights: Operand,
    vectors: Operand | None,
) -> Command:
    arrange = _matrix_axes if layer.matrix else _picture_axes
    needed = list(read_region(layer, 0, region))
    needed[depth_axis(layer)] = block.channels
    third = fourth = None
    activation = Activation.NONE
    if block.completes:
        activation = layer.settings.activation
        if layer.residual is not None:
            third = view_operand(buffers.reads[-1], layer.residual, region, arrange)
        fourth = vectors
    settings = _tile_settings(layer, region) if is_windowed(layer) else layer.settings
    return Command(
        Function.CONVOLVE,
        view_operand(buffers.target, layer.output, region, arrange),
        view_operand(buffers.reads[0], layer.inputs[0], tuple(needed), arrange),
        weights,
        third,
        fourth,
        _with_activation(settings, activation),
        accumulate=block.channels[0] % reduced_channels(layer) > 0,
        layer=layer.index,
    )


def _columns(held: Operand, skipped: int, count: int) -> Operand:
    """Return `count` indices of the last axis of an operand."""
    descriptor = held.descriptor
    dims = (*descriptor.dims[:-1], count)
    address = held.address + skipped * descriptor.strides[-1]
    return Operand(descriptor_of(descriptor.space, descriptor.dtype, dims, descriptor.strides), address)


def _vectors(scale: LazyConstant, block: WeightBlock, weights: Operand) -> Operand:
    count = size_of(block.outputs)
    along = count * block.pixels * VECTOR_BYTES
    descriptor = descriptor_of(Space.SB, scale.dtype, (scale.shape[0], count), (along, VECTOR_BYTES))
    return Operand(descriptor, weights.address + block.weight_bytes)


def _windowed(layer: HardwareLayer, region: Region, buffers: Buffers) -> Command:
    """Return the command of pooling, depthwise convolution or LRN on one picture."""
    depthwise, ratio = layer.function is Function.DEPTHWISE, multiplier(layer)

    def source(axes: Axes) -> Axes:
        return (*_picture_axes(axes), (ratio, 0)) if depthwise else _picture_axes(axes)

    def target(axes: Axes) -> Axes:
        *outer, (size, stride) = _picture_axes(axes)
        return (*outer, (size // ratio, stride * ratio), *[(ratio, stride)] * depthwise)

    second = third = fourth = None
    if depthwise:
        channels = input_channels(layer, region[1])
        second, fourth = (
            _channels_operand(buffers.constants[name], channels) if name in buffers.constants else None
            for name in depthwise_constants(layer)
        )
        if layer.residual is not None:
            third = view_operand(buffers.reads[-1], layer.residual, region, target)
    return Command(
        layer.function,
        view_operand(buffers.target, layer.output, region, target),
        view_operand(buffers.reads[0], layer.inputs[0], read_region(layer, 0, region), source),
        second,
        third,
        fourth,
        layer.settings if layer.function is Function.LRN else _tile_settings(layer, region),
        layer=layer.index,
    )


def depthwise_constants(layer: HardwareLayer) -> tuple[str, str]:
    """Return the names of the weights and the scales of a depthwise layer in NB."""
    return f"{layer.index}/weights", f"{layer.index}/scale_shift"


def _channels_operand(buffer: Buffer, channels: Interval) -> Operand:
    """Return some channels of a depthwise layer's constant (..., C, m); the origin of its buffer is its shape."""
    dims = (*buffer.origin[:-2], size_of(channels), buffer.origin[-1])
    address = buffer.address + channels[0] * buffer.strides[-2]
    return Operand(descriptor_of(buffer.space, buffer.dtype, dims, buffer.strides), address)


def _tile_settings(layer: HardwareLayer, region: Region) -> Settings:
    """Return the settings with the padding before the first element of this region."""
    pad = list(layer.settings.pad)
    for axis in range(2, len(region)):
        low, _ = window_interval(layer, axis, region[axis])
        first, _ = read_interval(layer, 0, axis, region[axis])
        pad[axis - len(region) + 3] = max(0, first - low)
    return layer.settings if tuple(pad) == layer.settings.pad else replace(layer.settings, pad=(pad[0], pad[1], pad[2]))


def _with_activation(settings: Settings, activation: Activation) -> Settings:
    return settings if activation is settings.activation else replace(settings, activation=activation)


def _gather(layer: HardwareLayer, region: Region, buffers: Buffers) -> Iterator[Command]:
    """Yield a command for each list of indices: axes that lie behind each other on both sides are one list."""
    table, index = layer.inputs
    count = len(index.axes)
    written = view_axes(buffers.target, layer.output, region)[:count]
    read = view_axes(buffers.reads[1], index, read_region(layer, 1, region))
    apart = max(_apart(written), _apart(read))
    for part in _single(region, apart):
        target = view_operand(
            buffers.target, layer.output, part, lambda axes: [_as_one(axes[apart:count]), *axes[count:]]
        )
        first = view_operand(buffers.reads[0], table, read_region(layer, 0, part))
        second = view_operand(
            buffers.reads[1], index, read_region(layer, 1, part), lambda axes: [_as_one(axes[apart:])]
        )
        yield Command(Function.GATHER, target, first, second, settings=layer.settings, layer=layer.index)


def _apart(axes: Axes) -> int:
    """Return the number of leading axes that do not lie behind each other with those after them."""
    return next(place for place in range(len(axes) + 1) if _is_one(axes[place:]))


def _is_one(axes: Axes) -> bool:
    longer = [axis for axis in axes if axis[0] > 1]
    return all(outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(longer))


def _as_one(axes: Axes) -> tuple[int, int]:
    """Return axes that lie behind each other as one."""
    return math.prod(size for size, _ in axes), next((stride for size, stride in reversed(axes) if size > 1), 0)


def _single(region: Region, axes: int) -> Iterator[Region]:
    """Yield the parts of a region that have one index on each of the leading axes."""
    for indices in itertools.product(*(range(*interval) for interval in region[:axes])):
        yield (*((index, index + 1) for index in indices), *region[axes:])


def _picture_axes(axes: Axes) -> Axes:
    """Return (N = 1, C, spatial...) as (D, H, W, C)."""
    spatial = axes[2:]
    return (*(_ONE,) * (3 - len(spatial)), *spatial, axes[1])


def _matrix_axes(axes: Axes) -> Axes:
    """Return (leading 1..., up to two batch axes, rows, columns) as (D, H, W, C)."""
    kept = list(axes[:-2])[-2:]
    rows = axes[-2] if len(axes) > 1 else _ONE
    return (*(_ONE,) * (2 - len(kept)), *kept, rows, axes[-1])


def view_of_factor(view: View, region: Region, buffer: Buffer) -> Operand:
    """Return the operand of the second factor of a matrix product as (K, N), or (batch, K, N) for several."""

    def of_factor(axes: Axes) -> Axes:
        return [*(axes[place] for place in factor_axes(view) if axes[place][0] > 1), *axes[-2:]]

    return view_operand(buffer, view, region, of_factor)


def factor_axes(view: View) -> tuple[int, ...]:
    """Return the batch axes along which a second factor does not repeat."""
    return tuple(place for place, axis in enumerate(view.axes[:-2]) if axis.base is not None)
