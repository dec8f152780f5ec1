"""The compiler as a whole: ONNX in, a program and the picture of its memory out (S2.2, S2.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, LazyConstant
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.odd_dft.choice import choose_convolutions
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.planning.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.chain_planner import Decision
from device_agents.emulated_npu.compiler.planning.external_memory import (
    FREE,
    ExternalMemory,
    OccupiedMemory,
    PackedWeights,
    PlainConstant,
    choose_spaces,
    placeholders,
    port_of,
)
from device_agents.emulated_npu.compiler.planning.lowering import Externals
from device_agents.emulated_npu.compiler.planning.placement import Buffer
from device_agents.emulated_npu.compiler.planning.weights import pack_weights
from device_agents.emulated_npu.compiler.steps import Layout, decide, lowered, ordered, predicted_time_ps
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.isa.program import NO_SETUP, Footprint, Program, Setup
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType, Item

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Compiled:
    """A compiled network: the program, the graph it came from, what was decided, and where its constants go."""

    program: Program
    graph: Graph
    machine: Machine
    options: Options
    decisions: tuple[Decision, ...]
    packed: tuple[PackedWeights, ...]
    plain: tuple[PlainConstant, ...]

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
        return constant_image(self.machine, self.packed, self.plain, arrays)


def constant_image(
    machine: Machine, packed: Iterable[PackedWeights], plain: Iterable[PlainConstant], arrays: Mapping[str, Array]
) -> Iterator[tuple[int, Array]]:
    """What the loader writes to DDR: weights and constants from the initializers by name, as `Compiled.image`."""
    import numpy as np

    if machine.data_type is not DataType.FLOAT32:
        what = f"{machine.name} computes in {machine.data_type.name.lower()}: it has timing but no values"
        raise EmulatorError(what, next_step="Run with a preset that computes in float32, such as edge")
    for item in packed:
        weights = _evaluate(item.layer.fixed_weights, arrays)
        scale = item.layer.scale_shift
        vectors = None if scale is None else _evaluate(scale, arrays)
        yield item.address, np.frombuffer(pack_weights(item.layer, item.blocks, weights, vectors), np.uint8)
    for constant in plain:
        array = _evaluate(constant.constant, arrays).reshape(constant.shape)
        yield constant.address, np.ascontiguousarray(array.transpose(constant.order))


def _evaluate(constant: LazyConstant, arrays: Mapping[str, Array]) -> Array:
    result: Array = constant.compute(*(arrays[name] for name in constant.sources))
    return result


def compile_model(model: bytes, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compiles an ONNX model; raises UnsupportedOperator, DoesNotFit or another EmulatorError."""
    return compile_graph(import_model(model), machine, options)


def compile_graph(graph: Graph, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compiles a graph of hardware layers; raises DoesNotFit, or UnsupportedOperator for a DFT that cannot be."""
    predictions = _Predictions(machine, options)
    chosen = choose_convolutions(graph, machine, options, predictions)
    written = _write(chosen, machine, options, decisions=predictions.known(chosen))
    if chosen.setup is not None and options.conv_algorithm == "auto":
        # What layers gain alone, the network may lose where chains end elsewhere.
        direct = _write(graph, machine, options, decisions=predictions.known(graph))
        written = min(direct, written, key=lambda way: predicted_time_ps(way.items, machine))
    graph = written.graph
    externals, memory = written.externals, written.memory
    halo_bytes = written.layout.halo_bytes
    before = None if graph.setup is None else compile_setup(graph.setup, machine, memory, externals.values, halo_bytes)
    code, layer_of = emit(written.items)
    program = Program(
        machine.name,
        code,
        written.names,
        layer_of,
        tuple(port_of(name, graph, externals) for name in graph.inputs),
        tuple(port_of(name, graph, externals) for name in graph.outputs),
        written.footprint if before is None else largest(written.footprint, before.footprint),
        NO_SETUP if before is None else before.setup,
    )
    packed, plain = tuple(memory.packed), tuple(memory.plain)
    if before is not None:
        packed, plain = packed + before.packed, plain + before.plain
    return Compiled(program, graph, machine, options, written.decisions, packed, plain)


@dataclass(frozen=True)
class _Written:
    """A graph as what the units execute, and what that needs."""

    graph: Graph
    decisions: tuple[Decision, ...]
    memory: ExternalMemory
    externals: Externals
    layout: Layout
    items: list[Item]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers."""
        return tuple(layer.name for layer in self.graph.layers)

    @property
    def footprint(self) -> Footprint:
        """Bytes of each memory."""
        return Footprint(self.memory.ddr_bytes, self.memory.llc_bytes, *self.layout.bytes)


def _write(
    graph: Graph,
    machine: Machine,
    options: Options,
    occupied: OccupiedMemory = FREE,
    decisions: tuple[Decision, ...] | None = None,
) -> _Written:
    spaces = choose_spaces(graph, machine)
    if decisions is None:
        decisions = decide(graph, machine, options, placeholders(graph, machine, spaces))
    plans = [plan for decision in decisions for plan in decision.chains]
    memory = ExternalMemory(graph, machine, spaces, (plans,), occupied=occupied)
    (externals,) = memory.run()
    layout = Layout.of(machine, plans)
    commands = list(lowered(graph, machine, plans, externals, layout))
    return _Written(graph, decisions, memory, externals, layout, ordered(commands, machine, options))


@dataclass(frozen=True)
class CompiledSetup:
    """What runs once when a program is loaded, with its constants and the memory that it takes."""

    setup: Setup
    footprint: Footprint
    packed: tuple[PackedWeights, ...]
    plain: tuple[PlainConstant, ...]


def compile_setup(
    setup: Graph, machine: Machine, memory: ExternalMemory, values: Mapping[str, Buffer], halo_bytes: int
) -> CompiledSetup:
    """Compiles what makes some of the `values` in a memory: all else that it needs lies behind what runs use.

    `halo_bytes` are those of the runs: their halo buffer stays where it is. Raises DoesNotFit.
    """
    results = {name: values[name] for name in setup.outputs}
    room = machine.nb_bytes - halo_bytes
    smaller = replace(machine, nb_bytes=room, halo_bytes=0)
    if machine.shared_buffer:
        smaller = replace(smaller, sb_bytes=room)
    written = _write(setup, smaller, DEFAULT, OccupiedMemory(memory.ddr_bytes, memory.llc_bytes, results))
    code, layer_of = emit(written.items)
    own = written.memory
    return CompiledSetup(Setup(code, written.names, layer_of), written.footprint, tuple(own.packed), tuple(own.plain))


def largest(first: Footprint, second: Footprint) -> Footprint:
    """What both need at most of each memory."""
    return Footprint(*map(max, zip(astuple(first), astuple(second), strict=True)))


class _Predictions:
    """What the choice of algorithms asks for (`odd_dft.Predictions`); remembers what was decided for a network."""

    def __init__(self, machine: Machine, options: Options) -> None:
        self._machine, self._options = machine, options
        self._decided: tuple[Graph, tuple[Decision, ...]] | None = None

    def time_ps(self, graph: Graph) -> int:
        """By the formula of S2.6, without the setup."""
        return predicted_time_ps(_write(graph, self._machine, self._options).items, self._machine)

    def chains(self, graph: Graph) -> list[tuple[int, int]]:
        """Those of the network as it is."""
        externals = placeholders(graph, self._machine, choose_spaces(graph, self._machine))
        decisions = decide(graph, self._machine, self._options, externals)
        self._decided = graph, decisions
        return [(decision.start, decision.end) for decision in decisions]

    def known(self, graph: Graph) -> tuple[Decision, ...] | None:
        """The decisions for the network itself, where they were asked for."""
        return self._decided[1] if self._decided is not None and self._decided[0] is graph else None
