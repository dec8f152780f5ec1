"""Divide a network over core groups, compile it for them, and time a stream of inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.many_cores.core_groups import contended, fabric_of, form_groups, traversal_from
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes, network_nodes
from device_agents.emulated_npu.many_cores.pipeline_timing import TimedSystem
from device_agents.emulated_npu.many_cores.stage_balancing import (
    PartitionTask,
    TimedPartition,
    balance_stages,
    compile_and_time,
)
from device_agents.emulated_npu.partition.cut_walk import SplitRule
from device_agents.emulated_npu.partition.greedy import partition_by_score, partition_by_score_adding_groups
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric
from device_agents.emulated_npu.partition.result import CorePartition
from device_agents.emulated_npu.partition.score import AbsoluteScore, ShareScore
from harness.errors import UsageError
from harness.npu.error_translation import errors_of_compiler, errors_of_user
from harness.npu.loading import CompiledModel
from harness.npu.npu_options import PipelineOptions
from harness.npu.value_check import Note, has_values, system_error

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
    """A network on core groups; `single_core_ps` is the time of one input on one core."""

    source: CompiledModel
    single_core_ps: int
    nodes: NetworkNodes
    runs: tuple[PartitionRun, ...]


def run_pipeline(source: CompiledModel, options: PipelineOptions, note: Note) -> PipelineRun:
    """Divide a network that was compiled for one core over core groups, and run it on them.

    Raises UsageError and InputError for options that contradict each other, the machine or the network.
    """
    options.check()
    with errors_of_user("Correct the option"):
        fabric = fabric_of(source.compiled.machine, options.core_storage_bytes)
        groups = form_groups(fabric, "1" if options.groups is None else options.groups, options.cores)
        rule = None if options.partition == "balanced" else _split_rule(options)
        task = _task(source, groups, options)
    with errors_of_compiler():
        runs = tuple(_runs(task, groups, fabric, rule, options, note))
    if options.values and has_values(source.compiled.machine, note):
        runs = tuple(
            replace(each, max_rel_error=system_error(source.model, each.timed.compiled, note)) for each in runs
        )
    return PipelineRun(source, task.single_core_ps, task.nodes, runs)


def _task(source: CompiledModel, groups: Sequence[CoreGroup], options: PipelineOptions) -> PartitionTask:
    """Return what every partition starts from: the network as compiled for a core that shares its memories."""
    machine, compiler = source.compiled.machine, source.compiled.options
    alone = time_program(source.compiled.program, machine).timing
    crowded = contended(machine, groups)
    compiled, timing = source.compiled, alone
    if crowded != machine:
        compiled = compile_model(source.model.content, crowded, compiler)
        timing = time_program(compiled.program, crowded).timing
    nodes = network_nodes(compiled.graph, crowded, timing)
    traversal = traversal_from(nodes, options.start)
    limit_ps = None if options.cycle_budget is None else options.cycle_budget * alone.cycle_ps
    return PartitionTask(
        compiled.graph, machine, compiler, nodes, traversal, alone.makespan_ps, options.inputs, limit_ps
    )


def _runs(
    task: PartitionTask,
    groups: Sequence[CoreGroup],
    fabric: Fabric,
    rule: SplitRule | None,
    options: PipelineOptions,
    note: Note,
) -> Iterator[PartitionRun]:
    """Yield the balanced partition, then the one by score, both on the same groups, added ones included."""
    by_score = None
    if rule is not None and (len(groups) > 1 or options.by_score):
        if options.add_groups:
            by_score = partition_by_score_adding_groups(task.nodes.graph, task.traversal, groups, rule, fabric)
        else:
            by_score = partition_by_score(task.nodes.graph, task.traversal, groups, rule)
    if options.partition in ("both", "balanced"):
        start = time.perf_counter()
        try:
            placed = balance_stages(task, groups if by_score is None else by_score.groups)
            yield PartitionRun("balanced", placed, time.perf_counter() - start, None)
        except DoesNotFit as error:  # it needs a node in every group; by score, groups may stay empty
            if by_score is None:
                raise
            note(f"No balanced partition: {error.what}: {error.why}")
    if by_score is not None:
        start = time.perf_counter()
        placed = compile_and_time(task, by_score)
        method = "absolute" if options.partition == "absolute" else "score"
        yield PartitionRun(method, placed, time.perf_counter() - start, None)


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
