"""Cycles of the matrix unit, without start-up: how a command is laid out over rows, columns and pixels of its array.

A dot-product array computes `rows` products for each of `columns` channels of each of its pixels in a cycle. The
stationary dataflows follow SCALE-Sim's closed forms (Samajdar et al., arXiv:1811.02883). A depthwise convolution that
the array computes (`Mfu.depthwise`) has its channels on the columns, and sums over the window only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Dataflow, Mfu
from device_agents.emulated_npu.timing.cost.transfer_cost import dims_of
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Operand, Space

_NB = (Space.NB, Space.HALO)


def systolic_cycles(
    dataflow: Dataflow,
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    *,
    products: int = 1,
    preloads_weights: bool = False,
) -> tuple[int, int]:
    """Return the cycles of `products` m x k by k x n products (m output pixels), and how many of them stream vectors.

    A fold holds rows x columns weights, sums or inputs, and streams one vector per cycle through the skewed array.
    Weights and inputs are loaded in `rows` cycles before; sums start at zero. An array that preloads them loads those
    of the next fold while it streams, and the vectors of the next fold follow immediately: only the first load, and the
    skew of the last fold, take additional time.
    """
    if dataflow == "weight-stationary":
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(n, columns), m, rows
    elif dataflow == "output-stationary":
        folds, streamed, loading = ceil_div(m, rows) * ceil_div(n, columns), k, 0
    else:
        folds, streamed, loading = ceil_div(k, rows) * ceil_div(m, columns), n, rows
    folds *= products
    skew = rows + columns - 2
    if preloads_weights:
        return loading + (folds - 1) * max(loading, streamed) + streamed + skew - 1, folds * streamed
    return folds * (loading + skew + streamed) - 1, folds * streamed


class MatrixShape(NamedTuple):
    """The loops of a CONVOLVE, or of a DEPTHWISE with one reduced channel and all its outputs as columns."""

    depth: int
    height: int
    width: int
    kernel: tuple[int, int, int]
    channels: int
    columns: int

    @property
    def pixels(self) -> int:
        """Output pixels."""
        return self.depth * self.height * self.width

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return math.prod(self.kernel)

    @property
    def macs(self) -> int:
        """Multiply-adds, those on padding included."""
        return self.pixels * self.taps * self.channels * self.columns


def runs_on_mfu(mfu: Mfu, function: Function) -> bool:
    """Return whether the matrix unit executes a CP function; the vector unit executes all others."""
    return function is Function.CONVOLVE or (function is Function.DEPTHWISE and mfu.depthwise == "mfu")


def matrix_shape(command: Command) -> MatrixShape:
    """Return the loops of a CONVOLVE or a DEPTHWISE; raises ExecutionFault if its operands have other ranks."""
    if command.function is Function.CONVOLVE:
        depth, height, width, columns = dims_of(command, command.target, 4)
        *taps, channels, _ = dims_of(command, command.second, 5)
    else:
        depth, height, width, *outputs = dims_of(command, command.target, 5)
        *taps, _, _ = dims_of(command, command.second, 5)
        channels, columns = 1, math.prod(outputs)
    return MatrixShape(depth, height, width, (taps[0], taps[1], taps[2]), channels, columns)


def matrix_cycles(mfu: Mfu, command: Command) -> tuple[int, int]:
    """Return the cycles of a command that `runs_on_mfu`, and how many of them stream products.

    The output path works in parallel with the array and limits it if it is slower; a residual is added after the
    product.
    """
    shape = matrix_shape(command)
    if shape.macs == 0:
        return 0, 0
    if mfu.dataflow == "dot-product":
        cycles = streaming = _dot_product_cycles(mfu, shape, command)
    elif command.function is Function.DEPTHWISE:
        cycles, streaming = _stationary(mfu, shape.pixels, 1, shape.taps, shape.columns)
    else:
        cycles, streaming = _stationary(mfu, shape.pixels, shape.columns, shape.taps * shape.channels, 1)
    if mfu.output_lanes:
        leaving = math.ceil(shape.pixels * shape.columns / mfu.output_lanes)
        cycles, streaming = max(cycles, leaving), max(streaming, leaving)
    if mfu.residual_lanes and command.third is not None:
        adding = math.ceil(shape.pixels * shape.columns / mfu.residual_lanes)
        cycles, streaming = cycles + adding, streaming + adding
    return cycles, streaming


def _stationary(mfu: Mfu, m: int, n: int, k: int, products: int) -> tuple[int, int]:
    return systolic_cycles(
        mfu.dataflow, m, n, k, mfu.rows, mfu.columns, products=products, preloads_weights=mfu.preloads_weights
    )


def _dot_product_cycles(mfu: Mfu, shape: MatrixShape, command: Command) -> int:
    """Return the cycles; channels, a window row or channels x strides fill the rows (`Mfu.packing`)."""
    depth, height, width = shape.kernel
    groups = _blocks_of_pixels(mfu, shape) * ceil_div(shape.columns, mfu.columns)
    if mfu.packing == "row":
        return groups * depth * height * ceil_div(width * shape.channels, mfu.rows)
    if mfu.packing == "stride" and command.function is Function.CONVOLVE:
        unfolded = math.prod(command.settings.stride)
        if not unfolded:
            raise ExecutionFault("CONVOLVE has a stride of zero")
        return ceil_div(groups * shape.taps * ceil_div(shape.channels * unfolded, mfu.rows), unfolded)
    step = mfu.step_cycles
    by_channels = shape.taps * ceil_div(shape.channels, mfu.rows * step)
    by_taps = ceil_div(shape.taps, step) * ceil_div(shape.channels, mfu.rows)
    return groups * step * min(by_channels, by_taps)


def _blocks_of_pixels(mfu: Mfu, shape: MatrixShape) -> int:
    """Return how many blocks of `pixel_rows` x `pixel_columns` cover the output."""
    if shape.height == 1 and shape.kernel[1] == 1:
        return shape.depth * ceil_div(shape.width, mfu.pixels)
    return shape.depth * ceil_div(shape.height, mfu.pixel_rows) * ceil_div(shape.width, mfu.pixel_columns)


class SramTraffic(NamedTuple):
    """Bytes read from NB and written to it, halo buffer included, and bytes read from SB and written to it."""

    nb_read_bytes: int
    nb_written_bytes: int
    sb_read_bytes: int
    sb_written_bytes: int


def sram_traffic(mfu: Mfu, command: Command) -> SramTraffic:
    """Return the bytes of any data command; raises ExecutionFault for a CONVOLVE without its operands."""
    repeated = _sweeps(mfu, command)
    nb_read = sb_read = 0
    for operand in command.sources:
        size = _distinct_bytes(operand.descriptor) * (repeated if operand is command.first else 1)
        nb_read += size if operand.descriptor.space in _NB else 0
        sb_read += size if operand.descriptor.space is Space.SB else 0
    written = _distinct_bytes(command.target.descriptor)
    if command.accumulate:
        nb_read += written
    return SramTraffic(nb_read, _in(command.target, _NB, written), sb_read, _in(command.target, (Space.SB,), written))


def port_cycles(nb_port_bytes: int, sb_port_bytes: int, traffic: SramTraffic) -> int:
    """Return the cycles that the ports of NB and SB need for a CP command; a port of 0 bytes never limits."""
    features = traffic.nb_read_bytes + traffic.nb_written_bytes
    of_nb = ceil_div(features, nb_port_bytes) if nb_port_bytes else 0
    of_sb = ceil_div(traffic.sb_read_bytes, sb_port_bytes) if sb_port_bytes else 0
    return max(of_nb, of_sb)


def _in(operand: Operand, spaces: tuple[Space, ...], size: int) -> int:
    return size if operand.descriptor.space in spaces else 0


def _sweeps(mfu: Mfu, command: Command) -> int:
    """Return how often a command reads its first operand."""
    if command.function is not Function.CONVOLVE:
        return 1
    *_, columns = dims_of(command, command.target, 4)
    return ceil_div(columns, mfu.held_columns or mfu.columns)


def _distinct_bytes(descriptor: Descriptor) -> int:
    """Return the bytes of a view, those that it repeats once."""
    sizes = zip(descriptor.dims, descriptor.strides, strict=True)
    moved = math.prod(size if stride or not size else 1 for size, stride in sizes) * descriptor.dtype.bytes
    low, high = descriptor.extent
    return min(moved, high - low)
