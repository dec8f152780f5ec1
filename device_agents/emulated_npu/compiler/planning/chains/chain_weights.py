"""Divides the weights of a layer into blocks that fit the weight buffer and lie packed in external memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.layer_parts import (
    channel_axis,
    output_channels,
    part_of,
    reduced_channels,
)
from device_agents.emulated_npu.compiler.graph.regions import Interval, input_channels, size_of
from device_agents.emulated_npu.compiler.planning.chains.side_by_side import pixels_together, reach_of
from device_agents.emulated_npu.compiler.planning.memory_places import dense_strides, stored_type
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType, Function, Operand, Space, descriptor_of

if TYPE_CHECKING:
    from device_agents.emulated_npu.numpy_types import Array

VECTOR_BYTES = 4


@dataclass(frozen=True)
class WeightBlock:
    """Weights from input `channels` to output channels `outputs` of a layer, for all taps.

    `offset` is in bytes from the layer's first block. In the block that completes the sum over channels, scale and
    shift of its output channels follow the weights. A block for several `pixels` side by side has zeros in between.
    """

    outputs: Interval
    channels: Interval
    offset: int
    weight_bytes: int
    vector_bytes: int
    completes: bool
    pixels: int = 1

    @property
    def bytes(self) -> int:
        """Size in memory, in bytes."""
        return self.weight_bytes + self.vector_bytes


@dataclass(frozen=True)
class WeightLoad:
    """Consecutive blocks that are fetched together; `offset` and `bytes` span them."""

    blocks: tuple[WeightBlock, ...]

    @property
    def offset(self) -> int:
        """The offset of the first block."""
        return self.blocks[0].offset

    @property
    def bytes(self) -> int:
        """The size of all blocks in bytes."""
        return self.blocks[-1].offset + self.blocks[-1].bytes - self.offset


def uses_weight_buffer(layer: HardwareLayer) -> bool:
    """Return whether the second operand lies in SB: weights, or the second factor of a matrix product."""
    return layer.function is Function.CONVOLVE


def multiplies_computed(layer: HardwareLayer) -> bool:
    """Return whether the layer multiplies two computed tensors."""
    return uses_weight_buffer(layer) and layer.weights is None


def taps(layer: HardwareLayer) -> int:
    """Return the number of positions of the window."""
    return 1 if layer.matrix else math.prod(layer.settings.kernel)


def stored_taps(layer: HardwareLayer, machine: Machine) -> int:
    """Return the number of positions of the window for which weights are stored.

    A matrix unit that packs strides treats s x s positions as s * s channels (NVDLA): the window is padded with zeros
    to a multiple of the stride.
    """
    if layer.matrix or machine.mfu.packing != "stride":
        return taps(layer)
    sizes = zip(layer.settings.kernel, layer.settings.stride, strict=True)
    return math.prod(ceil_div(kernel, stride) * stride for kernel, stride in sizes)


def cut_weights(layer: HardwareLayer, machine: Machine, budget_bytes: int) -> tuple[WeightBlock, ...]:
    """Return blocks of at most `budget_bytes`, in whole multiples of the matrix unit if possible.

    Output channels are divided first; input channels only if not even one round of columns fits. Weights of several
    pixels side by side are one block. Raises DoesNotFit.
    """
    together = _block_of_pixels(layer, machine)
    if together is not None and together.bytes <= budget_bytes:
        return (together,)
    item = stored_type(layer.factor_type, machine).bytes
    per_group = output_channels(layer) // layer.groups
    channels = reduced_channels(layer)
    each_bytes = column_bytes(layer, machine)
    outputs = min(per_group, budget_bytes // each_bytes)
    if outputs < per_group and outputs > machine.mfu.columns:
        outputs -= outputs % machine.mfu.columns
    depth = channels
    if _needs_whole_sums(layer):
        _demand_column(layer, each_bytes, budget_bytes)
    elif outputs < min(per_group, machine.mfu.columns):
        outputs, depth = _small_block(layer, machine, budget_bytes, outputs)
    return tuple(_blocks(layer, stored_taps(layer, machine) * item, per_group, channels, outputs, depth))


def _block_of_pixels(layer: HardwareLayer, machine: Machine) -> WeightBlock | None:
    """Return the weights of several pixels side by side; None where the matrix unit computes pixels one by one."""
    pixels = pixels_together(layer, machine)
    if pixels == 1:
        return None
    outputs, channels = output_channels(layer), reduced_channels(layer)
    positions = layer.settings.kernel[1] * reach_of(layer, pixels)
    item = stored_type(layer.factor_type, machine).bytes
    weight_bytes = _whole_vectors(positions * channels * pixels * outputs * item)
    vector_bytes = _vector_bytes(layer) * pixels * outputs
    return WeightBlock((0, outputs), (0, channels), 0, weight_bytes, vector_bytes, True, pixels)


def round_bytes(layer: HardwareLayer, machine: Machine) -> int:
    """Return the bytes of the weights that fill the columns of the matrix unit once."""
    together = _block_of_pixels(layer, machine)
    return max(machine.mfu.columns * column_bytes(layer, machine), 0 if together is None else together.bytes)


def column_bytes(layer: HardwareLayer, machine: Machine) -> int:
    """Return the bytes of the weights, scale and shift of one output channel."""
    item = stored_type(layer.factor_type, machine).bytes
    return stored_taps(layer, machine) * reduced_channels(layer) * item + _vector_bytes(layer)


def _needs_whole_sums(layer: HardwareLayer) -> bool:
    """Return whether sums lose precision if they are stored before they are complete."""
    return layer.factor_type is not DataType.FLOAT32 or bool(layer.settings.quantised_target.scale)


def _demand_column(layer: HardwareLayer, needed_bytes: int, budget_bytes: int) -> None:
    if needed_bytes > budget_bytes:
        what = f"{layer.name} needs {needed_bytes} bytes of SB for the weights of one output channel"
        why = f"there are {budget_bytes} for it, and the output cannot hold sums that are not complete"
        raise DoesNotFit(what, why, "Raise sb_bytes of the machine", "SB", needed_bytes)


def slice_outputs(layer: HardwareLayer, machine: Machine, budget_bytes: int) -> tuple[HardwareLayer, ...]:
    """Return the layer in parts of at most `budget_bytes` of weights each; the layer itself if it cannot be divided.

    A part of a grouped convolution is whole groups, or lies inside one.
    """
    if layer.weights is None:
        return (layer,)
    item = stored_type(layer.factor_type, machine).bytes
    vectors = max(2 * VECTOR_BYTES, _vector_bytes(layer))
    column_bytes = stored_taps(layer, machine) * reduced_channels(layer) * item + vectors
    channels, columns = output_channels(layer), machine.mfu.columns
    per_group = channels // layer.groups
    count = budget_bytes // column_bytes
    unit, stop = (columns, per_group) if count < per_group or layer.groups == 1 else (per_group, channels)
    count = count // unit * unit
    if count == 0 or count >= channels:
        return (layer,)
    axis = channel_axis(layer)
    return tuple(
        part_of(layer, axis, low, min(low + count, first + stop))
        for first in range(0, channels, stop)
        for low in range(first, first + stop, count)
    )


def _small_block(layer: HardwareLayer, machine: Machine, budget_bytes: int, whole: int) -> tuple[int, int]:
    """Return output and input channels of blocks that do not fill the columns; raises DoesNotFit.

    A block has the sums of `whole` output channels, or parts of the sums of more. The matrix unit takes the fewest
    rounds, or there are the fewest blocks.
    """
    per_group, channels, rows = output_channels(layer) // layer.groups, reduced_channels(layer), machine.mfu.rows
    shapes = [(whole, channels)] if whole else []
    columns = min(per_group, machine.mfu.columns)
    while columns:
        outputs, depth = _part_of_channels(layer, machine, budget_bytes, columns)
        shapes.append((outputs, depth - depth % rows if rows < depth < channels else depth))
        columns //= 2

    def work(shape: tuple[int, int]) -> tuple[int, int, int]:
        outputs, depth = shape
        parts, rest = divmod(channels, depth)
        rounds = parts * ceil_div(depth, rows) + ceil_div(rest, rows)
        return ceil_div(per_group, outputs) * rounds, ceil_div(per_group, outputs) * ceil_div(channels, depth), -outputs

    return min(shapes, key=work)


def _part_of_channels(layer: HardwareLayer, machine: Machine, budget_bytes: int, columns: int) -> tuple[int, int]:
    """Return output and input channels of a block that holds only a part of the sum; raises DoesNotFit."""
    pair_bytes = stored_taps(layer, machine) * stored_type(layer.factor_type, machine).bytes
    least_bytes = _whole_vectors(pair_bytes) + _vector_bytes(layer)
    if least_bytes > budget_bytes:
        what = f"{layer.name} needs {least_bytes} bytes of SB for one window of one channel"
        raise DoesNotFit(what, f"there are {budget_bytes} for it", "Raise sb_bytes of the machine", "SB", least_bytes)
    outputs = min(columns, budget_bytes // least_bytes)
    depth = (budget_bytes - outputs * _vector_bytes(layer)) // (outputs * pair_bytes)
    return outputs, min(depth, reduced_channels(layer))


def _blocks(
    layer: HardwareLayer, pair_bytes: int, per_group: int, channels: int, outputs: int, depth: int
) -> list[WeightBlock]:
    blocks = []
    offset = 0
    for group in range(layer.groups):
        for first in range(0, per_group, outputs):
            count = min(outputs, per_group - first)
            start = group * per_group + first
            for low in range(0, channels, depth):
                high = min(low + depth, channels)
                base = 0 if layer.matrix else input_channels(layer, (start, start + 1))[0]
                last = high == channels
                weight_bytes = _whole_vectors(pair_bytes * (high - low) * count)
                vector_bytes = _vector_bytes(layer) * count if last else 0
                outputs_here, channels_here = (start, start + count), (base + low, base + high)
                blocks.append(WeightBlock(outputs_here, channels_here, offset, weight_bytes, vector_bytes, last))
                offset += blocks[-1].bytes
    return blocks


def _whole_vectors(size_bytes: int) -> int:
    return ceil_div(size_bytes, VECTOR_BYTES) * VECTOR_BYTES


def _vector_bytes(layer: HardwareLayer) -> int:
    return layer.scale_shift.shape[0] * VECTOR_BYTES if layer.scale_shift is not None else 0


def gather_loads(blocks: Sequence[WeightBlock], most_bytes: int) -> tuple[WeightLoad, ...]:
    """Return consecutive blocks joined into loads of at most `most_bytes`, at least one block each."""
    loads: list[list[WeightBlock]] = []
    size = 0
    for block in blocks:
        if loads and size + block.bytes <= most_bytes:
            loads[-1].append(block)
            size += block.bytes
        else:
            loads.append([block])
            size = block.bytes
    return tuple(WeightLoad(tuple(items)) for items in loads)


def weight_operand(layer: HardwareLayer, block: WeightBlock, machine: Machine, address: int) -> Operand:
    """Return the operand of the block's weights in SB as (kd, kh, kw, C, M)."""
    kernel = (1, 1, 1) if layer.matrix else layer.settings.kernel
    channels, outputs = size_of(block.channels), size_of(block.outputs)
    dtype = stored_type(layer.factor_type, machine)
    held = (*kernel, channels, outputs)
    if block.pixels > 1:
        held = (*kernel[:2], reach_of(layer, block.pixels), channels, block.pixels * outputs)
    strides = dense_strides(held, range(len(held)), dtype.bytes)
    return Operand(descriptor_of(Space.SB, dtype, (*kernel, channels, outputs), strides), address)


def pack_weights(
    layer: HardwareLayer, blocks: Sequence[WeightBlock], weights: Array, scale_shift: Array | None
) -> bytes:
    """Return the bytes of all blocks, each element in its type, in the order in which they lie in external memory."""
    import numpy as np

    from device_agents.emulated_npu.numpy_types import NUMPY_TYPES

    dtype = NUMPY_TYPES[layer.factor_type]
    if layer.matrix:
        taken = weights.reshape(1, *weights.shape)  # (taps, C, M)
    else:
        taken = np.moveaxis(weights.reshape(*weights.shape[:2], -1), (0, 1), (2, 1))
    parts = []
    for block in blocks:
        low, high = block.channels
        if not layer.matrix:
            base = input_channels(layer, (block.outputs[0], block.outputs[0] + 1))[0]
            low, high = low - base, high - base
        part = taken[:, low:high, slice(*block.outputs)]
        if block.pixels > 1:
            part, scale_shift = _spread(layer, block.pixels, part), _repeated(scale_shift, block.pixels)
        # Zeros that pad the window (`stored_taps`) follow the weights.
        parts.append(np.ascontiguousarray(part, dtype).tobytes().ljust(block.weight_bytes, b"\0"))
        if block.vector_bytes and scale_shift is not None:  # float32 or int32
            first, stop = block.outputs
            vectors = scale_shift[:, first : first + (stop - first) * block.pixels]
            parts.append(np.ascontiguousarray(vectors).tobytes())
    return b"".join(parts)


def _spread(layer: HardwareLayer, pixels: int, weights: Array) -> Array:
    """Return weights (taps, C, M) as (rows, positions, C, pixels, M): those of a pixel are moved on by the stride."""
    import numpy as np

    _, rows, kernel = layer.settings.kernel
    stride, (_, channels, outputs) = layer.settings.stride[2], weights.shape
    found = np.zeros((rows, reach_of(layer, pixels), channels, pixels, outputs), weights.dtype)
    for pixel in range(pixels):
        low = pixel * stride
        found[:, low : low + kernel, :, pixel] = weights.reshape(rows, kernel, channels, outputs)
    return found


def _repeated(scale_shift: Array | None, pixels: int) -> Array | None:
    import numpy as np

    return None if scale_shift is None else np.tile(scale_shift, (1, pixels))


def packed_bytes(layer: HardwareLayer, machine: Machine) -> int:
    """Return the size of a layer's weights in one block per group, with scales."""
    blocks = cut_weights(layer, machine, 1 << 40)
    return blocks[-1].offset + blocks[-1].bytes
