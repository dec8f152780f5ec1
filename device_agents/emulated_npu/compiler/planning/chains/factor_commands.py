"""Writes the loads and the computation of products of two computed tensors: the second factor lies in SB."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.layer_parts import output_channels
from device_agents.emulated_npu.compiler.graph.regions import Interval, Region, read_region, size_of
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import WeightBlock, weight_operand
from device_agents.emulated_npu.compiler.planning.chains.layer_commands import (
    Buffers,
    convolve,
    factor_axes,
    view_of_factor,
)
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Operand, Space, descriptor_of


@dataclass(frozen=True)
class Factors:
    """The second factors of a product: the buffer off chip, and the address of its scale and shift in DDR, if any."""

    layer: HardwareLayer
    machine: Machine
    source: Buffer
    scale_address: int | None

    def needed(self, region: Region) -> tuple[Interval, ...]:
        """Return the batch indices of the second factors that a region of the output needs."""
        return tuple(region[axis] for axis in factor_axes(self.layer.inputs[1]))

    def fetched(self, region: Region, block: WeightBlock, address: int, together: int) -> Iterator[Command]:
        """Yield loads of the block of all second factors of a region, one after the other, `together` per load."""
        for batch in batches(self.layer, region, together):
            count = math.prod(map(size_of, self.needed(batch)))
            yield self._load(batch, block, address)
            if self.scale_address is not None and block.vector_bytes:
                for place in range(count):
                    yield self._load_vectors(block, address + place * block.bytes, self.scale_address)
            address += count * block.bytes

    def multiplied(self, region: Region, block: WeightBlock, address: int, buffers: Buffers) -> Iterator[Command]:
        """Yield the products of a region with second factors as `fetched` for it leaves them."""
        for place, part in enumerate(batches(self.layer, region, 1)):
            weights = weight_operand(self.layer, block, self.machine, address + place * block.bytes)
            yield from convolve(self.layer, part, block, buffers, weights, self.machine.mfu)

    def _load(self, region: Region, block: WeightBlock, address: int) -> Command:
        weights = weight_operand(self.layer, block, self.machine, address)
        needed = list(read_region(self.layer, 1, region))
        needed[-2:] = [block.channels, block.outputs]
        source = view_of_factor(self.layer.inputs[1], tuple(needed), self.source)
        batch = source.descriptor.dims[:-2]
        dims = (*batch, *weights.descriptor.dims[3:])
        strides = (*[block.bytes] * len(batch), *weights.descriptor.strides[3:])
        target = descriptor_of(Space.SB, source.descriptor.dtype, dims, strides)
        return Command(Function.LOAD, Operand(target, address), source, layer=self.layer.index)

    def _load_vectors(self, block: WeightBlock, address: int, scale_address: int) -> Command:
        """Return the load of scale and shift of the block's columns; constant weights contain them."""
        columns, (low, high) = output_channels(self.layer), block.outputs
        scale = self.layer.scale_shift
        dtype = DataType.FLOAT32 if scale is None else scale.dtype
        item, dims = dtype.bytes, (block.vector_bytes // (dtype.bytes * (high - low)), high - low)
        target = descriptor_of(Space.SB, dtype, dims, (item * (high - low), item))
        source = descriptor_of(Space.DDR, dtype, dims, (item * columns, item))
        first = Operand(target, address + block.weight_bytes)
        return Command(Function.LOAD, first, Operand(source, scale_address + item * low), layer=self.layer.index)


def batches(layer: HardwareLayer, region: Region, together: int) -> Iterator[Region]:
    """Yield parts of the region with `together` second factors each, adjacent along their innermost batch axis.

    A part has all indices along axes where the second factor repeats.
    """
    axes = factor_axes(layer.inputs[1])
    parts = [[interval] for interval in region]
    for place in axes:
        (low, high), step = region[place], together if place == axes[-1] else 1
        parts[place] = [(first, min(first + step, high)) for first in range(low, high, step)]
    yield from itertools.product(*parts)
