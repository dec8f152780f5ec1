"""The places of values in memory, and the operands by which commands access parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value, View, ViewAxis
from device_agents.emulated_npu.compiler.graph.regions import Region, size_of
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType, Operand, Space, descriptor_of

Axes = Sequence[tuple[int, int]]
"""Size and stride of each axis of an operand."""


@dataclass(frozen=True)
class Buffer:
    """Memory that holds a part of a value: the element at `origin` lies at `address`; strides are bytes per axis."""

    space: Space
    address: int
    dtype: DataType
    origin: tuple[int, ...]
    strides: tuple[int, ...]

    def moved(self, address: int, origin: tuple[int, ...]) -> Buffer:
        """Return the same layout at another address, or for another part."""
        return Buffer(self.space, address, self.dtype, origin, self.strides)

    def sampled(self, starts: Sequence[int], steps: Sequence[int]) -> Buffer:
        """Return the buffer of every `steps[axis]`-th element of each axis of the value, from `starts[axis]` on."""
        walked = list(zip(starts, self.origin, steps, self.strides, strict=True))
        address = self.address + sum((start - first) * stride for start, first, _, stride in walked)
        strides = tuple(step * stride for _, _, step, stride in walked)
        return Buffer(self.space, address, self.dtype, (0,) * len(strides), strides)


def dense_strides(extents: Sequence[int], order: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Return the strides in bytes of axes that lie densely in `order`, outermost first."""
    strides = [0] * len(extents)
    step = item_bytes
    for axis in reversed(order):
        strides[axis] = step
        step *= extents[axis]
    return tuple(strides)


def order_in_buffer(value: Value) -> tuple[int, ...]:
    """Return the order of the axes of a value in NB: maps in the order of the host also have the channels innermost."""
    axes = tuple(range(len(value.shape)))
    of_host = value.kind == "input" or value.is_output
    return (0, *axes[2:], 1) if of_host and value.order == axes and len(axes) > 2 else value.order


def stored_type(dtype: DataType, machine: Machine) -> DataType:
    """Return the type of elements in the machine's memories: the machine's data type replaces float32."""
    return machine.data_type if dtype is DataType.FLOAT32 else dtype


def buffer_bytes(extents: Sequence[int], dtype: DataType) -> int:
    """Return the size of a dense buffer in bytes."""
    return math.prod(extents) * dtype.bytes


def region_operand(buffer: Buffer, region: Region, order: Sequence[int]) -> Operand:
    """Return the operand of a region of the value with its axes in memory order, to move it unchanged."""
    address, strides = buffer.address, buffer.strides
    for (low, _), first, stride in zip(region, buffer.origin, strides, strict=True):
        address += (low - first) * stride
    sizes = [size_of(interval) for interval in region]
    axes = [axis for axis in order if sizes[axis] != 1]
    dims = tuple([sizes[axis] for axis in axes])
    return Operand(descriptor_of(buffer.space, buffer.dtype, dims, tuple([strides[axis] for axis in axes])), address)


def view_operand(buffer: Buffer, view: View, region: Region, arrange: Callable[[Axes], Axes] = tuple) -> Operand:
    """Return the operand of a region of a view; `arrange` maps the axes of the view to those of the operand."""
    address, along = buffer.address, buffer.strides
    for start, first, stride in zip(view.start, buffer.origin, along, strict=True):
        address += (start - first) * stride
    for axis, (low, _) in zip(view.axes, region, strict=True):
        address += low * _stride(buffer, axis)
    arranged = arrange(view_axes(buffer, view, region))
    dims, strides = tuple([size for size, _ in arranged]), tuple([stride for _, stride in arranged])
    return Operand(descriptor_of(buffer.space, buffer.dtype, dims, strides), address)


def view_axes(buffer: Buffer, view: View, region: Region) -> Axes:
    """Return the axes of a region of a view; the stride of an axis of one element is 0."""
    pairs = [(axis, size_of(interval)) for axis, interval in zip(view.axes, region, strict=True)]
    return [(size, _stride(buffer, axis) if size > 1 else 0) for axis, size in pairs]


def _stride(buffer: Buffer, axis: ViewAxis) -> int:
    return 0 if axis.base is None else axis.step * buffer.strides[axis.base]
