"""Compiles a network for several core groups: a program for every core, a memory for every group (S5.7).

All groups are planned and their memories laid out before anything is lowered: who sends has to know where. Messages are
what was lowered; where each core takes them is decided when all cores have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.pipeline import CompiledSetup, compile_setup, constant_image, largest
from device_agents.emulated_npu.compiler.planning.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.chain_planner import Decision
from device_agents.emulated_npu.compiler.planning.external_memory import (
    ExternalMemory,
    PackedWeights,
    PlainConstant,
    choose_spaces,
    placed,
    placeholders,
    port_of,
)
from device_agents.emulated_npu.compiler.planning.lowering import Destination, Externals
from device_agents.emulated_npu.compiler.planning.messages import ReceivedValue, messages_to, sends_of, with_receives
from device_agents.emulated_npu.compiler.planning.placement import Buffer
from device_agents.emulated_npu.compiler.planning.relocation import Relocation
from device_agents.emulated_npu.compiler.planning.shared_lifetimes import shared_lifetimes
from device_agents.emulated_npu.compiler.prediction.split_choice import predicted_splits
from device_agents.emulated_npu.compiler.splitting.assignment import (
    Assignment,
    check_assignment,
    group_machines,
    group_names,
)
from device_agents.emulated_npu.compiler.splitting.core_slices import SlicedNetwork, share_out
from device_agents.emulated_npu.compiler.splitting.division import Division, GroupGraph, divide
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.compiler.steps import Layout, decide, lowered, ordered
from device_agents.emulated_npu.isa.program import Footprint, Program
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, Item, Space

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CompiledCore:
    """The program of one core. Its layers are those of the whole network, of which it runs some."""

    core: int
    program: Program
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class CompiledGroup:
    """A core group: its cores, its stage in the pipeline, and what lies in its part of the memory of its chip.

    `depth` is how many inputs what it receives is held for, `received_bytes` what it receives for one input.
    """

    cores: tuple[CompiledCore, ...]
    chip: int
    stage: int
    depth: int
    received_bytes: int
    machine: Machine
    packed: tuple[PackedWeights, ...]
    plain: tuple[PlainConstant, ...]

    def image(self, arrays: Mapping[str, Array]) -> Iterator[tuple[int, Array]]:
        """What the loader writes to its DDR before the first run, as `Compiled.image` says."""
        return constant_image(self.machine, self.packed, self.plain, arrays)


@dataclass(frozen=True)
class CompiledSystem:
    """A network compiled for several core groups, in the order of the assignment.

    The layers of `graph` are slices where the cores of a group share their work; `origins` are the layers of the
    network that they are parts of, by index.
    """

    graph: Graph
    origins: tuple[int, ...]
    machine: Machine
    options: Options
    assignment: Assignment
    groups: tuple[CompiledGroup, ...]

    @property
    def cores(self) -> tuple[CompiledCore, ...]:
        """The cores of all groups, in their order."""
        return tuple(core for group in self.groups for core in group.cores)


def compile_system(
    graph: Graph,
    machine: Machine,
    assignment: Assignment,
    options: Options = DEFAULT,
    *,
    splits: Mapping[int, LayerSplit] | None = None,
) -> CompiledSystem:
    """A program for every core of an assignment. Convolutions are computed as the graph has them.

    `splits` say by index how the cores of its group share the work of a layer (without: all on the first core); where
    there are none, it is what is predicted to be fastest. Raises InvalidAssignment, or DoesNotFit naming the group
    where a group's share of the memories is too small.
    """
    check_assignment(assignment, graph, machine)
    if splits is None:
        splits = predicted_splits(graph, machine, assignment, options)
    shared = share_out(graph, assignment, splits)
    return _compile(shared, machine, assignment, divide(shared.graph, shared.groups), options)


def _compile(
    shared: SlicedNetwork, machine: Machine, assignment: Assignment, pipeline: Division, options: Options
) -> CompiledSystem:
    graph = shared.graph
    names = group_names(assignment)
    planned = _Planned(pipeline, machine, options)
    groups = [
        _GroupMemory.of(stage, planned, index, names[index], shared.phases)
        for index, stage in enumerate(pipeline.stages)
    ]
    buffers = [group.buffers for group in groups]
    commands: dict[int, list[Command]] = {}
    layouts: dict[int, Layout] = {}
    for stage, group in zip(pipeline.stages, groups, strict=True):
        for place, core in enumerate(stage.cores):
            externals = replace(group.externals[place], sends=planned.sends(core, buffers))
            plans = planned.plans(core)
            layouts[core] = Layout.of(machine, plans)
            commands[core] = list(lowered(stage.parts[place], machine, plans, externals, layouts[core]))
    sent = {core: sends_of(own) for core, own in commands.items()}
    layers = tuple(layer.name for layer in graph.layers)
    compiled = []
    for index, (stage, group) in enumerate(zip(pipeline.stages, groups, strict=True)):
        places = [
            ReceivedValue(stage.graph.values[one.value], group.buffers[one.value])
            for one in pipeline.crossings
            if one.group == index
        ]
        before = group.setup(stage, planned.machines[index], layouts[stage.cores[0]])
        packed, plain = tuple(group.memory.packed), tuple(group.memory.plain)
        if before is not None:
            packed, plain = packed + before.packed, plain + before.plain
        cores = []
        for place, core in enumerate(stage.cores):
            received = with_receives(commands[core], messages_to(core, sent), dict.fromkeys(places))
            items = ordered(group.relocation.moved(received, frozenset(stage.cores)), machine, options)
            footprint = Footprint(group.memory.ddr_bytes, group.memory.llc_bytes, *layouts[core].bytes)
            program = _program(items, stage.parts[place], group.externals[place], machine, layers, footprint)
            if before is not None and place == 0:
                program = replace(program, footprint=largest(footprint, before.footprint), setup=before.setup)
            cores.append(CompiledCore(core, program, planned.decisions[core]))
        compiled.append(
            CompiledGroup(
                tuple(cores),
                machine.cores.chip_of(stage.cores[0]),
                stage.number,
                stage.depth,
                sum(_payload_bytes(own, set(stage.cores)) for own in sent.values()),
                planned.machines[index],
                packed,
                plain,
            )
        )
    return CompiledSystem(graph, shared.split.origins, machine, options, assignment, tuple(compiled))


def _payload_bytes(sent: Sequence[Command], cores: set[int]) -> int:
    payloads = [command.target.descriptor for command in sent if command.peer in cores and command.first is not None]
    return sum(payload.elements * payload.dtype.bytes for payload in payloads)


def _program(
    items: list[Item],
    part: Graph,
    externals: Externals,
    machine: Machine,
    layers: tuple[str, ...],
    footprint: Footprint,
) -> Program:
    code, layer_of = emit(items)
    inputs, outputs = (tuple(port_of(name, part, externals) for name in names) for names in (part.inputs, part.outputs))
    return Program(machine.name, code, layers, layer_of, inputs, outputs, footprint)


class _Planned:
    """What every core is to do, decided before anything has an address."""

    def __init__(self, pipeline: Division, machine: Machine, options: Options) -> None:
        self._pipeline = pipeline
        self.machines = group_machines(machine, [stage.cores for stage in pipeline.stages])
        self.spaces = [_spaces(stage, own) for stage, own in zip(pipeline.stages, self.machines, strict=True)]
        buffers = [
            {name: placed(stage.graph.values[name], own, space, 0) for name, space in spaces.items()}
            for stage, own, spaces in zip(pipeline.stages, self.machines, self.spaces, strict=True)
        ]
        self.decisions: dict[int, tuple[Decision, ...]] = {}
        for stage, own, spaces in zip(pipeline.stages, self.machines, self.spaces, strict=True):
            for core, part in zip(stage.cores, stage.parts, strict=True):
                externals = placeholders(part, own, spaces, self.sends(core, buffers))
                self.decisions[core] = decide(part, own, options, externals) if part.layers else ()

    def plans(self, core: int) -> list[ChainPlan]:
        """The chains of a core in order."""
        return [plan for decision in self.decisions[core] for plan in decision.chains]

    def sends(self, core: int, buffers: Sequence[Mapping[str, Buffer]]) -> dict[str, tuple[Destination, ...]]:
        """Where a core sends its values; `buffers` are those of every group."""
        found: dict[str, tuple[Destination, ...]] = {}
        for one in self._pipeline.crossings_from(core):
            is_own = core in self._pipeline.stages[one.group].cores
            buffer = None if is_own else buffers[one.group][one.value]
            found[one.value] = (*found.get(one.value, ()), Destination(one.cores, buffer, one.region))
        return found


def _spaces(stage: GroupGraph, machine: Machine) -> dict[str, Space]:
    """Where values lie; without those that are sent away and needed nowhere in the group."""
    needed = {view.value for layer in stage.graph.layers for view in layer.reads}
    needed.update(name for name, value in stage.graph.values.items() if value.is_output or value.kind == "received")
    spaces = choose_spaces(stage.graph, machine, stage.slots)
    return {name: space for name, space in spaces.items() if name in needed}


@dataclass(frozen=True)
class _GroupMemory:
    """The memory of a group with everything in its place."""

    memory: ExternalMemory
    externals: tuple[Externals, ...]
    relocation: Relocation

    @classmethod
    def of(cls, stage: GroupGraph, planned: _Planned, index: int, name: str, phases: Sequence[int]) -> _GroupMemory:
        """Raises DoesNotFit, naming the group."""
        plans = [planned.plans(core) for core in stage.cores]
        spaces, machine = planned.spaces[index], planned.machines[index]
        found = shared_lifetimes(stage.parts, phases, plans) if len(stage.cores) > 1 else {}
        found = {name: span for name, span in found.items() if name in spaces and name not in stage.slots}
        memory = ExternalMemory(stage.graph, machine, spaces, plans, stage.slots, name, found)
        externals = memory.run()
        relocation = Relocation.of((stage.graph.values[name] for name in found), externals[0].values)
        return cls(memory, tuple(map(relocation.apart, externals)), relocation)

    def setup(self, stage: GroupGraph, machine: Machine, layout: Layout) -> CompiledSetup | None:
        """What its first core, with this layout, computes when the program is loaded."""
        if stage.graph.setup is None:
            return None
        return compile_setup(stage.graph.setup, machine, self.memory, self.buffers, layout.halo_bytes)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Where its values lie."""
        return self.externals[0].values
