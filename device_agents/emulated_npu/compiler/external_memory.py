"""What lies off chip: features by lifetime in the last-level cache or DDR, weights and constants in DDR."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from device_agents.emulated_npu.command import Space
from device_agents.emulated_npu.compiler.allocation import Lifetime, aligned, allocate
from device_agents.emulated_npu.compiler.chain import ChainPlan, depthwise_bytes, element_type
from device_agents.emulated_npu.compiler.layers import Constant, Graph, Layer, Value, whole_value, written_part
from device_agents.emulated_npu.compiler.lowering import Externals, factor_scale_key, weight_key
from device_agents.emulated_npu.compiler.placement import Buffer, buffer_bytes, dense_strides
from device_agents.emulated_npu.compiler.regions import multiplier
from device_agents.emulated_npu.compiler.weights import WeightBlock, uses_weight_buffer
from device_agents.emulated_npu.errors import DoesNotFit
from device_agents.emulated_npu.isa.program import Port
from device_agents.emulated_npu.machine import Machine


@dataclass(frozen=True)
class Packed:
    """Weights of a layer at an address in DDR."""

    address: int
    bytes: int
    layer: Layer
    blocks: tuple[WeightBlock, ...]


@dataclass(frozen=True)
class Plain:
    """A constant at an address in DDR, densely in `order`."""

    address: int
    constant: Constant
    order: tuple[int, ...]
    shape: tuple[int, ...]


def choose_spaces(graph: Graph, machine: Machine) -> dict[str, Space]:
    """Activations go to the last-level cache where a few of them fit in it; the rest stays in DDR."""
    spaces = {}
    for name, value in graph.values.items():
        size = buffer_bytes(value.shape, element_type(value, machine))
        cached = value.kind == "activation" and not value.is_output and size <= machine.llc.bytes // 4
        spaces[name] = Space.LLC if cached else Space.DDR
    return spaces


def _buffer(value: Value, machine: Machine, space: Space, address: int) -> Buffer:
    dtype = element_type(value, machine)
    strides = dense_strides(value.shape, value.order, dtype.bytes)
    return Buffer(space, address, dtype, (0,) * len(value.shape), strides)


def placeholders(graph: Graph, machine: Machine, spaces: Mapping[str, Space]) -> Externals:
    """Everything at address 0: predictions do not depend on addresses."""
    values = {name: _buffer(value, machine, spaces[name], 0) for name, value in graph.values.items()}
    values.update({written_part(name): values[name] for name in graph.values})
    return Externals(values, defaultdict(int), defaultdict(int))


class ExternalMemory:
    """Gives everything off chip an address: activations by lifetime, weights and constants one after the other."""

    def __init__(self, graph: Graph, machine: Machine, spaces: dict[str, Space], plans: list[ChainPlan]) -> None:
        self._graph, self._machine, self._spaces, self._plans = graph, machine, spaces, plans
        self.packed: list[Packed] = []
        self.plain: list[Plain] = []
        self.ddr_bytes = 0
        self.llc_bytes = 0

    def run(self) -> Externals:
        """The addresses; raises DoesNotFit where DDR is too small."""
        lives = self._lives()
        cached, self.llc_bytes = self._cache(lives)
        addresses, self.ddr_bytes = allocate(life for life in lives if life.name not in cached)
        values = {}
        for name, value in self._graph.values.items():
            if name in cached:
                values[name] = _buffer(value, self._machine, Space.LLC, cached[name])
            elif name in addresses:
                values[name] = _buffer(value, self._machine, Space.DDR, addresses[name])
        for name, value in self._graph.values.items():
            if value.constant is not None:
                self.plain.append(Plain(self._take(value), value.constant, value.order, value.shape))
                values[name] = _buffer(value, self._machine, Space.DDR, self.plain[-1].address)
        values.update({written_part(name): values[name] for name in tuple(values)})
        weights, constants = self._weights()
        if self.ddr_bytes > self._machine.ddr.bytes:
            what = f"The network needs {self.ddr_bytes} bytes of DDR"
            raise DoesNotFit(what, f"there are {self._machine.ddr.bytes}", "Raise bytes of [ddr] of the machine")
        return Externals(values, weights, constants)

    def _take(self, value: Value) -> int:
        return self._reserve(buffer_bytes(value.shape, element_type(value, self._machine)))

    def _reserve(self, size: int) -> int:
        address = self.ddr_bytes
        self.ddr_bytes += aligned(size)
        return address

    def _lives(self) -> list[Lifetime]:
        """From the first chain that writes a value to the last that reads it, for values that leave their chain."""
        first: dict[str, int] = dict.fromkeys(self._graph.inputs, 0)
        last: dict[str, int] = dict.fromkeys(self._graph.inputs, 0)
        for place, plan in enumerate(self._plans):
            for name in map(whole_value, plan.geometry.stored):
                first.setdefault(name, place)
                last[name] = place
            for name in plan.geometry.loaded:
                last[name] = place
        lives = []
        for name in first:
            value = self._graph.values[name]
            end = len(self._plans) if value.is_output else last[name]
            # What the host fills keeps its place: a program may be run again and again.
            start, end = (0, len(self._plans)) if value.kind == "input" else (first[name], end)
            lives.append(Lifetime(name, buffer_bytes(value.shape, element_type(value, self._machine)), start, end))
        return lives

    def _cache(self, lives: list[Lifetime]) -> tuple[dict[str, int], int]:
        """Activations that fit into the last-level cache together; the largest go to DDR until the others fit."""
        wanted = sorted((life for life in lives if self._spaces[life.name] is Space.LLC), key=lambda life: life.bytes)
        while wanted:
            addresses, top = allocate(wanted)
            if top <= self._machine.llc.bytes:
                return dict(addresses), top
            wanted.pop()
        return {}, 0

    def _weights(self) -> tuple[dict[str, int], dict[str, int]]:
        weights: dict[str, int] = {}
        constants: dict[str, int] = {}
        for plan in self._plans:
            for layer in plan.layers:
                if uses_weight_buffer(layer) and layer.weights is not None:
                    loads = plan.weights[layer.index].loads
                    blocks = tuple(block for load in loads for block in load.blocks)
                    size = blocks[-1].offset + blocks[-1].bytes
                    weights[weight_key(layer)] = self._reserve(size)
                    self.packed.append(Packed(weights[weight_key(layer)], size, layer, blocks))
                elif uses_weight_buffer(layer) and layer.scale_shift is not None:
                    address = constants[factor_scale_key(layer)] = self._reserve(math.prod(layer.scale_shift.shape) * 4)
                    self.plain.append(Plain(address, layer.scale_shift, (0, 1), layer.scale_shift.shape))
                for name, size in depthwise_bytes(layer, self._machine).items():
                    constants[name] = self._reserve(size)
                    self.plain.append(_depthwise_constant(constants[name], layer, name))
        return weights, constants


def _depthwise_constant(address: int, layer: Layer, name: str) -> Plain:
    """Weights (M, 1, kernel...) as (kd, kh, kw, C, m); scale and shift (2, M) as (2, C, m), which lies the same."""
    channels = layer.inputs[0].axes[1].size
    ratio = multiplier(layer)
    if layer.scale_shift is not None and name.endswith("scale_shift"):
        return Plain(address, layer.scale_shift, (0, 1), layer.scale_shift.shape)
    return Plain(address, layer.fixed_weights, (2, 3, 4, 0, 1), (channels, ratio, *layer.settings.kernel))


def port_of(name: str, graph: Graph, externals: Externals) -> Port:
    """Where the host finds an input or output."""
    value = graph.values[name]
    buffer = externals.values[name]
    return Port(name, buffer.address, buffer.dtype, value.shape, buffer.strides)
