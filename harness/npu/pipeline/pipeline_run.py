"""Divide a network over core groups, compile it for them, and time a stream of inputs."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.splitting.assignment import with_room
from device_agents.emulated_npu.compiler.stages import compile_graph, compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.core_groups import contended, fabric_of, form_groups, traversal_from
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes, network_nodes
from device_agents.emulated_npu.many_cores.stage_balancing import (
    PartitionTask,
    TimedPartition,
    balance_stages,
    place_by_score,
)
from device_agents.emulated_npu.many_cores.system_runs import TimedSystem
from device_agents.emulated_npu.partition.greedy import partition_by_score_adding_groups
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.shared_groups import partition_by_score_sharing_groups
from device_agents.emulated_npu.partition.split_score import AbsoluteScore, ShareScore, SplitRule
from harness.errors import UsageError
from harness.measure.progress import DONE, Observer, begin, ignore
from harness.npu.error_translation import errors_of_compiler, errors_of_user
from harness.npu.loading import CompiledModel, Note, compile_network
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import Options, PipelineOptions
from harness.npu.value_check import has_values, system_error

_BALANCED, _BY_SCORE, _VALUES = "balancing the groups", "dividing by score", "comparing values"
_SHARE = {
    "compute": "compute_weight",
    "storage": "storage_weight",
    "routing": "routing_weight",
    "static": "static_factor",
    "dynamic": "dynamic_factor",
}
_ABSOLUTE = {name: f"{name}_weight" for name in ("compute", "dynamic", "static", "routing")}


@dataclass(frozen=True)
class PartitionRun:
    """A partition as it was compiled and run; `method` is balanced, score or absolute.

    `max_rel_error` as in `ValueCheck`; None if no values were compared.
    """

    method: str
    placed: TimedPartition
    took_s: float
    max_rel_error: float | None

    @property
    def partition(self) -> CorePartition:
        """The nodes of each group."""
        return self.placed.partition

    @property
    def timed(self) -> TimedSystem:
        """The programs of the groups and their times."""
        return self.placed.timed


@dataclass(frozen=True)
class PipelineRun:
    """A network on core groups of a machine.

    `source` is the network compiled for one core, whose chip has room for all of it; it needs `one_core_bytes` of DDR
    and takes `single_core_ps` for an input.
    """

    source: CompiledModel
    machine: Machine
    single_core_ps: int
    nodes: NetworkNodes
    runs: tuple[PartitionRun, ...]

    @property
    def one_core_bytes(self) -> int:
        """The DDR that the network needs on one core."""
        return self.source.compiled.program.footprint.ddr_bytes

    @property
    def fits_one_chip(self) -> bool:
        """Whether one chip holds the network."""
        return self.one_core_bytes <= self.machine.ddr.bytes


def run_pipeline(
    model: NetworkModel,
    machine: Machine,
    compiler: Options,
    options: PipelineOptions,
    note: Note,
    observe: Observer = ignore,
) -> PipelineRun:
    """Divide a network over core groups, and run it on them; a chip need not hold all of the network.

    Raises UsageError and InputError for options that contradict each other, the machine or the network.
    """
    options.check()
    source = compile_network(model, with_room(machine), compiler, observe)
    effort = source.effort
    with errors_of_user("Correct the option"):
        division = _Division(source, machine, options, note, lambda stage, times: begin(observe, stage, times * effort))
    with errors_of_compiler():
        runs = tuple(division.runs())
    if options.values and has_values(machine, note):
        begin(observe, _VALUES, effort)
        runs = tuple(replace(each, max_rel_error=system_error(model, each.timed.compiled, note)) for each in runs)
    observe(DONE)
    return PipelineRun(source, machine, division.alone.makespan_ps, division.task.nodes, runs)


class _Division:
    """The divisions of a network that the options ask for."""

    def __init__(
        self,
        source: CompiledModel,
        machine: Machine,
        options: PipelineOptions,
        note: Note,
        begin_stage: Callable[[str, int], None],
    ) -> None:
        """Start the divisions; `begin_stage` receives each stage, and as how many compilations it counts."""
        self._source, self._machine, self._options, self._note = source, machine, options, note
        self._begin = begin_stage
        self._timed = time_program(source.compiled.program, source.compiled.machine)
        self.alone = self._timed.timing
        self._fabric = fabric_of(machine, options.core_storage_bytes)
        self._rule = None if options.partition == "balanced" else _split_rule(options)
        begin_stage("compiling for shared memories", 1)
        self._groups = form_groups(self._fabric, "1" if options.groups is None else options.groups, options.cores)
        self.task = self._task(self._groups)

    def _task(self, groups: Sequence[CoreGroup]) -> PartitionTask:
        """Return what every partition starts from: the network as compiled for a core that shares its memories."""
        compiled, nodes = self._measured_on(contended(self._machine, groups))
        first, *others = dict.fromkeys(self._machine.of_core(group.cores[0]) for group in groups)
        of_kinds = {
            kind: self._measured_on(contended(self._machine, groups, kind), compiled.graph)[1] for kind in others
        }
        budget = self._options.cycle_budget
        limit_ps = None if budget is None else budget * self.alone.cycle_ps
        traversal = traversal_from(nodes, self._options.start)
        return PartitionTask(
            graph=compiled.graph,
            machine=self._machine,
            options=self._source.compiled.options,
            nodes=nodes,
            traversal=traversal,
            single_core_ps=self.alone.makespan_ps,
            inputs=self._options.inputs,
            limit_ps=limit_ps,
            dynamic_factor=_dynamic_factor(compiled, nodes),
            weights=self._options.weights,
            of_kinds={first: nodes, **of_kinds},
        )

    def _measured_on(self, crowded: Machine, graph: Graph | None = None) -> tuple[Compiled, NetworkNodes]:
        """Return the network on one core of a machine, and its nodes with their times there.

        Its convolutions are computed as in `graph`, if that is given.
        """
        compiled, timed = self._source.compiled, self._timed
        if graph is not None:
            compiled = compile_graph(graph, crowded, replace(compiled.options, conv_algorithm="direct"))
            timed = time_program(compiled.program, crowded)
        elif crowded != compiled.machine:
            compiled = compile_model(self._source.model.content, crowded, compiled.options)
            timed = time_program(compiled.program, crowded)
        return compiled, network_nodes(compiled.graph, crowded, timed)

    def runs(self) -> Iterator[PartitionRun]:
        """Yield the balanced partition, then the one by score, both on the same groups, added ones included."""
        options, groups = self._options, self._groups
        by_score = None
        if self._rule is not None and (len(groups) > 1 or options.by_score):
            by_score = self._by_score(groups)
            groups = by_score.groups  # including those that were added
        if options.partition in ("both", "balanced"):
            start = time.perf_counter()
            self._begin(_BALANCED, 1)
            try:
                placed = balance_stages(self.task, groups)
                yield PartitionRun("balanced", placed, time.perf_counter() - start, None)
            except DoesNotFit as error:  # it needs a node in every group; by score, groups may stay empty
                if by_score is None:
                    raise
                self._note(f"No balanced partition: {error.what}: {error.why}")
        if by_score is not None:
            self._begin(_BY_SCORE, 1)
            start = time.perf_counter()
            placed = place_by_score(self.task, self._groups, self._by_score)
            method = "absolute" if options.partition == "absolute" else "score"
            yield PartitionRun(method, placed, time.perf_counter() - start, None)

    def _by_score(self, groups: Sequence[CoreGroup]) -> CorePartition:
        if self._rule is None:
            raise ValueError("the options do not request a partition by score")
        nodes, traversal, parts = self.task.nodes.graph, self.task.traversal, self._options.parts
        rule = replace(self._rule, external_factor=self.task.dynamic_factor)
        if self._options.add_groups:
            return partition_by_score_adding_groups(nodes, traversal, groups, rule, self._fabric)
        return partition_by_score_sharing_groups(nodes, traversal, groups, rule, parts)


def _dynamic_factor(compiled: Compiled, nodes: NetworkNodes) -> float:
    """Return the DDR that features occupy on one core, divided by the size of all inputs of nodes (S5.4)."""
    whole = nodes.graph.workload
    features_bytes = max(0, compiled.program.footprint.ddr_bytes - whole.static_bytes)
    return min(1.0, features_bytes / whole.dynamic_in_bytes) if whole.dynamic_in_bytes else 0.0


def _split_rule(options: PipelineOptions) -> SplitRule:
    period_s = None if options.period_ms is None else options.period_ms / 1000
    return SplitRule(_score(options), options.threshold, options.max_nodes, period_s)


def _score(options: PipelineOptions) -> ShareScore | AbsoluteScore:
    """Return the split score with the given coefficients; raises UsageError for unknown ones."""
    names = _ABSOLUTE if options.partition == "absolute" else _SHARE
    given: dict[str, float] = {}
    for text in options.score:
        name, _, value = text.partition("=")
        if name not in names:
            step = f"Choose from {', '.join(names)}: --score compute=0.5"
            raise UsageError(f"--score {text[:40]} is not a coefficient of the score", next_step=step)
        try:
            given[names[name]] = float(value)
        except ValueError:
            raise UsageError(f"--score {text[:40]} is not a number", next_step="Write --score compute=0.5") from None
    return AbsoluteScore(**given) if options.partition == "absolute" else ShareScore(**given)
