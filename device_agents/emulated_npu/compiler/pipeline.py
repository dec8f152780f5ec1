"""The compiler as a whole: ONNX in, a program and the picture of its memory out (S2.2, S2.5)."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from device_agents.emulated_npu.command import Command, DataType, Space
from device_agents.emulated_npu.compiler.allocation import Lifetime, aligned, allocate
from device_agents.emulated_npu.compiler.chain import ChainPlan, Room, depthwise_bytes, element_type
from device_agents.emulated_npu.compiler.emit import emit
from device_agents.emulated_npu.compiler.importer import import_model
from device_agents.emulated_npu.compiler.layers import (
    Constant,
    Graph,
    Layer,
    Value,
    whole_value,
    with_parts,
    written_part,
)
from device_agents.emulated_npu.compiler.lowering import ChainWriter, Externals, factor_scale_key, weight_key
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.placement import Buffer, buffer_bytes, dense_strides
from device_agents.emulated_npu.compiler.plan import Decision, Outline, Planner
from device_agents.emulated_npu.compiler.regions import multiplier
from device_agents.emulated_npu.compiler.reorder import hoist_loads
from device_agents.emulated_npu.compiler.synchronise import fence_between_layers, synchronise
from device_agents.emulated_npu.compiler.weights import WeightBlock, pack_weights, uses_weight_buffer
from device_agents.emulated_npu.errors import DoesNotFit, EmulatorError
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.program import Footprint, Port, Program

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_HOIST_WINDOW = 64
_HALO_LOSS = 0.01


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


@dataclass(frozen=True)
class Compiled:
    """A compiled network: the program, the graph it came from, what was decided, and where its constants go."""

    program: Program
    graph: Graph
    machine: Machine
    options: Options
    decisions: tuple[Decision, ...]
    packed: tuple[Packed, ...]
    plain: tuple[Plain, ...]

    @property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the hardware layers of each chain, in order."""
        found: dict[tuple[int, ...], None] = {}
        for plan in self.plans:
            found[tuple(layer.index for layer in plan.layers)] = None
        return tuple(found)

    @property
    def plans(self) -> tuple[ChainPlan, ...]:
        """The chains as they run."""
        return tuple(plan for decision in self.decisions for plan in decision.chains)

    def image(self, arrays: Mapping[str, Array]) -> Iterator[tuple[int, Array]]:
        """What the loader writes to DDR before the first run, from the initializers by name: (address, array).

        Raises EmulatorError for a machine whose data type has no values here.
        """
        import numpy as np

        if self.machine.data_type is not DataType.FLOAT32:
            what = f"{self.machine.name} computes in {self.machine.data_type.name.lower()}: it has timing but no values"
            raise EmulatorError(what, next_step="Run with a preset that computes in float32, such as edge")
        for packed in self.packed:
            weights = _evaluate(packed.layer.fixed_weights, arrays)
            scale = packed.layer.scale_shift
            vectors = None if scale is None else _evaluate(scale, arrays)
            content = pack_weights(packed.layer, packed.blocks, weights, vectors)
            yield packed.address, np.frombuffer(content, np.uint8)
        for plain in self.plain:
            array = _evaluate(plain.constant, arrays).reshape(plain.shape)
            yield plain.address, np.ascontiguousarray(array.transpose(plain.order))


def _evaluate(constant: Constant, arrays: Mapping[str, Array]) -> Array:
    result: Array = constant.compute(*(arrays[name] for name in constant.sources))
    return result


def compile_model(model: bytes, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compiles an ONNX model; raises UnsupportedOperator, DoesNotFit or another EmulatorError."""
    return compile_graph(import_model(model), machine, options)


def compile_graph(graph: Graph, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compiles a graph of hardware layers; raises DoesNotFit."""
    spaces = _spaces(graph, machine)
    decisions = _decide(graph, machine, options, _placeholder(graph, machine, spaces))
    plans = [plan for decision in decisions for plan in decision.chains]
    memory = _Placer(graph, machine, spaces, plans)
    externals = memory.run()
    commands = list(_lower(graph, machine, plans, externals))
    if options.reorder:
        commands = hoist_loads(commands, window=_HOIST_WINDOW)
    items = synchronise(commands)
    if options.fences:
        items = fence_between_layers(items)
    code, layer_of = emit(items)
    footprint = Footprint(
        memory.ddr_bytes,
        memory.llc_bytes,
        *_buffer_bytes(machine, plans),
    )
    program = Program(
        machine.name,
        code,
        tuple(layer.name for layer in graph.layers),
        layer_of,
        tuple(_port(name, graph, externals) for name in graph.inputs),
        tuple(_port(name, graph, externals) for name in graph.outputs),
        footprint,
    )
    return Compiled(program, graph, machine, options, decisions, tuple(memory.packed), tuple(memory.plain))


def _decide(graph: Graph, machine: Machine, options: Options, externals: Externals) -> tuple[Decision, ...]:
    """Plans for what the machine has; a buffer for features and weights is divided in the best way."""
    if machine.shared_buffer and options.fences:  # every layer may divide the buffer anew
        return Planner(graph, machine, options, externals, tuple(_shares(machine))).plan()
    rooms = tuple(_shares(machine)) if machine.shared_buffer else (_whole_room(machine),)
    if options.chains == "whole":
        return Planner(graph, machine, options, externals, rooms).plan()
    found: list[tuple[Outline, Planner]] = []
    problem: DoesNotFit | None = None
    for room in rooms:
        try:
            found.extend(_outlines(Planner(graph, machine, options, externals, (room,)), room))
        except DoesNotFit as error:
            problem = error
    if problem is not None and not found:
        raise problem
    outline, planner = min(found, key=lambda pair: pair[0].predicted_ps)
    return planner.decide_all(outline)


def _outlines(planner: Planner, room: Room) -> Iterator[tuple[Outline, Planner]]:
    """Outlines that fit; raises DoesNotFit where there is none.

    The halo buffer comes out of the room which other chains count on: where that costs more than a little, it is
    tried with a quarter of it and with none.
    """
    free = planner.outline()
    sizes = dict.fromkeys((free.halo_bytes, aligned(free.halo_bytes // 4), 0))
    for size in sizes:
        smaller = planner.within(replace(room, halo_bytes=size, reserved_bytes=size))
        same = smaller.outlined(free.ends)
        if same is not None:
            yield same, smaller
            if same.predicted_ps <= (1 + _HALO_LOSS) * free.predicted_ps:
                return
        with contextlib.suppress(DoesNotFit):
            yield smaller.outline(), smaller


def _whole_room(machine: Machine) -> Room:
    return Room(machine.nb_bytes, machine.sb_bytes, machine.halo_bytes)


def _shares(machine: Machine) -> Iterator[Room]:
    """Ways to divide the one buffer of a machine between features and weights, in quarters."""
    for quarters in range(1, 4):
        nb_bytes = machine.nb_bytes * quarters // 4
        yield Room(nb_bytes, machine.nb_bytes - nb_bytes, min(machine.halo_bytes, nb_bytes))


def _buffer_bytes(machine: Machine, plans: list[ChainPlan]) -> tuple[int, int, int]:
    """NB, SB and halo buffer as the program uses them: the upper chains reach to the end."""
    halo_bytes = max((plan.halo_bytes for plan in plans), default=0)
    if machine.shared_buffer or len(plans) < 2:
        return max((p.nb_bytes for p in plans), default=0), max((p.sb_bytes for p in plans), default=0), halo_bytes
    return machine.nb_bytes - halo_bytes, machine.sb_bytes, halo_bytes


def _spaces(graph: Graph, machine: Machine) -> dict[str, Space]:
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


def _placeholder(graph: Graph, machine: Machine, spaces: Mapping[str, Space]) -> Externals:
    """Everything at address 0: predictions do not depend on addresses."""
    values = {name: _buffer(value, machine, spaces[name], 0) for name, value in graph.values.items()}
    values.update({written_part(name): values[name] for name in graph.values})
    return Externals(values, defaultdict(int), defaultdict(int))


class _Placer:
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


def _lower(graph: Graph, machine: Machine, plans: list[ChainPlan], externals: Externals) -> Iterator[Command]:
    """Chains take turns between both ends of the buffers, so that one can begin before the other ends."""
    halo_bytes = max((plan.halo_bytes for plan in plans), default=0)
    nb_bytes, sb_bytes = machine.nb_bytes - halo_bytes, machine.sb_bytes
    if machine.shared_buffer:
        nb_bytes = max(plan.nb_bytes for plan in plans)
        sb_bytes = max(plan.sb_bytes for plan in plans)
    values = with_parts(graph.values)
    for turn, plan in enumerate(plans):
        upper = turn % 2 == 1
        nb_base = (nb_bytes - plan.nb_bytes) // 64 * 64 if upper else 0
        sb_base = (sb_bytes - plan.sb_bytes) // 64 * 64 if upper else 0
        yield from ChainWriter(plan, values, machine, externals, nb_base, sb_base).commands()


def _port(name: str, graph: Graph, externals: Externals) -> Port:
    value = graph.values[name]
    buffer = externals.values[name]
    return Port(name, buffer.address, buffer.dtype, value.shape, buffer.strides)
