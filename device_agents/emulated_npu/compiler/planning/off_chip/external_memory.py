"""Memory off chip: features by lifetime in the last-level cache or DDR, weights and constants in DDR."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, LazyConstant, Value
from device_agents.emulated_npu.compiler.graph.regions import multiplier, size_of
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime, allocate
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, depthwise_bytes, element_type
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import WeightBlock, uses_weight_buffer
from device_agents.emulated_npu.compiler.planning.chains.externals import (
    Destination,
    Externals,
    factor_scale_key,
    weight_key,
)
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, buffer_bytes, dense_strides
from device_agents.emulated_npu.compiler.planning.off_chip.cache_places import place_by_traffic
from device_agents.emulated_npu.compiler.planning.off_chip.trailing import Trails, trails
from device_agents.emulated_npu.compiler.splitting.division import GroupGraph
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.program import Port
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Space


@dataclass(frozen=True)
class PackedWeights:
    """Weights of a layer at an address in DDR."""

    address: int
    bytes: int
    layer: HardwareLayer
    blocks: tuple[WeightBlock, ...]


@dataclass(frozen=True)
class PlainConstant:
    """A constant at an address in DDR, densely in `order`."""

    address: int
    constant: LazyConstant
    order: tuple[int, ...]
    shape: tuple[int, ...]


_ONCE: Mapping[str, int] = MappingProxyType({})
_NOWHERE: Mapping[str, tuple[Destination, ...]] = MappingProxyType({})


def choose_spaces(graph: Graph, machine: Machine, slots: Mapping[str, int] = _ONCE) -> dict[str, Space]:
    """Return the memory that predictions assume for every value: the last-level cache if it fits there, else DDR.

    Where values lie in the end is decided when the chains are known. `slots` is the number of inputs for which a value
    that other groups send has room.
    """
    spaces = {}
    for name, value in graph.values.items():
        size = slots.get(name, 1) * buffer_bytes(value.shape, element_type(value, machine))
        fits = is_cacheable(value, graph) and size <= machine.llc.bytes
        spaces[name] = Space.LLC if fits else Space.DDR
    return spaces


def placed(value: Value, machine: Machine, space: Space, address: int) -> Buffer:
    """Return the buffer of a whole value at an address of a memory."""
    dtype = element_type(value, machine)
    strides = dense_strides(value.shape, value.order, dtype.bytes)
    return Buffer(space, address, dtype, (0,) * len(value.shape), strides)


def placeholders(
    graph: Graph, machine: Machine, spaces: Mapping[str, Space], sends: Mapping[str, tuple[Destination, ...]] = _NOWHERE
) -> Externals:
    """Return everything at address 0, because predictions do not depend on addresses; `spaces` lists the values."""
    values = {name: placed(value, machine, spaces[name], 0) for name, value in graph.values.items() if name in spaces}
    return Externals(values, defaultdict(int), defaultdict(int), sends)


@dataclass(frozen=True)
class OccupiedMemory:
    """Memory off chip that is already in use, from address 0 on, and the values that have their place there."""

    ddr_bytes: int
    llc_bytes: int
    values: Mapping[str, Buffer]


FREE = OccupiedMemory(0, 0, MappingProxyType({}))


class ExternalMemory:
    """Assigns addresses off chip to all values of a core group: activations by lifetime, then weights and constants.

    `cores` lists the chains of each core. Values that several cores use, inputs and received values keep their address
    while the program runs, except those in `lifetimes`, which gives the first and the last phase that needs them.
    """

    def __init__(
        self,
        group: GroupGraph,
        spaces: Mapping[str, Space],
        cores: Sequence[Sequence[ChainPlan]],
        lifetimes: Mapping[str, tuple[int, int]],
        occupied: OccupiedMemory = FREE,
    ) -> None:
        self._group, self._graph, self._machine = group, group.graph, group.machine
        self._spaces, self._cores, self._shared, self._occupied = spaces, cores, lifetimes, occupied
        self.packed: list[PackedWeights] = []
        self.plain: list[PlainConstant] = []
        self.ddr_bytes = 0
        self.llc_bytes = 0

    def run(self) -> tuple[Externals, ...]:
        """Return the addresses for each core; raises DoesNotFit if DDR is too small."""
        lives = self._lives()
        cached, self.llc_bytes = self._cache(lives)
        rest = [[life for life in own if life.name not in cached] for own in lives]
        addresses, self.ddr_bytes = _side_by_side(rest, self._occupied.ddr_bytes)
        values = dict(self._occupied.values)
        for name, value in self._graph.values.items():
            if name in cached:
                values[name] = placed(value, self._machine, Space.LLC, cached[name])
            elif name in addresses:
                values[name] = placed(value, self._machine, Space.DDR, addresses[name])
        for name, value in self._graph.values.items():
            if value.constant is not None:
                address = self._reserve(self._bytes(value))
                self.plain.append(PlainConstant(address, value.constant, value.order, value.shape))
                values[name] = placed(value, self._machine, Space.DDR, address)
        known: dict[object, int] = {}
        found = tuple(Externals(values, *self._weights(plans, known)) for plans in self._cores)
        if self.ddr_bytes > self._machine.ddr.bytes:
            what = f"{self._group.name} needs {self.ddr_bytes} bytes of DDR"
            raise DoesNotFit(what, f"there are {self._machine.ddr.bytes}", "Raise bytes of [ddr] of the machine")
        return found

    def _bytes(self, value: Value) -> int:
        return self._group.slots.get(value.name, 1) * buffer_bytes(value.shape, element_type(value, self._machine))

    def _reserve(self, size: int) -> int:
        address = self.ddr_bytes
        self.ddr_bytes += aligned(size)
        return address

    def _lives(self) -> list[list[Lifetime]]:
        """Return lifetimes: for each core the values that only this core uses, in its chains; then the shared values.

        Values that live throughout are in the list of the first core. Values that are only sent away need no place.
        """
        values = self._graph.values
        spans = [self._spans(plans) for plans in self._cores]
        end = max(map(len, self._cores))
        cores = Counter(name for span in spans for name in span)
        kept = {whole_value(name) for plans in self._cores for plan in plans for name in plan.geometry.loaded}
        throughout = [name for name, value in values.items() if value.kind in ("input", "received", "setup")]
        throughout += [name for name, count in cores.items() if count > 1 and values[name].kind == "activation"]
        kept.update(name for name in throughout if name in self._spaces)
        lives: list[list[Lifetime]] = [[] for _ in spans]
        for name in throughout:
            if name in kept and name not in self._shared:
                lives[0].append(Lifetime(name, self._bytes(values[name]), 0, end))
        for span, own in zip(spans, lives, strict=True):
            for name, (first, last) in span.items():
                value = values[name]
                alone = cores[name] == 1 and value.kind == "activation" and name not in self._shared
                if alone and (value.is_output or name in kept):
                    own.append(Lifetime(name, self._bytes(value), first, end if value.is_output else last))
        shared = [Lifetime(name, self._bytes(values[name]), *span) for name, span in self._shared.items()]
        return [*lives, shared]

    def _spans(self, plans: Sequence[ChainPlan]) -> dict[str, tuple[int, int]]:
        """Return the first and the last chain that stores or loads each value, except values that have a place."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for place, plan in enumerate(plans):
            for name in map(whole_value, (*plan.geometry.stored, *plan.geometry.loaded)):
                first.setdefault(name, place)
                last[name] = place
        return {name: (first[name], last[name]) for name in first if name not in self._occupied.values}

    def _cache(self, lives: Sequence[Sequence[Lifetime]]) -> tuple[Mapping[str, int], int]:
        """Return the addresses of activations in the cache, and their end.

        The chains are known here, so that values which were expected in DDR may find room, and others may find none.
        """
        own = [life for each in lives for life in each if is_cacheable(self._graph.values[life.name], self._graph)]
        room_bytes = self._machine.llc.bytes - self._occupied.llc_bytes
        over: Trails = {}
        if len(self._cores) == 1:
            over = trails(self._cores[0], own, self._graph.values, self._machine, room_bytes)
        parts = {life.name: place for place, each in enumerate(lives) for life in each}
        moved = self._moved_bytes()
        addresses, used_bytes = place_by_traffic(own, moved, parts, over, room_bytes, self._graph.cached)
        base = self._occupied.llc_bytes
        return {name: base + address for name, address in addresses.items()}, base + used_bytes

    def _moved_bytes(self) -> Counter[str]:
        """Return the bytes of each value that all chains load and store."""
        found: Counter[str] = Counter()
        for plan in (plan for plans in self._cores for plan in plans):
            geometry = plan.geometry
            for name in (*geometry.stored, *geometry.loaded):
                value = self._graph.values[whole_value(name)]
                # A value without a buffer in NB is a table, or a factor that may be fetched in every pass.
                times = 1 if name in plan.buffers else plan.passes
                elements = math.prod(map(size_of, geometry.regions[name]))
                found[value.name] += times * elements * element_type(value, self._machine).bytes
        return found

    def _weights(self, plans: Sequence[ChainPlan], known: dict[object, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the addresses of a core's weights and constants; `known` has the weights that already have one."""
        weights: dict[str, int] = {}
        constants: dict[str, int] = {}
        for plan in plans:
            for layer in plan.layers:
                if uses_weight_buffer(layer) and layer.weights is not None:
                    loads = plan.weights[layer.index].loads
                    blocks = tuple(block for load in loads for block in load.blocks)
                    # Slices of a layer by rows have the same weights, and so have the steps of a recurrent network.
                    same = (layer.weights, layer.scale_shift, layer.groups, layer.matrix, blocks)
                    if same not in known:
                        size = blocks[-1].offset + blocks[-1].bytes
                        known[same] = self._reserve(size)
                        self.packed.append(PackedWeights(known[same], size, layer, blocks))
                    weights[weight_key(layer)] = known[same]
                elif uses_weight_buffer(layer) and layer.scale_shift is not None:
                    address = constants[factor_scale_key(layer)] = self._reserve(math.prod(layer.scale_shift.shape) * 4)
                    self.plain.append(PlainConstant(address, layer.scale_shift, (0, 1), layer.scale_shift.shape))
                for name, size in depthwise_bytes(layer, self._machine).items():
                    constants[name] = self._reserve(size)
                    self.plain.append(_depthwise_constant(constants[name], layer, name))
        return weights, constants


def is_cacheable(value: Value, graph: Graph) -> bool:
    """Return whether a value may lie in the last-level cache: it is computed, and the host does not read it."""
    return (value.kind in ("activation", "received") and not value.is_output) or value.name in graph.cached


def _side_by_side(lives: Sequence[Sequence[Lifetime]], top: int) -> tuple[Mapping[str, int], int]:
    """Return addresses from `top` on, those of each core after those of the cores before it, and their end."""
    found: dict[str, int] = {}
    for own in lives:
        addresses, size = allocate(sorted(own, key=attrgetter("name")))
        found.update((name, top + address) for name, address in addresses.items())
        top += size
    return found, top


def _depthwise_constant(address: int, layer: HardwareLayer, name: str) -> PlainConstant:
    """Return weights (M, 1, kernel...) as (kd, kh, kw, C, m), or scale and shift (2, M), which lie as (2, C, m)."""
    channels = layer.inputs[0].axes[1].size
    ratio = multiplier(layer)
    if layer.scale_shift is not None and name.endswith("scale_shift"):
        return PlainConstant(address, layer.scale_shift, (0, 1), layer.scale_shift.shape)
    return PlainConstant(address, layer.fixed_weights, (2, 3, 4, 0, 1), (channels, ratio, *layer.settings.kernel))


def port_of(name: str, graph: Graph, externals: Externals) -> Port:
    """Return where the host accesses an input or output."""
    value = graph.values[name]
    buffer = externals.values[name]
    return Port(name, buffer.address, buffer.dtype, value.shape, buffer.strides)
