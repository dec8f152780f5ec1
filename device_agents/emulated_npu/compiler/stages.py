"""The compiler: an ONNX network goes through the stages once, in order, and comes out as programs (S2.2, S2.5, S5.7).

    graph -> odd_dft -> splitting -> planning -> ordering -> codegen

A network on one core is the case of one group with one core. A stage knows the values of the stages before it and
nothing of later ones. `prediction` runs planning and ordering on candidates, where a choice needs their time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.compiler.compiled import Compiled, CompiledCore, CompiledGroup, CompiledSystem
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.multiplied_types import machine_for
from device_agents.emulated_npu.compiler.odd_dft.choice import choose_convolutions
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.ordering.order import KnownCommands, Ordered, least_time_ps, order
from device_agents.emulated_npu.compiler.ordering.weight_places import ResidentWeights, keep_weights
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import (
    FREE,
    OccupiedMemory,
    choose_spaces,
    placeholders,
    port_of,
)
from device_agents.emulated_npu.compiler.planning.plan import NO_DECISIONS, CorePlan, GroupPlan, WrittenChains, plan
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import Alternative, decide_chains
from device_agents.emulated_npu.compiler.prediction.changed_chains import FastestChains, improved
from device_agents.emulated_npu.compiler.prediction.graph_times import GraphPredictor
from device_agents.emulated_npu.compiler.prediction.split_choice import predicted_splits
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, with_room
from device_agents.emulated_npu.compiler.splitting.division import Division, divide, shared_layers
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.emulator_errors import ChipTooSmall, DoesNotFit
from device_agents.emulated_npu.gc_tuning import rare_collections
from device_agents.emulated_npu.isa.program import NO_SETUP, Footprint, Preload, Program, Setup
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Space

_RESIZED_ITEMS = 3000
"""Items that are scheduled to compare the chains of a network with those of other halo buffers."""

WeightPolicy = Literal["resident", "fetched"]
"""Whether weights that fit in SB stay there from input to input, or are fetched for every input."""


def compile_model(model: bytes, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compile an ONNX model for one core; raises UnsupportedOperator, DoesNotFit or another EmulatorError."""
    return compile_graph(import_model(model, machine.of_core(0).mfu.columns), machine, options)


@rare_collections()
def compile_graph(graph: Graph, machine: Machine, options: Options = DEFAULT) -> Compiled:
    """Compile a graph for one core, core 0 of the machine.

    Raises DoesNotFit, or UnsupportedOperator for a forced DFT that is impossible.
    """
    machine = machine_for(graph, machine.of_core(0))
    predictor = GraphPredictor(machine, options)
    chosen = choose_convolutions(graph, machine, options, predictor)
    # A DFT that is faster for a layer can be slower for the network, because it ends chains.
    tried = [graph, chosen] if chosen.setup is not None and options.conv_algorithm == "auto" else [chosen]
    return _compiled(_fastest(tried, predictor, machine, options), machine, options)


def _fastest(graphs: Sequence[Graph], predictor: GraphPredictor, machine: Machine, options: Options) -> _Schedule:
    """Return the fastest schedule of one core for some graphs that compute the same, by the formula.

    Predictions of chains do not know what overlaps with their neighbours. So the formula also compares the chains with
    those of other halo buffers, as long as few items are scheduled for it, and with others where these differ.
    """
    ways, found = _Ways(machine, options), list[tuple[_Schedule, Alternative]]()
    for graph in graphs:
        for alternative in predictor.candidates(graph):
            schedule = ways.faster(graph, alternative.decisions, found[-1][0] if found else None)
            if schedule is not None:
                found.append((schedule, alternative))
    best, alternative = found[-1]
    graph, left = best.division.graph, _RESIZED_ITEMS
    sizes = alternative.with_other_halo_buffers()
    while best.items <= left and (chains := next(sizes, None)) is not None:
        left -= best.items
        best = ways.faster(graph, chains, best) or best
    fastest = FastestChains(graph, machine, options, best.decisions, ways.written, ways.known)
    return ways.faster(graph, improved(fastest, predictor), best) or best


class _Ways:
    """The ways to run a network on one core that are compared, each scheduled once; they share most commands."""

    def __init__(self, machine: Machine, options: Options) -> None:
        self._machine, self._options = machine, options
        self._seen = set[object]()
        self.written, self.known = WrittenChains(), KnownCommands(machine)

    def faster(self, graph: Graph, decisions: tuple[Decision, ...], best: _Schedule | None) -> _Schedule | None:
        """Return the schedule of some chains; None if it is not faster than the best one."""
        key = graph.setup is None, tuple((each.start, each.end, each.chosen.key) for each in decisions)
        if key in self._seen:
            return None
        self._seen.add(key)
        machine, options, known = self._machine, self._options, self.known
        division = divide(graph, machine)
        plans = plan(division, options, decisions={0: decisions}, written=self.written)
        (core,) = plans[0].cores
        cached = core.cached if graph.setup is None else None
        if best and least_time_ps(core.commands, machine, options, cached, known) >= best.predicted_ps:
            return None
        ordered = order(core.commands, machine, options, cached, shared_layers(graph, machine, 1), known)
        if best and ordered.predicted_ps >= best.predicted_ps:
            return None
        return _Schedule(division, plans, {core.core: ordered}, {})


def _compiled(schedule: _Schedule, machine: Machine, options: Options) -> Compiled:
    (group,) = _generate(schedule, machine)
    (core,) = group.cores
    return Compiled(core.program, schedule.division.graph, machine, options, core.decisions, group.packed, group.plain)


@rare_collections()
def compile_beginning(model: bytes, whole: Compiled) -> Compiled:
    """Compile a network that consists of the first layers of another, with the chains of that one.

    Raises as `compile_model`, for the machine and the options of the whole.
    """
    machine, options = whole.machine, whole.options
    graph = import_model(model, machine.mfu.columns)
    predictor = GraphPredictor(machine, options)
    chosen = choose_convolutions(graph, machine, options, predictor)
    ends = _ends_of_beginning(chosen, whole)
    if options.chains != "auto" or not ends:
        return compile_graph(graph, machine, options)
    externals = placeholders(chosen, machine, choose_spaces(chosen, machine))
    halo_bytes = max(plan.halo_bytes for plan in whole.plans)
    try:
        decisions = decide_chains(Planner(chosen, machine, options, externals), ends, halo_bytes)
    except DoesNotFit:
        return compile_graph(graph, machine, options)
    return _compiled(_schedule(divide(chosen, machine), machine, options, {0: decisions}), machine, options)


def _ends_of_beginning(graph: Graph, whole: Compiled) -> tuple[int, ...]:
    """Return the ends of the chains of a graph whose layers another begins with; none if other layers follow."""
    names = [layer.name for layer in graph.layers]
    if [layer.name for layer in whole.graph.layers[: len(names)]] != names:
        return ()
    return (*(each.end for each in whole.decisions if each.end < len(names)), len(names))


@rare_collections()
def compile_system(
    graph: Graph,
    machine: Machine,
    assignment: Assignment,
    options: Options = DEFAULT,
    *,
    splits: Mapping[int, LayerSplit] | None = None,
    weights: WeightPolicy = "fetched",
) -> CompiledSystem:
    """Compile a graph for the core groups of an assignment; convolutions are computed as the graph has them.

    `splits` selects, by the index of a layer, how the cores of its group share it; other layers run on the first core.
    Without `splits` the compiler chooses the splits that it predicts to be fastest. With "resident", weights that fit
    in SB stay there from input to input. Raises DoesNotFit, or ChipTooSmall, which names the groups of the chip.
    """
    machine = machine_for(graph, machine)
    roomy = with_room(machine)
    if splits is None:
        splits = predicted_splits(graph, roomy, assignment, options)
    division = divide(graph, roomy, assignment, splits)
    groups = _generate(_schedule(division, roomy, options, _of_one_core(division, options), weights=weights), roomy)
    _check_chips(groups, machine)
    return CompiledSystem(division.graph, division.origins, machine, options, assignment, groups)


def _of_one_core(division: Division, options: Options) -> Mapping[int, tuple[Decision, ...]]:
    """Return the chains of a division that is one core, as for a network on one core; nothing for several cores.

    With several cores, which wait for each other, the formula cannot say which chains are fastest.
    """
    cores = [(core, group) for group in division.groups for core in group.cores]
    if len(cores) > 1:
        return NO_DECISIONS
    ((core, group),) = cores
    predictor = GraphPredictor(group.machine, options)
    return {core: _fastest([group.graph], predictor, group.machine, options).decisions}


def _check_chips(groups: Sequence[CompiledGroup], machine: Machine) -> None:
    """Raise ChipTooSmall for a chip whose DDR is too small for its groups together."""
    demands: dict[int, dict[int, int]] = {}
    for number, group in enumerate(groups):
        demands.setdefault(group.chip, {})[number] = group.ddr_bytes
    for chip, own in demands.items():
        if sum(own.values()) > machine.ddr.bytes:
            raise ChipTooSmall(chip, own, machine.ddr.bytes)


@dataclass(frozen=True)
class _Schedule:
    """The plans of all groups, and by core the items that its queues receive, and the weights that stay in SB."""

    division: Division
    plans: tuple[GroupPlan, ...]
    ordered: Mapping[int, Ordered]
    resident: Mapping[int, ResidentWeights]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The chains of the first core."""
        return self.plans[0].cores[0].decisions

    @property
    def items(self) -> int:
        """The number of items of the first core."""
        return len(self.ordered[self.plans[0].cores[0].core].items)

    @property
    def predicted_ps(self) -> int:
        """The time of the first core by the formula."""
        return self.ordered[self.plans[0].cores[0].core].predicted_ps


def _schedule(
    division: Division,
    machine: Machine,
    options: Options,
    decisions: Mapping[int, tuple[Decision, ...]] = NO_DECISIONS,
    occupied: OccupiedMemory = FREE,
    weights: WeightPolicy = "fetched",
) -> _Schedule:
    plans = plan(division, options, decisions=decisions, occupied=occupied)
    resident = _resident(plans) if weights == "resident" else {}
    alone = len(plans) == len(plans[0].cores) == 1 and division.graph.setup is None and occupied is FREE
    shared = shared_layers(division.graph, machine, sum(len(group.cores) for group in plans))
    ordered = {
        core.core: order(
            resident[core.core].commands if core.core in resident else core.commands,
            machine.of_core(core.core),
            options,
            core.cached if alone else None,
            shared,
        )
        for group in plans
        for core in group.cores
    }
    return _Schedule(division, plans, ordered, resident)


def _resident(plans: Sequence[GroupPlan]) -> dict[int, ResidentWeights]:
    """Return by core the weights that stay in SB; none where SB and NB are one memory, which chains divide."""
    found = {}
    for group in plans:
        ranges = [(each.address, each.address + each.bytes) for each in group.memory.packed]
        for core, machine in zip(group.cores, group.group.machines, strict=True):
            kept = None if machine.shared_buffer else keep_weights(core.commands, ranges, machine.sb_bytes)
            if kept is not None:
                found[core.core] = kept
    return found


def _generate(schedule: _Schedule, machine: Machine) -> tuple[CompiledGroup, ...]:
    names = tuple(layer.name for layer in schedule.division.graph.layers)
    groups = []
    for planned in schedule.plans:
        group = planned.group
        cores = [_generate_core(core, planned, schedule, names) for core in planned.cores]
        packed, plain = planned.memory.packed, planned.memory.plain
        if group.graph.setup is not None:
            setup, before, used = _compile_setup(group.graph.setup, planned)
            first = cores[0].program
            footprint = Footprint(*map(max, zip(astuple(first.footprint), astuple(used), strict=True)))
            cores[0] = replace(cores[0], program=replace(first, footprint=footprint, setup=setup))
            packed, plain = packed + before.memory.packed, plain + before.memory.plain
        groups.append(
            CompiledGroup(
                cores=tuple(cores),
                chip=machine.cores.chip_of(group.cores[0]),
                stage=group.stage,
                depth=group.depth,
                received_bytes=planned.received_bytes,
                machine=group.machine,
                packed=tuple(packed),
                plain=tuple(plain),
                spaces={name: buffer.space for name, buffer in planned.buffers.items()},
            )
        )
    return tuple(groups)


def _generate_core(core: CorePlan, group: GroupPlan, schedule: _Schedule, names: tuple[str, ...]) -> CompiledCore:
    items = schedule.ordered[core.core].items
    code, layer_of = emit(items)
    graph, externals = core.graph, core.externals
    program = Program(
        group.group.machine.name,
        code,
        names,
        layer_of,
        tuple(port_of(name, graph, externals) for name in graph.inputs),
        tuple(port_of(name, graph, externals) for name in graph.outputs),
        _footprint(group, core, items),
        NO_SETUP,
    )
    kept = schedule.resident.get(core.core)
    if kept is None:
        return CompiledCore(core.core, program, core.decisions)
    footprint = replace(program.footprint, sb_bytes=max(program.footprint.sb_bytes, kept.stop))
    preload = Preload(emit(kept.loads)[0], kept.start, kept.stop)
    return CompiledCore(core.core, replace(program, footprint=footprint), core.decisions, preload)


def _footprint(group: GroupPlan, core: CorePlan, items: Sequence[Item]) -> Footprint:
    """Return the bytes of each memory that a core uses; weights get their places when its commands are ordered."""
    used = dict.fromkeys(Space, 0)
    for item in items:
        if isinstance(item, Command) and item.function is Function.LOAD:
            space = item.target.descriptor.space
            used[space] = max(used[space], item.target.span[1])
    planned = group.footprint(core)
    return replace(
        planned, sb_bytes=max(planned.sb_bytes, used[Space.SB]), llc_bytes=max(planned.llc_bytes, used[Space.LLC])
    )


def _compile_setup(setup: Graph, group: GroupPlan) -> tuple[Setup, GroupPlan, Footprint]:
    """Compile the graph that computes values of a group at load time on its first core, with the bytes that it uses.

    Raises DoesNotFit. Results go to their addresses in the memory of the group. Everything else lies after what the
    group uses. The halo buffer of the runs stays where it is.
    """
    machine = group.group.machine
    room = machine.nb_bytes - group.cores[0].layout.halo_bytes
    smaller = replace(machine, nb_bytes=room, halo_bytes=0)
    if machine.shared_buffer:
        smaller = replace(smaller, sb_bytes=room)
    results = {name: group.buffers[name] for name in setup.outputs}
    occupied = OccupiedMemory(group.memory.ddr_bytes, group.memory.llc_bytes, results)
    schedule = _schedule(divide(setup, smaller), smaller, DEFAULT, occupied=occupied)
    items = schedule.ordered[0].items
    code, layer_of = emit(items)
    names = tuple(layer.name for layer in setup.layers)
    (planned,) = schedule.plans
    return Setup(code, names, layer_of), planned, _footprint(planned, planned.cores[0], items)
