"""The plan of one chain: its tiles, buffers and weights.

A chain plan is the execution tree of its layers: loops over tiles around the layers, and loops over blocks of weights
inside each layer. Lowering writes it out as commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, Value
from device_agents.emulated_npu.compiler.graph.regions import size_of
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime, aligned, aligned_down, allocate
from device_agents.emulated_npu.compiler.planning.layer_commands import depthwise_constants, factor_axes
from device_agents.emulated_npu.compiler.planning.memory_places import stored_type
from device_agents.emulated_npu.compiler.planning.tiling import Cut, Geometry, count_tiles, cut_chain
from device_agents.emulated_npu.compiler.planning.weights import (
    WeightLoad,
    cut_weights,
    gather_loads,
    uses_weight_buffer,
)
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType, Function

_LOAD_BYTES = 128 << 10
"""Resident weights are fetched in parts of about this size, so that computing begins before all have arrived."""

_FACTOR_BYTES = 32 << 10
"""Small second factors of products are fetched together, in loads of up to about this size."""

_FACTOR_SLOTS = 8
"""Loads of second factors that SB holds at once, so that they arrive while other layers compute."""

MAX_PASSES = 1 << 16


@dataclass(frozen=True)
class Room:
    """Bytes that a chain may use of each memory.

    The halo buffer is carved out of `nb_bytes`: as much as the chain needs, and at least `reserved_bytes`.
    """

    nb_bytes: int
    sb_bytes: int
    halo_bytes: int
    reserved_bytes: int = 0


@dataclass(frozen=True)
class Chain:
    """Layers to run as one chain; `stored` are the values that they store off chip."""

    layers: tuple[HardwareLayer, ...]
    stored: frozenset[str]


@dataclass(frozen=True)
class WeightPlan:
    """How the second operand of a layer reaches SB.

    Resident weights lie at `addresses[0]` and are fetched in the first pass. Other weights are fetched in every pass,
    load after load, into `addresses` in turn. `together` is the number of second factors of a product per load.
    """

    resident: bool
    loads: tuple[WeightLoad, ...]
    addresses: tuple[int, ...]
    together: int = 1


@dataclass(frozen=True)
class Slab:
    """The halo of a value across one cut, and its place in the auxiliary buffer."""

    address: int
    extents: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class ChainPlan:
    """A chain with everything decided.

    `buffers` has the addresses in NB by value: two where a pass loads its part while the pass before it computes.
    """

    geometry: Geometry
    extents: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int]
    weights: Mapping[int, WeightPlan]
    slabs: Mapping[tuple[str, int], Slab]
    nb_bytes: int
    sb_bytes: int
    halo_bytes: int

    @property
    def layers(self) -> tuple[HardwareLayer, ...]:
        """The layers in order."""
        return self.geometry.layers

    @property
    def passes(self) -> int:
        """The number of passes."""
        return math.prod(self.geometry.counts)

    @property
    def loads_ahead(self) -> bool:
        """Whether a pass loads its part of every input while the pass before it computes."""
        changing = (
            name for name in self.geometry.loaded if name in self.buffers and not self.geometry.is_resident(name)
        )
        return self.passes == 1 or all(len(self.buffers[name]) > 1 for name in changing)


def plan_chain(
    chain: Chain, values: Mapping[str, Value], cuts: Sequence[Cut], machine: Machine, room: Room, *, turns: int = 2
) -> ChainPlan:
    """Decide buffers and weights for these cuts; raises NotTileable, or DoesNotFit with demand and limit.

    Passes use `turns` buffers in turn for what they load and store. With one, they compute larger tiles, and a pass
    loads after the one before it has computed.
    """
    layers = chain.layers
    passes = count_tiles(layers[-1], cuts)
    if passes > MAX_PASSES:
        raise countless(layers[-1], passes)
    geometry = cut_chain(layers, cuts, chain.stored)
    extents = {name: _extents(geometry, name) for name in geometry.regions}
    slabs, halo_bytes = _slabs(geometry, values, machine)
    _demand(layers, "halo buffer", halo_bytes, room.halo_bytes, "halo_bytes")
    buffers, constants, nb_bytes = _buffers(geometry, values, extents, machine, turns)
    _demand(layers, "NB", nb_bytes, room.nb_bytes - max(halo_bytes, room.reserved_bytes), "nb_bytes")
    weights, sb_bytes = _weights(geometry, machine, room.sb_bytes)
    _demand(layers, "SB", sb_bytes, room.sb_bytes, "sb_bytes")
    return ChainPlan(geometry, extents, buffers, constants, weights, slabs, nb_bytes, sb_bytes, halo_bytes)


def element_type(value: Value | LazyConstant, machine: Machine) -> DataType:
    """Return the type of a value in the machine's memories: the machine's data type replaces float32."""
    return stored_type(value.dtype, machine)


def in_buffer(geometry: Geometry, name: str) -> bool:
    """Return whether a value lies in NB; tables of gathers and second factors of products do not."""
    if name not in geometry.loaded:
        return True
    return any(
        view.value == name and not reads_outside(layer, place)
        for layer in geometry.layers
        for place, view in enumerate(layer.reads)
    )


def reads_outside(layer: HardwareLayer, place: int) -> bool:
    """Return whether a layer reads this operand from DDR or LLC, or through SB, instead of NB."""
    if layer.function is Function.GATHER:
        return place == 0
    return layer.matrix and layer.weights is None and place == 1


def countless(layer: HardwareLayer, passes: int) -> DoesNotFit:
    """Return the error for a chain up to this layer in more than MAX_PASSES passes."""
    step = "Choose larger tiles, or raise nb_bytes of the machine"
    return DoesNotFit(f"{layer.name} would run in {passes} passes", f"at most {MAX_PASSES} are compiled", step)


def _demand(layers: Sequence[HardwareLayer], memory: str, needed: int, limit: int, parameter: str) -> None:
    if needed > limit:
        names = layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}"
        what, why = f"{names} needs {needed} bytes of {memory}", f"there are {max(0, limit)}"
        raise DoesNotFit(what, why, f"Raise {parameter} of the machine", memory, needed)


def _extents(geometry: Geometry, name: str) -> tuple[int, ...]:
    extents = [size_of(interval) for interval in geometry.regions[name]]
    for track in geometry.tracks[name]:
        if track is not None:
            extents[track.axis] = max(size[1] for size in track.sizes)
    return tuple(extents)


def _slabs(
    geometry: Geometry, values: Mapping[str, Value], machine: Machine
) -> tuple[dict[tuple[str, int], Slab], int]:
    slabs: dict[tuple[str, int], Slab] = {}
    top = 0
    for name, tracks in geometry.tracks.items():
        if not in_buffer(geometry, name):
            continue
        for place, track in enumerate(tracks):
            halo = 0 if track is None else max(size[2] for size in track.sizes)
            if track is None or halo == 0:
                continue
            extents = [size_of(interval) for interval in geometry.regions[name]]
            for other, second in enumerate(tracks):
                if second is not None:
                    held = max(size[1] for size in second.sizes)
                    extents[second.axis] = held if other < place else size_of(second.span)
            extents[track.axis] = halo
            size = math.prod(extents) * element_type(values[name], machine).bytes
            slabs[name, place] = Slab(top, tuple(extents), size)
            top += aligned(size)
    return slabs, top


def _buffers(
    geometry: Geometry,
    values: Mapping[str, Value],
    extents: Mapping[str, tuple[int, ...]],
    machine: Machine,
    turns: int,
) -> tuple[dict[str, tuple[int, ...]], dict[str, int], int]:
    """Return the addresses in NB of values (up to `turns` each) and of constants of depthwise layers, and the end."""
    passes = math.prod(geometry.counts)
    end = len(geometry.layers)
    items: list[Lifetime] = []
    slots: dict[str, int] = {}
    for name in geometry.regions:
        if not in_buffer(geometry, name):
            continue
        size = math.prod(extents[name]) * element_type(values[name], machine).bytes
        first, last = _life(geometry, name, passes)
        slots[name] = turns if passes > 1 and (first, last) == (0, end) and not geometry.is_resident(name) else 1
        items.extend(Lifetime(f"{name}#{slot}", size, first, last) for slot in range(slots[name]))
    for layer in geometry.layers:
        items.extend(Lifetime(key, size, 0, end) for key, size in depthwise_bytes(layer, machine).items())
    addresses, top = allocate(items)
    buffers = {name: tuple(addresses[f"{name}#{slot}"] for slot in range(count)) for name, count in slots.items()}
    constants = {name: address for name, address in addresses.items() if "#" not in name}
    return buffers, constants, top


def depthwise_bytes(layer: HardwareLayer, machine: Machine) -> dict[str, int]:
    """Return the bytes in NB of weights and scales of a depthwise layer; scales are float32 on every machine."""
    if layer.function is not Function.DEPTHWISE or layer.weights is None:
        return {}
    weights, scales = depthwise_constants(layer)
    sizes = {weights: math.prod(layer.weights.shape) * element_type(layer.weights, machine).bytes}
    if layer.scale_shift is not None:
        sizes[scales] = math.prod(layer.scale_shift.shape) * DataType.FLOAT32.bytes
    return sizes


def _life(geometry: Geometry, name: str, passes: int) -> tuple[int, int]:
    """Return the first and last layer between which a buffer is in use: the whole pass if passes overlap."""
    end = len(geometry.layers)
    readers = [place for place, layer in enumerate(geometry.layers) if any(view.value == name for view in layer.reads)]
    writers = [place for place, layer in enumerate(geometry.layers) if layer.output.value == name]
    if passes > 1 and (name in geometry.loaded or name in geometry.stored or geometry.is_resident(name)):
        return 0, end
    first = writers[0] if writers else 0
    last = end if name in geometry.stored else max(readers, default=first)
    return first, max(last, max(writers, default=0))


def _weights(geometry: Geometry, machine: Machine, sb_bytes: int) -> tuple[dict[int, WeightPlan], int]:
    layers = [layer for layer in geometry.layers if uses_weight_buffer(layer)]
    fixed = [layer for layer in layers if layer.weights is not None]
    sizes = {layer.index: packed_bytes(layer, machine) for layer in fixed}
    passes = math.prod(geometry.counts)
    streamed = {layer.index for layer in layers if layer.weights is None}
    share = sb_bytes
    if sum(map(aligned, sizes.values())) > sb_bytes or streamed:
        share = sb_bytes // 2
        room = sb_bytes - 2 * (share // 2)
        for layer in sorted(fixed, key=lambda layer: -sizes[layer.index]):
            if passes > 1 and aligned(sizes[layer.index]) <= room:
                room -= aligned(sizes[layer.index])
            else:
                streamed.add(layer.index)
    plans: dict[int, WeightPlan] = {}
    top = 0
    slot_bytes = aligned_down(share // 2)
    for layer in layers:
        if layer.index not in streamed:
            loads = gather_loads(cut_weights(layer, machine, sb_bytes), _LOAD_BYTES)
            plans[layer.index] = WeightPlan(True, loads, (top,))
            top += aligned(sizes[layer.index])
    try:
        slots = {layer.index: _streamed(layer, machine, slot_bytes) for layer in layers if layer.index in streamed}
    except DoesNotFit:  # use all of SB, at the cost that neighbouring chains cannot fetch ahead
        slot_bytes = aligned_down((sb_bytes - top) // 2)
        slots = {layer.index: _streamed(layer, machine, slot_bytes) for layer in layers if layer.index in streamed}
    together = {layer.index: _together(layer, slots[layer.index]) for layer in layers if layer.index in streamed}
    most = {index: max(load.bytes for load in parts) * together[index] for index, parts in slots.items()}
    largest = aligned(max(most.values(), default=0))
    number = 2
    if largest and all(layer.weights is None for layer in layers if layer.index in streamed):
        number = max(2, min(_FACTOR_SLOTS, share // largest))
    addresses = tuple(top + place * largest for place in range(number))
    plans.update({index: WeightPlan(False, parts, addresses, together[index]) for index, parts in slots.items()})
    return plans, top + number * largest


def _together(layer: HardwareLayer, loads: Sequence[WeightLoad]) -> int:
    """Return how many second factors of a product are fetched at once, to make a load worth its latency."""
    if layer.weights is not None or len(loads) > 1 or loads[0].blocks[0].vector_bytes:
        return 1
    axes = factor_axes(layer.inputs[1])
    return max(1, min(layer.inputs[1].axes[axes[-1]].size, _FACTOR_BYTES // loads[0].bytes)) if axes else 1


def _streamed(layer: HardwareLayer, machine: Machine, slot_bytes: int) -> tuple[WeightLoad, ...]:
    """Return loads that fit a slot; the second factor of a product is loaded block by block."""
    return gather_loads(cut_weights(layer, machine, slot_bytes), slot_bytes if layer.weights else 0)


def packed_bytes(layer: HardwareLayer, machine: Machine) -> int:
    """Return the size of a layer's weights in one block per group, with scales."""
    blocks = cut_weights(layer, machine, 1 << 40)
    return blocks[-1].offset + blocks[-1].bytes
