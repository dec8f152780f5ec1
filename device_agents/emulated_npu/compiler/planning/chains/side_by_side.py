"""Output pixels side by side, which fill rows and columns of the matrix unit that few channels leave idle.

In NB the positions of a row of a window are contiguous, and so are those of the windows of several pixels side
by side. The matrix unit can therefore take the positions of a row as channels, and the rows of a window as positions:
with packing "row" its rows then hold the whole window, not one row of it. Its columns can compute several pixels at
once. Their weights are those of one pixel for each of them, moved on by the stride, and zeros in between. What a block
of pixels does not cover, such as windows on the padding, is computed with parts of the same weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.planning.memory_places import stored_type
from device_agents.emulated_npu.machine import Machine, Mfu
from device_agents.emulated_npu.timing.cost.matrix_cost import matrix_cycles
from device_agents.emulated_npu.unit_commands import Command, DataType, Operand, descriptor_of

_MOST_PIXELS = 32
_SB_SHARE = 2
"""The weights of several pixels take at most this fraction of SB."""
_LOAD_COST = 2
"""How much a cycle of loading weights counts in whether several pixels are worth it: where units wait for transfers,
fewer cycles save nothing."""
_WORTH = 0.9
"""Several pixels side by side are used only if they take at most this fraction of the time: their weights and commands
cost more than predictions know."""


def reach_of(layer: HardwareLayer, pixels: int) -> int:
    """Return the positions of the rows of the windows of some pixels side by side."""
    return layer.settings.kernel[2] + (pixels - 1) * layer.settings.stride[2]


def pixels_together(layer: HardwareLayer, machine: Machine) -> int:
    """Return for how many pixels a block of weights is, so that a line of the output takes the fewest cycles."""
    weights, settings = layer.weights, layer.settings
    if weights is None or weights.shape[0] * weights.shape[1] >= machine.mfu.rows * machine.mfu.columns:
        return 1
    if layer.matrix or layer.groups > 1 or not _holds_windows(machine.mfu):
        return 1
    if settings.quantises or layer.factor_type not in (DataType.FLOAT32, DataType.FLOAT16) or settings.kernel[0] > 1:
        return 1
    *_, size = layer.inputs[0].shape
    channels, outputs = weights.shape[1], weights.shape[0]
    if settings.dilation[2] > 1:
        return 1
    scales = 0 if layer.scale_shift is None else layer.scale_shift.shape[0]
    map_size = (layer.output.shape[-2] if len(layer.output.axes) > 3 else 1, layer.output.shape[-1], size)
    shape = _Shape(*settings.kernel[1:], settings.stride[2], settings.pad[2], channels, outputs, *map_size)
    item_bytes = stored_type(layer.factor_type, machine).bytes
    bytes_in_a_cycle = machine.ddr.bytes_per_s / machine.clock_hz
    return _fastest(shape, machine.mfu, item_bytes, 4 * scales, machine.sb_bytes // _SB_SHARE, bytes_in_a_cycle)


class _Shape(NamedTuple):
    """A convolution: rows and columns of its window, stride and padding along a line, channels, and its map."""

    rows: int
    kernel: int
    stride: int
    pad: int
    channels: int
    outputs: int
    height: int
    width: int
    size: int

    def cycles(self, mfu: Mfu, pixels: int) -> int:
        """Return the cycles of one block of pixels; for no pixels those of one whose window has a row at a time."""
        if not pixels:
            return self.rows * ceil_div(self.kernel * self.channels, mfu.rows) * ceil_div(self.outputs, mfu.columns)
        reach = self.kernel + (pixels - 1) * self.stride
        return ceil_div(self.rows * reach * self.channels, mfu.rows) * ceil_div(pixels * self.outputs, mfu.columns)

    def line_cycles(self, mfu: Mfu, pixels: int) -> int:
        """Return the cycles of a line of the output, with up to four commands."""
        low, high = _inside(self.kernel, self.stride, self.pad, self.size, self.width)
        blocks, rest = divmod(max(0, high - low), pixels)
        together = blocks * self.cycles(mfu, pixels) + (self.cycles(mfu, rest) if rest else 0)
        outside = (self.width - blocks * pixels - rest) * self.cycles(mfu, 0)
        return together + outside + 3 * mfu.startup_cycles


@lru_cache(maxsize=1 << 12)
def _fastest(
    shape: _Shape, mfu: Mfu, item_bytes: int, scale_bytes: int, most_bytes: int, bytes_in_a_cycle: float
) -> int:
    """Return the number of pixels for which a map and its weights take the fewest cycles."""

    def cycles(pixels: int, load_cost: int = 1) -> float:
        reach = shape.kernel + (pixels - 1) * shape.stride
        columns = pixels * shape.outputs
        weight_bytes = (shape.rows * reach * shape.channels * item_bytes + scale_bytes) * columns
        if pixels > 1 and weight_bytes > most_bytes:
            return float("inf")
        line = shape.line_cycles(mfu, pixels)
        if pixels == 1:
            line = min(line, shape.width * shape.cycles(mfu, 0))
        return shape.height * line + load_cost * weight_bytes / bytes_in_a_cycle

    best = min(range(1, min(_MOST_PIXELS, shape.width) + 1), key=cycles)
    return best if cycles(best, _LOAD_COST) < _WORTH * cycles(1, _LOAD_COST) else 1


def _holds_windows(mfu: Mfu) -> bool:
    """Return whether the rows of an array hold a row of the window, and the array computes one pixel at a time."""
    return mfu.dataflow == "dot-product" and mfu.packing == "row" and mfu.pixels == 1


def _inside(kernel: int, stride: int, pad: int, size: int, width: int) -> tuple[int, int]:
    """Return the outputs of a line whose windows have no padding."""
    return ceil_div(pad, stride), min(width, (size + pad - kernel) // stride + 1)


def side_by_side(command: Command, pixels: int, mfu: Mfu) -> Iterator[Command]:
    """Yield the commands that compute a CONVOLVE in the fewest cycles, if its weights are those of so many pixels."""
    parts = _parts(command, pixels) if _holds_windows(mfu) and _gains(command, pixels, mfu) else []
    faster = parts and sum(_cycles(part, mfu) for part in parts) < _cycles(command, mfu)
    yield from parts if faster else [command]


def _cycles(command: Command, mfu: Mfu) -> int:
    return matrix_cycles(mfu, command)[0] + mfu.startup_cycles


def _gains(command: Command, pixels: int, mfu: Mfu) -> bool:
    """Return whether more of the rows are in use where they hold more than one row of a window."""
    if pixels > 1:
        return True
    weights = command.second
    if weights is None:
        return False
    _, rows, kernel, channels, _ = weights.descriptor.dims
    return ceil_div(rows * kernel * channels, mfu.rows) < rows * ceil_div(kernel * channels, mfu.rows)


def _parts(command: Command, pixels: int) -> list[Command]:
    """Return the commands of a CONVOLVE by blocks of pixels, and of the other pixels; none if there are no blocks."""
    first, settings = command.first, command.settings
    if first is None or command.target.descriptor.dims[0] > 1 or settings.kernel[0] > 1 or settings.dilation[2] > 1:
        return []
    if not _lies_dense(first) or (pixels > 1 and not all(map(_lies_dense, _outputs(command)))):
        return []
    _, _, size, _ = first.descriptor.dims
    _, _, width, _ = command.target.descriptor.dims
    low, high = _inside(settings.kernel[2], settings.stride[2], settings.pad[2], size, width)
    if high <= low:
        return []
    rest = (high - low) % pixels
    ends = (low, high - rest, high)
    blocks = [
        _blocks(_between(command, begin, end), min(pixels, end - begin))
        for begin, end in itertools.pairwise(ends)
        if begin < end
    ]
    outside = [_between(command, begin, end) for begin, end in ((0, low), (high, width)) if begin < end]
    found = [*blocks, *outside]
    return found if all(0 not in part.first.descriptor.dims for part in found if part.first is not None) else []


def _outputs(command: Command) -> list[Operand]:
    return [command.target, *([] if command.third is None else [command.third])]


def _lies_dense(operand: Operand) -> bool:
    """Return whether the channels of a pixel directly follow those of the pixel before it."""
    (_, _, width, channels), (_, _, along, apart) = operand.descriptor.dims, operand.descriptor.strides
    return width == 1 or (along > 0 and (channels == 1 or along == channels * apart))


def _between(command: Command, low: int, high: int) -> Command:
    """Return the command that computes the outputs [low, high) of every line."""
    settings, first = command.settings, command.first
    if first is None:
        return command
    kernel, stride, dilation, pad = (
        each[2] for each in (settings.kernel, settings.stride, settings.dilation, settings.pad)
    )
    size = first.descriptor.dims[2]
    start, stop = low * stride - pad, (high - 1) * stride - pad + (kernel - 1) * dilation + 1
    begin = min(max(0, start), size)
    return replace(
        command,
        target=_line_part(command.target, low, high),
        first=_line_part(first, begin, max(begin, min(size, stop))),
        third=None if command.third is None else _line_part(command.third, low, high),
        settings=replace(settings, pad=(settings.pad[0], settings.pad[1], max(0, -start))),
    )


def _line_part(operand: Operand, low: int, high: int) -> Operand:
    (depth, height, _, channels), strides = operand.descriptor.dims, operand.descriptor.strides
    return _viewed(operand, low * strides[2], (depth, height, high - low, channels), strides)


def _viewed(operand: Operand, offset: int, dims: Sequence[int], strides: Sequence[int]) -> Operand:
    """Return another view of the memory of an operand; an axis with one element has no stride."""
    used = tuple([stride if size > 1 else 0 for size, stride in zip(dims, strides, strict=True)])
    return Operand(
        descriptor_of(operand.descriptor.space, operand.descriptor.dtype, tuple(dims), used), operand.address + offset
    )


def _blocks(command: Command, pixels: int) -> Command:
    """Return a command without padding along its lines, computed in blocks of pixels.

    Blocks are its rows, lines are its columns, and the channels are those of all positions of a block.
    """
    settings, first, weights, vectors = command.settings, command.first, command.second, command.fourth
    if first is None or weights is None:
        return command
    reach = settings.kernel[2] + (pixels - 1) * settings.stride[2]
    _, rows, _, _, outputs = weights.descriptor.dims
    _, by_row, _, by_channel, by_output = weights.descriptor.strides
    _, height, width, channels = first.descriptor.dims
    _, by_line, by_pixel, apart = first.descriptor.strides
    blocks, columns = command.target.descriptor.dims[2] // pixels, pixels * outputs
    inputs = (1, blocks, height, reach * channels)
    strides = (0, pixels * settings.stride[2] * by_pixel, by_line, apart if channels > 1 or width == 1 else by_pixel)
    second = (1, 1, rows, reach * channels, columns)
    return replace(
        command,
        target=_of_blocks(command.target, pixels, blocks),
        first=_viewed(first, 0, inputs, strides),
        second=Operand(
            descriptor_of(
                weights.descriptor.space, weights.descriptor.dtype, second, (0, 0, by_row, by_channel, by_output)
            ),
            weights.address,
        ),
        third=None if command.third is None else _of_blocks(command.third, pixels, blocks),
        fourth=None
        if vectors is None
        else _viewed(vectors, 0, (vectors.descriptor.dims[0], columns), vectors.descriptor.strides),
        settings=replace(
            settings,
            kernel=(1, 1, rows),
            stride=(1, 1, settings.stride[1]),
            dilation=(1, 1, settings.dilation[1]),
            pad=(0, 0, settings.pad[1]),
        ),
    )


def _of_blocks(operand: Operand, pixels: int, blocks: int) -> Operand:
    """Return a view of outputs (1, lines, pixels, channels) as (1, blocks, lines, pixels of a block x channels)."""
    _, lines, _, channels = operand.descriptor.dims
    _, by_line, by_pixel, apart = operand.descriptor.strides
    step = by_pixel if channels == 1 and pixels > 1 else apart
    return _viewed(operand, 0, (1, blocks, lines, pixels * channels), (0, pixels * by_pixel, by_line, step))
