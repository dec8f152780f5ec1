"""The plan of one chain: its tiles, buffers and weights.

A chain plan is the execution tree of its layers: loops over tiles around the layers, and loops over blocks of weights
inside each layer. Lowering writes it out as commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, Value
from device_agents.emulated_npu.compiler.graph.regions import size_of
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime, allocate
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import cut_chain
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import multiplies_computed
from device_agents.emulated_npu.compiler.planning.chains.layer_commands import depthwise_constants
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain, Cut, Geometry, count_tiles
from device_agents.emulated_npu.compiler.planning.chains.weight_plans import WeightPlan, plan_weights
from device_agents.emulated_npu.compiler.planning.memory_places import stored_type
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.matrix_cost import runs_on_mfu
from device_agents.emulated_npu.unit_commands import DataType, Function

MAX_PASSES = 1 << 16
_IN_PLACE = frozenset({Function.SOFTMAX, Function.MAP, Function.BINARY, Function.WHERE})
"""The functions that may write over an operand that nothing else reads."""


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes that a chain may use of each memory.

    The halo buffer is carved out of `nb_bytes`: as much as the chain needs, and at least `reserved_bytes`.
    """

    nb_bytes: int
    sb_bytes: int
    halo_bytes: int
    reserved_bytes: int = 0

    @property
    def is_reserved(self) -> bool:
        """Whether the size of the halo buffer is fixed."""
        return self.reserved_bytes == self.halo_bytes


@dataclass
class HaloRange:
    """The sizes of the reserved halo buffer, from `low` to `high`, with which all drafts of a search fit, or do not."""

    low: int = 0
    high: int = 1 << 62

    def __contains__(self, halo_bytes: int) -> bool:
        return self.low <= halo_bytes <= self.high

    def note(self, draft: ChainDraft, budget: MemoryBudget) -> None:
        """Leave out the sizes with which a draft does not fit as in this budget, or fits."""
        most = budget.nb_bytes - draft.nb_bytes
        if draft.halo_bytes > budget.halo_bytes:
            self.high = min(self.high, draft.halo_bytes - 1)
            return
        self.low = max(self.low, draft.halo_bytes)
        if max(draft.halo_bytes, budget.reserved_bytes) > most:
            self.low = max(self.low, most + 1)
        else:
            self.high = min(self.high, most)


@dataclass(frozen=True)
class BufferCounts:
    """Buffers that passes use in turn: for what they load and store, and for what passes between MFU and VFU."""

    across: int
    between: int


@dataclass(frozen=True)
class HaloPlace:
    """The halo of a value across one cut, and its place in the auxiliary buffer."""

    address: int
    extents: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class ChainPlan:
    """A chain with everything decided.

    `buffers` has the addresses in NB by value: two where a pass loads its part while the pass before it computes, and
    for values between MFU and VFU where the units work on different passes (`overlaps`).
    """

    geometry: Geometry
    extents: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int]
    weights: Mapping[int, WeightPlan]
    halo_places: Mapping[tuple[str, int], HaloPlace]
    nb_bytes: int
    sb_bytes: int
    halo_bytes: int
    overlaps: bool

    @property
    def layers(self) -> tuple[HardwareLayer, ...]:
        """The layers in order."""
        return self.geometry.layers

    @property
    def passes(self) -> int:
        """The number of passes."""
        return math.prod(self.geometry.counts)

    @property
    def keeps_weights(self) -> bool:
        """Whether all weights stay in SB, so that the plan is the same for every SB that holds them."""
        constant = {layer.index for layer in self.layers if layer.weights is not None}
        return all(plan.resident and index in constant for index, plan in self.weights.items())

    @property
    def kept_weights(self) -> tuple[object, ...]:
        """How weights reach SB: which stay there, in how many loads, and where they lie."""
        plans = self.weights.items()
        return tuple((layer, one.resident, len(one.loads), one.addresses, one.together) for layer, one in plans)

    @property
    def loads_ahead(self) -> bool:
        """Whether a pass loads its part of every input while the pass before it computes."""
        changing = (
            name for name in self.geometry.loaded if name in self.buffers and not self.geometry.is_resident(name)
        )
        return self.passes == 1 or all(len(self.buffers[name]) > 1 for name in changing)


@dataclass(frozen=True)
class ChainDraft:
    """A chain with everything decided but its weights, before it is known whether there is room for it."""

    geometry: Geometry
    extents: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int]
    halo_places: Mapping[tuple[str, int], HaloPlace]
    nb_bytes: int
    halo_bytes: int
    overlaps: bool

    def check(self, budget: MemoryBudget) -> None:
        """Raise DoesNotFit, with demand and limit, if halo or features need more than the budget."""
        layers = self.geometry.layers
        _demand(layers, "halo buffer", self.halo_bytes, budget.halo_bytes, "halo_bytes")
        halo_bytes = max(self.halo_bytes, budget.reserved_bytes)
        beside = f" beside {halo_bytes} of halo buffer" if halo_bytes else ""
        _demand(layers, "NB", self.nb_bytes, budget.nb_bytes - halo_bytes, "nb_bytes", beside)

    def with_weights(self, machine: Machine, sb_bytes: int) -> ChainPlan:
        """Decide how weights reach SB; raises DoesNotFit with demand and limit."""
        weights, needed = plan_weights(self.geometry, machine, sb_bytes)
        _demand(self.geometry.layers, "SB", needed, sb_bytes, "sb_bytes")
        return ChainPlan(
            self.geometry,
            self.extents,
            self.buffers,
            self.constants,
            weights,
            self.halo_places,
            self.nb_bytes,
            needed,
            self.halo_bytes,
            self.overlaps,
        )


def draft_chain(
    chain: Chain, values: Mapping[str, Value], cuts: Sequence[Cut], machine: Machine, buffer_counts: BufferCounts
) -> ChainDraft:
    """Decide buffers for these cuts; raises NotTileable, or DoesNotFit for too many passes.

    With one buffer for what passes load and store, they compute larger tiles, and a pass loads after the one before it
    has computed.
    """
    layers = chain.layers
    passes = count_tiles(layers[-1], cuts)
    if passes > MAX_PASSES:
        raise countless(layers[-1], passes)
    geometry = cut_chain(chain, cuts)
    extents = {name: _extents(geometry, name) for name in geometry.regions}
    halo_places, halo_bytes = _halo_places(geometry, values, machine)
    buffers, constants, nb_bytes = _buffers(chain.lives, geometry, values, extents, machine, buffer_counts)
    overlaps = passes > 1 and machine.vfu_queue_depth > 0
    if overlaps:
        between = (name for name in buffers if _is_between_units(geometry, name, machine))
        overlaps = all(len(buffers[name]) > 1 for name in between)
    return ChainDraft(geometry, extents, buffers, constants, halo_places, nb_bytes, halo_bytes, overlaps)


def _is_between_units(geometry: Geometry, name: str, machine: Machine) -> bool:
    """Return whether MFU and VFU both write or read a value of a pass."""
    units = {
        runs_on_mfu(machine.mfu, layer.function)
        for layer in geometry.layers
        if name in (layer.output.value, *(view.value for view in layer.reads))
    }
    return len(units) > 1 and not geometry.is_resident(name)


def element_type(value: Value | LazyConstant, machine: Machine) -> DataType:
    """Return the type of a value in the machine's memories: the machine's data type replaces float32."""
    return stored_type(value.dtype, machine)


def buffered(geometry: Geometry) -> frozenset[str]:
    """Return the values that lie in NB; tables of gathers and second factors of products do not."""
    reads = ((layer, place, view) for layer in geometry.layers for place, view in enumerate(layer.reads))
    inside = {view.value for layer, place, view in reads if not reads_outside(layer, place)}
    return frozenset(inside | geometry.regions.keys() - set(geometry.loaded))


def reads_outside(layer: HardwareLayer, place: int) -> bool:
    """Return whether a layer reads this operand from DDR or LLC, or through SB, instead of NB."""
    if layer.function is Function.GATHER:
        return place == 0
    return layer.matrix and layer.weights is None and place == 1


def countless(layer: HardwareLayer, passes: int) -> DoesNotFit:
    """Return the error for a chain up to this layer in more than MAX_PASSES passes."""
    step = "Choose larger tiles, or raise nb_bytes of the machine"
    return DoesNotFit(f"{layer.name} would run in {passes} passes", f"at most {MAX_PASSES} are compiled", step)


def _demand(
    layers: Sequence[HardwareLayer], memory: str, needed: int, limit: int, parameter: str, beside: str = ""
) -> None:
    if needed > limit:
        names = layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}"
        what, why = f"{names} needs {needed} bytes of {memory}", f"there are {max(0, limit)}{beside}"
        raise DoesNotFit(what, why, f"Raise {parameter} of the machine", memory, needed)


def _extents(geometry: Geometry, name: str) -> tuple[int, ...]:
    extents = [size_of(interval) for interval in geometry.regions[name]]
    for track in geometry.tracks[name]:
        if track is not None:
            extents[track.axis] = track.most[1]
    return tuple(extents)


def _halo_places(
    geometry: Geometry, values: Mapping[str, Value], machine: Machine
) -> tuple[dict[tuple[str, int], HaloPlace], int]:
    halo_places: dict[tuple[str, int], HaloPlace] = {}
    top, inside = 0, buffered(geometry)
    for name, tracks in geometry.tracks.items():
        if name not in inside:
            continue
        for place, track in enumerate(tracks):
            halo = 0 if track is None else track.most[2]
            if track is None or halo == 0:
                continue
            extents = [size_of(interval) for interval in geometry.regions[name]]
            for other, second in enumerate(tracks):
                if second is not None:
                    extents[second.axis] = second.most[1] if other < place else size_of(second.span)
            extents[track.axis] = halo
            size = math.prod(extents) * element_type(values[name], machine).bytes
            halo_places[name, place] = HaloPlace(top, tuple(extents), size)
            top += aligned(size)
    return halo_places, top


def _buffers(
    lives: Mapping[str, tuple[int, int]],
    geometry: Geometry,
    values: Mapping[str, Value],
    extents: Mapping[str, tuple[int, ...]],
    machine: Machine,
    buffer_counts: BufferCounts,
) -> tuple[dict[str, tuple[int, ...]], dict[str, int], int]:
    """Return the addresses in NB of values (one for each turn) and of constants of depthwise layers, and the end."""
    passes = math.prod(geometry.counts)
    end = len(geometry.layers)
    inside = buffered(geometry)
    lives = {name: life for name, life in lives.items() if name in inside}
    if passes > 1:
        lasting = (name for name in lives if name in geometry.loaded or name in geometry.stored)
        lives.update(dict.fromkeys((*lasting, *filter(geometry.is_resident, lives)), (0, end)))
    homes = _overwritten(geometry, values, extents, lives)
    between: set[str] = set()
    if buffer_counts.between > 1:
        between = {homes.get(name, name) for name in lives if _is_between_units(geometry, name, machine)}
    items: list[Lifetime] = []
    slots: dict[str, int] = {}
    for name, (first, last) in lives.items():
        size = math.prod(extents[name]) * element_type(values[name], machine).bytes
        slots[name] = (
            buffer_counts.across if passes > 1 and (first, last) == (0, end) and not geometry.is_resident(name) else 1
        )
        if passes > 1 and buffer_counts.between > slots[name] and homes.get(name, name) in between:
            slots[name] = buffer_counts.between
        if name not in homes:
            last = max([last, *(lives[other][1] for other, home in homes.items() if home == name)])
            if name in between and buffer_counts.between > 1:
                first, last = 0, end
            items.extend(Lifetime(f"{name}#{slot}", size, first, last) for slot in range(slots[name]))
    for layer in geometry.layers:
        items.extend(Lifetime(key, size, 0, end) for key, size in depthwise_bytes(layer, machine).items())
    addresses, top = allocate(items)
    buffers = {
        name: tuple(addresses[f"{homes.get(name, name)}#{slot}"] for slot in range(count))
        for name, count in slots.items()
    }
    constants = {name: address for name, address in addresses.items() if "#" not in name}
    return buffers, constants, top


def _overwritten(
    geometry: Geometry,
    values: Mapping[str, Value],
    extents: Mapping[str, tuple[int, ...]],
    lives: Mapping[str, tuple[int, int]],
) -> dict[str, str]:
    """Return the values that lie where an earlier one was, which they replace element by element.

    Only chains in several passes with a product of two computed tensors do so: their scores decide how many rows a pass
    has room for. In one pass, too little would be left for neighbouring chains.
    """
    homes: dict[str, str] = {}
    if math.prod(geometry.counts) == 1 or not any(map(multiplies_computed, geometry.layers)):
        return homes
    for place, layer in enumerate(geometry.layers):
        output = layer.output.value
        if layer.function not in _IN_PLACE or lives[output][0] != place or _has_halo(geometry, output):
            continue
        for view in layer.inputs:
            name = view.value
            alike = replace(view, value=output) == layer.output and values[name].order == values[output].order
            same = alike and (values[name].shape, values[name].dtype) == (values[output].shape, values[output].dtype)
            dies = name in lives and lives[name][1] == place and name not in geometry.loaded
            once = all(other == view for other in layer.reads if other.value == name)
            if (
                same
                and dies
                and once
                and extents[name] == extents[output]
                and geometry.tracks[name] == geometry.tracks[output]
            ):
                homes[output] = homes.get(name, name)
                break
    return homes


def _has_halo(geometry: Geometry, name: str) -> bool:
    return any(track.most[2] for track in geometry.tracks[name] if track is not None)


def depthwise_bytes(layer: HardwareLayer, machine: Machine) -> dict[str, int]:
    """Return the bytes in NB of weights and scales of a depthwise layer; scales are float32 on every machine."""
    if layer.function is not Function.DEPTHWISE or layer.weights is None:
        return {}
    weights, scales = depthwise_constants(layer)
    sizes = {weights: math.prod(layer.weights.shape) * element_type(layer.weights, machine).bytes}
    if layer.scale_shift is not None:
        sizes[scales] = math.prod(layer.scale_shift.shape) * DataType.FLOAT32.bytes
    return sizes
