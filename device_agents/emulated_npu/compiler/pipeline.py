"""The compiler as a whole: ONNX in, a program and the picture of its memory out (S2.2, S2.5)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from device_agents.emulated_npu.command import Command, DataType, Item
from device_agents.emulated_npu.compiler.allocation import ALIGNMENT_BYTES, aligned
from device_agents.emulated_npu.compiler.chain import ChainPlan, Room
from device_agents.emulated_npu.compiler.emit import emit
from device_agents.emulated_npu.compiler.external_memory import (
    ExternalMemory,
    Packed,
    Plain,
    choose_spaces,
    placeholders,
    port_of,
)
from device_agents.emulated_npu.compiler.hazards import ONE_BUFFER, SEPARATE
from device_agents.emulated_npu.compiler.importer import import_model
from device_agents.emulated_npu.compiler.layers import Constant, Graph, with_parts
from device_agents.emulated_npu.compiler.lowering import ChainWriter, Externals
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.plan import Decision, Outline, Planner
from device_agents.emulated_npu.compiler.reorder import hoist_loads
from device_agents.emulated_npu.compiler.synchronise import fence_between_layers, synchronise
from device_agents.emulated_npu.compiler.weights import pack_weights
from device_agents.emulated_npu.errors import DoesNotFit, EmulatorError
from device_agents.emulated_npu.isa.program import Footprint, Program
from device_agents.emulated_npu.isa.sequencer import Step
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.formula import formula

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_HOIST_WINDOW = 64
_HALO_LOSS = 0.01


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
    spaces = choose_spaces(graph, machine)
    decisions = _decide(graph, machine, options, placeholders(graph, machine, spaces))
    plans = [plan for decision in decisions for plan in decision.chains]
    memory = ExternalMemory(graph, machine, spaces, plans)
    externals = memory.run()
    layout = _Layout.of(machine, plans)
    commands = list(_lower(graph, machine, plans, externals, layout))
    code, layer_of = emit(_ordered(commands, machine, options))
    footprint = Footprint(memory.ddr_bytes, memory.llc_bytes, *layout.bytes)
    program = Program(
        machine.name,
        code,
        tuple(layer.name for layer in graph.layers),
        layer_of,
        tuple(port_of(name, graph, externals) for name in graph.inputs),
        tuple(port_of(name, graph, externals) for name in graph.outputs),
        footprint,
    )
    return Compiled(program, graph, machine, options, decisions, tuple(memory.packed), tuple(memory.plain))


def _decide(graph: Graph, machine: Machine, options: Options, externals: Externals) -> tuple[Decision, ...]:
    """Plans for what the machine has; every chain divides a buffer for features and weights in its best way."""
    rooms = tuple(_shares(machine)) if machine.shared_buffer else (_whole_room(machine),)
    planner = Planner(graph, machine, options, externals, rooms)
    if options.chains == "whole":
        return planner.plan()
    outline, chosen = min(_outlines(planner), key=lambda pair: pair[0].predicted_ps)
    return chosen.decide_all(outline)


def _outlines(planner: Planner) -> Iterator[tuple[Outline, Planner]]:
    """Outlines that fit; raises DoesNotFit where there is none.

    The halo buffer comes out of the room which other chains count on: where that costs more than a little, it is
    tried with a quarter of it and with none.
    """
    free = planner.outline()
    for size in dict.fromkeys((free.halo_bytes, aligned(free.halo_bytes // 4), 0)):
        smaller = planner.within(size)
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
        nb_bytes = _down(machine.nb_bytes * quarters // 4)
        yield Room(nb_bytes, machine.nb_bytes - nb_bytes, min(machine.halo_bytes, nb_bytes))


@dataclass(frozen=True)
class _Layout:
    """Buffers on chip: chains take turns between both ends, so that one can begin before the other ends.

    `nb_top` and `sb_top` are where the upper chains end: above any two neighbours, where there is room for both. In a
    machine with one buffer they are the same, and a chain's weights lie behind its features.
    """

    nb_top: int
    sb_top: int
    halo_bytes: int
    one_buffer: bool

    @classmethod
    def of(cls, machine: Machine, plans: list[ChainPlan]) -> _Layout:
        halo_bytes = max((plan.halo_bytes for plan in plans), default=0)
        nb_sizes, sb_sizes = [aligned(plan.nb_bytes) for plan in plans], [aligned(plan.sb_bytes) for plan in plans]
        if machine.shared_buffer:
            both = [sum(sizes) for sizes in zip(nb_sizes, sb_sizes, strict=True)]
            top = min(machine.nb_bytes - halo_bytes, _highest(both))
            return cls(top, top, halo_bytes, one_buffer=True)
        nb_top = min(machine.nb_bytes - halo_bytes, _highest(nb_sizes))
        return cls(nb_top, min(machine.sb_bytes, _highest(sb_sizes)), halo_bytes, one_buffer=False)

    @property
    def bytes(self) -> tuple[int, int, int, int]:
        """As the footprint has them."""
        return self.nb_top, self.sb_top, self.halo_bytes, self.nb_top + self.halo_bytes if self.one_buffer else 0

    def bases(self, turn: int, plan: ChainPlan) -> tuple[int, int]:
        """Where the buffers of the chain in this turn begin."""
        upper = turn % 2 == 1
        if self.one_buffer:
            nb_base = _down(self.nb_top - aligned(plan.nb_bytes) - plan.sb_bytes) if upper else 0
            return nb_base, nb_base + aligned(plan.nb_bytes)
        return (_down(self.nb_top - plan.nb_bytes), _down(self.sb_top - plan.sb_bytes)) if upper else (0, 0)


def _down(address: int) -> int:
    return address // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _highest(sizes: list[int]) -> int:
    pairs = (first + second for first, second in itertools.pairwise(sizes))
    return max(max(sizes, default=0), max(pairs, default=0))


def _lower(
    graph: Graph, machine: Machine, plans: list[ChainPlan], externals: Externals, layout: _Layout
) -> Iterator[Command]:
    values = with_parts(graph.values)
    for turn, plan in enumerate(plans):
        nb_base, sb_base = layout.bases(turn, plan)
        yield from ChainWriter(plan, values, machine, externals, nb_base, sb_base).commands()


def _ordered(commands: list[Command], machine: Machine, options: Options) -> list[Item]:
    """The commands with their synchronisation; re-ordered where that is wanted and by the formula no slower."""
    memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
    if options.fences:
        layers = [list(group) for _, group in itertools.groupby(commands, key=lambda command: command.layer)]
        if options.reorder:
            layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=memory_of) for layer in layers]
        return fence_between_layers(synchronise([command for layer in layers for command in layer], memory_of))
    items = synchronise(commands, memory_of)
    if not options.reorder:
        return items
    hoisted = synchronise(hoist_loads(commands, window=_HOIST_WINDOW, memory_of=memory_of), memory_of)
    return min(hoisted, items, key=lambda order: predicted_time_ps(order, machine))


def predicted_time_ps(items: list[Item], machine: Machine) -> int:
    """Time by the formula of S2.6, before there is a program."""
    return formula((Step(pc, item, 0) for pc, item in enumerate(items)), machine).total_ps
