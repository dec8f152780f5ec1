"""Writes a chain plan out as commands, pass by pass: loads, halo copies, computation, stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.regions import (
    Interval,
    Region,
    intersection,
    is_empty,
    multiplier,
    size_of,
)
from device_agents.emulated_npu.compiler.graph.value_parts import grid_of, whole_value
from device_agents.emulated_npu.compiler.planning.chains.chain import (
    ChainPlan,
    depthwise_bytes,
    element_type,
    reads_outside,
)
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import (
    WeightBlock,
    WeightLoad,
    uses_weight_buffer,
    weight_operand,
)
from device_agents.emulated_npu.compiler.planning.chains.externals import (
    Destination,
    Externals,
    factor_scale_key,
    weight_key,
)
from device_agents.emulated_npu.compiler.planning.chains.factor_commands import Factors, batches
from device_agents.emulated_npu.compiler.planning.chains.layer_commands import (
    Buffers,
    commands_of,
    convolve,
    depthwise_constants,
)
from device_agents.emulated_npu.compiler.planning.chains.tiling import Tile
from device_agents.emulated_npu.compiler.planning.chains.weight_plans import WeightPlan
from device_agents.emulated_npu.compiler.planning.memory_places import (
    Buffer,
    dense_strides,
    order_in_buffer,
    region_operand,
    stored_type,
)
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Space, plain_bytes


@dataclass(frozen=True)
class ComputeStep:
    """The computation of a region of a layer's output, with the loads of streamed weights."""

    layer: HardwareLayer
    region: Region


class MoveStep(NamedTuple):
    """A region of a value that moves unchanged; `ends` are target and source. Equal sizes take equal time."""

    function: Function
    name: str
    ends: tuple[Buffer, Buffer]
    region: Region
    layer: int


@dataclass(frozen=True)
class _HeldFactors:
    """The batch indices of the second factors that lie in SB, their address, and how many were there before."""

    indices: tuple[Interval, ...]
    address: int
    turn: int


class ChainWriter:
    """Writes the passes of one chain in order; `nb_base` and `sb_base` shift its buffers."""

    def __init__(
        self,
        plan: ChainPlan,
        values: Mapping[str, Value],
        machine: Machine,
        externals: Externals,
        nb_base: int = 0,
        sb_base: int = 0,
    ) -> None:
        self._plan, self._values, self._machine, self._externals = plan, values, machine, externals
        self._nb_base, self._sb_base = nb_base, sb_base
        self._geometry = plan.geometry
        self._current: dict[str, Buffer] = {}
        self._turns = dict.fromkeys(plan.buffers, 0)
        self._dense: dict[str, tuple[DataType, tuple[int, ...]]] = {}
        self._loads = 0
        self._ahead = 0
        self._fetched: set[int] = set()
        self._held: dict[int, _HeldFactors] = {}
        first_reader: dict[str, int] = {}
        self._first_writer: dict[str, int] = {}
        self._last_writer: dict[str, int] = {}
        for place, layer in enumerate(plan.layers):
            for view in layer.reads:
                first_reader.setdefault(view.value, place)
            self._first_writer.setdefault(layer.output.value, place)
            self._last_writer[layer.output.value] = place
        self._loaded_by: dict[int, list[str]] = {}
        for name in self._geometry.loaded:
            if name in plan.buffers:
                self._loaded_by.setdefault(first_reader[name], []).append(name)

    def commands(self) -> Iterator[Command]:
        """Yield the commands of all passes."""
        for tile in self._geometry.tiles():
            for step in self.steps(tile):
                if isinstance(step, ComputeStep):
                    yield from self.compute(step)
                else:
                    yield self.move(step) if isinstance(step, MoveStep) else step

    def steps(self, tile: Tile) -> Iterator[Command | MoveStep | ComputeStep]:
        """Yield one pass in order; `move` writes out a move, and `compute` a compute step."""
        for place, layer in enumerate(self._plan.layers):
            output = layer.output.value
            active = self._geometry.is_active(output, tile)
            if active:  # before the features, which may wait for the chain that computes them
                yield from self._first_weights(layer)
                yield from self._first_factors(layer, tile)
            for name in self._loaded_by.get(place, ()):
                yield from self._load(name, tile, layer.index)
            if self._first_writer[output] == place:
                yield from self._enter(output, tile, layer.index)
            if active:
                yield ComputeStep(layer, self._geometry.output_region(layer, tile))
                if output in self._geometry.stored:
                    yield from self._store(layer, tile)
            if self._last_writer[output] == place:
                yield from self._keep(output, tile, layer.index)

    def _enter(self, name: str, tile: Tile, layer: int) -> Iterator[MoveStep]:
        """Switch to the buffer of this pass and restore the halo that was kept for it."""
        active = self._geometry.is_active(name, tile)
        if self._geometry.is_resident(name) and not active and name in self._current:
            return
        held = self._geometry.held_region(name, tile)
        slots = self._plan.buffers[name]
        address = self._nb_base + slots[self._turns[name] % len(slots)]
        self._turns[name] += 1
        if name not in self._dense:
            value = self._values[name]
            dtype = element_type(value, self._machine)
            self._dense[name] = dtype, dense_strides(self._plan.extents[name], order_in_buffer(value), dtype.bytes)
        dtype, strides = self._dense[name]
        self._current[name] = Buffer(Space.NB, address, dtype, tuple([low for low, _ in held]), strides)
        for place, region in self._geometry.halos(name, tile):
            yield MoveStep(Function.COPY, name, (self._current[name], self._slab(name, place, held)), region, layer)

    def _keep(self, name: str, tile: Tile, layer: int) -> Iterator[MoveStep]:
        """Copy what later passes need again into the auxiliary buffer."""
        if self._geometry.is_resident(name) and not self._geometry.is_active(name, tile):
            return
        for place, region in self._geometry.kept(name, tile):
            after = tuple(index + (cut == place) for cut, index in enumerate(tile))
            kept = self._slab(name, place, self._geometry.held_region(name, after))
            yield MoveStep(Function.COPY, name, (kept, self._current[name]), region, layer)

    def _slab(self, name: str, place: int, held: Region) -> Buffer:
        """Return the buffer of the halo across a cut, for the pass that holds `held`."""
        halo = self._plan.halo_places[name, place]
        origin = [low for low, _ in self._geometry.regions[name]]
        for other, track in enumerate(self._geometry.tracks[name]):
            if track is not None:
                origin[track.axis] = held[track.axis][0] if other <= place else track.span[0]
        value = self._values[name]
        dtype = element_type(value, self._machine)
        strides = dense_strides(halo.extents, value.order, dtype.bytes)
        return Buffer(Space.HALO, halo.address, dtype, tuple(origin), strides)

    def move(self, step: MoveStep) -> Command:
        """Return the command of a move."""
        order = self._values[step.name].order
        target, source = (region_operand(end, step.region, order) for end in step.ends)
        return Command(step.function, target, source, layer=step.layer)

    def _load(self, name: str, tile: Tile, layer: int) -> Iterator[MoveStep]:
        yield from self._enter(name, tile, layer)
        if self._geometry.is_active(name, tile):
            ends = self._current[name], self._source(name)
            yield MoveStep(Function.LOAD, name, ends, self._geometry.new_region(name, tile), layer)
        yield from self._keep(name, tile, layer)

    def _source(self, name: str) -> Buffer:
        """Return the place of a value off chip, or the elements of a value that a name denotes."""
        buffer, grid = self._externals.values[whole_value(name)], grid_of(name)
        return buffer if grid is None else buffer.sampled(grid.starts, grid.steps)

    def _store(self, layer: HardwareLayer, tile: Tile) -> Iterator[Command | MoveStep]:
        name = layer.output.value
        own = layer.output.value_region
        region = intersection(own, self._geometry.stored_region(name, tile))
        if is_empty(region):
            return
        whole = whole_value(name)
        if whole in self._externals.values:
            ends = self._externals.values[whole], self._current[name]
            yield MoveStep(Function.STORE, name, ends, region, layer.index)
        for destination in self._externals.sends.get(whole, ()):
            part = intersection(region, destination.region)
            if not is_empty(part):
                yield from self._send(name, part, destination, layer.index)

    def _send(self, name: str, region: Region, destination: Destination, layer: int) -> Iterator[Command]:
        """Send a part of a value to the first core of a destination, and a notification to the others."""
        order = self._values[name].order
        target = region_operand(destination.buffer or self._externals.values[whole_value(name)], region, order)
        payload = None if destination.buffer is None else region_operand(self._current[name], region, order)
        for core in destination.cores:
            yield Command(Function.SEND, target, payload, peer=core, layer=layer)
            payload = None

    def _first_weights(self, layer: HardwareLayer) -> Iterator[Command]:
        """Fetch the first load of streamed weights, and resident weights when they are needed for the first time."""
        plan = self._plan.weights.get(layer.index)
        if plan is not None and not plan.resident and layer.weights is not None:
            self._ahead = self._next_slot(plan)
            yield self._fetch(layer, plan.loads[0], self._ahead)
        if layer.index in self._fetched:
            return
        self._fetched.add(layer.index)
        for name, size in depthwise_bytes(layer, self._machine).items():
            address = self._nb_base + self._plan.constants[name]
            yield self._bytes_load(Space.NB, address, self._externals.constants[name], size, layer.index)
        if plan is not None and plan.resident and layer.weights is not None:
            for load in plan.loads:
                yield self._fetch(layer, load, self._sb_base + plan.addresses[0] + load.offset)

    def compute(self, step: ComputeStep) -> Iterator[Command]:
        """Yield the commands that compute a region."""
        layer, region = step.layer, step.region
        buffers = self._operands(layer)
        if not uses_weight_buffer(layer):
            yield from commands_of(layer, region, buffers)
            return
        plan = self._plan.weights[layer.index]
        if layer.weights is None:
            yield from self._product(layer, region, plan, buffers)
            return
        for place, load in enumerate(plan.loads):
            if plan.resident:
                address = self._sb_base + plan.addresses[0] + load.offset
            elif place == 0:
                address = self._ahead
            else:
                address = self._next_slot(plan)
                yield self._fetch(layer, load, address)
            for block in load.blocks:
                weights = weight_operand(layer, block, self._machine, address + block.offset - load.offset)
                yield from convolve(layer, region, block, buffers, weights, self._machine.mfu)

    def counted(self, step: ComputeStep) -> Iterator[tuple[Command, int]]:
        """Yield commands that represent those of a step, each with the number of commands that take as long.

        Blocks of equal size take the same time, and so do loads of as many bytes.
        """
        layer, plan = step.layer, self._plan.weights.get(step.layer.index)
        if plan is None or layer.weights is None:
            yield from ((command, 1) for command in self.compute(step))
            return
        axis, buffers = channel_axis(layer), self._operands(layer)
        blocks: dict[object, list[WeightBlock]] = {}
        for block in (block for load in plan.loads for block in load.blocks):
            (low, high), *_ = intersection((block.outputs,), (step.region[axis],))
            key = high - low, size_of(block.channels), size_of(block.outputs), block.completes
            blocks.setdefault(key, []).append(block)
        for alike in blocks.values():
            weights = weight_operand(layer, alike[0], self._machine, 0)
            for command in convolve(layer, step.region, alike[0], buffers, weights, self._machine.mfu):
                yield command, len(alike)
        fetched = () if plan.resident else plan.loads[1:]
        sizes = Counter(load.bytes for load in fetched)
        for load in {load.bytes: load for load in fetched}.values():
            yield self._fetch(layer, load, 0), sizes[load.bytes]

    def _operands(self, layer: HardwareLayer) -> Buffers:
        reads = tuple(
            (self._externals.values if reads_outside(layer, place) else self._current)[view.value]
            for place, view in enumerate(layer.reads)
        )
        constants = {
            name: self._constant_buffer(layer, name, self._nb_base + self._plan.constants[name])
            for name in depthwise_bytes(layer, self._machine)
        }
        return Buffers(self._current[layer.output.value], reads, constants)

    def _next_slot(self, plan: WeightPlan) -> int:
        self._loads += 1
        return self._sb_base + plan.addresses[self._loads % len(plan.addresses)]

    def _fetch(self, layer: HardwareLayer, load: WeightLoad, address: int) -> Command:
        source = self._externals.weights[weight_key(layer)] + load.offset
        return self._bytes_load(Space.SB, address, source, load.bytes, layer.index)

    def _bytes_load(self, space: Space, address: int, source: int, size: int, layer: int) -> Command:
        target, first = plain_bytes(space, address, size), plain_bytes(Space.DDR, source, size)
        return Command(Function.LOAD, target, first, layer=layer)

    def _constant_buffer(self, layer: HardwareLayer, name: str, address: int) -> Buffer:
        """Return the dense buffer of weights (kd, kh, kw, C, m), or of scale and shift (2, C, m)."""
        channels = layer.inputs[0].axes[1].size
        ratio = multiplier(layer)
        is_weights = name == depthwise_constants(layer)[0]
        scale = layer.scale_shift
        dims: tuple[int, ...] = (*layer.settings.kernel, channels, ratio)
        dtype = stored_type(layer.factor_type, self._machine)
        if scale is not None and not is_weights:
            dims, dtype = (scale.shape[0], channels, ratio), scale.dtype
        return Buffer(Space.NB, address, dtype, dims, dense_strides(dims, range(len(dims)), dtype.bytes))

    def _factors(self, layer: HardwareLayer) -> Factors:
        """Return the second factors of a product of two computed tensors."""
        scaled = layer.scale_shift is not None
        address = self._externals.constants[factor_scale_key(layer)] if scaled else None
        return Factors(layer, self._machine, self._externals.values[layer.inputs[1].value], address)

    def _first_factors(self, layer: HardwareLayer, tile: Tile) -> Iterator[Command]:
        """Fetch resident second factors, unless they are those of the pass before."""
        plan = self._plan.weights.get(layer.index)
        if plan is None or not plan.resident or layer.weights is not None:
            return
        region, factors = self._geometry.output_region(layer, tile), self._factors(layer)
        before, needed = self._held.get(layer.index), factors.needed(region)
        if before is not None and before.indices == needed:
            return
        turn = 0 if before is None else before.turn + 1
        address = self._sb_base + plan.addresses[turn % len(plan.addresses)]
        self._held[layer.index] = _HeldFactors(needed, address, turn)
        yield from factors.fetched(region, plan.loads[0].blocks[0], address, plan.together)

    def _product(self, layer: HardwareLayer, region: Region, plan: WeightPlan, buffers: Buffers) -> Iterator[Command]:
        """Yield a product of two computed tensors; factors that are not resident are loaded, some at a time."""
        factors = self._factors(layer)
        if plan.resident:
            yield from factors.multiplied(region, plan.loads[0].blocks[0], self._held[layer.index].address, buffers)
            return
        for batch in batches(layer, region, plan.together):
            for load in plan.loads:
                address = self._next_slot(plan)
                yield from factors.fetched(batch, load.blocks[0], address, plan.together)
                yield from factors.multiplied(batch, load.blocks[0], address, buffers)
