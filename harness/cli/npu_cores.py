"""A network on several cores: partitioned, compiled, run and timed, by score and balanced side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from harness.cli.npu_errors import errors_of_compiler, errors_of_user
from harness.cli.npu_source import CompiledModel
from harness.cli.npu_values import can_compare, system_error
from harness.cli.output import note
from harness.errors import UsageError

if TYPE_CHECKING:
    from device_agents.emulated_npu.many_cores.network_nodes import NetworkNodes
    from device_agents.emulated_npu.many_cores.pipeline_timing import TimedSystem
    from device_agents.emulated_npu.many_cores.stage_balancing import PartitionTask, TimedPartition
    from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric
    from device_agents.emulated_npu.partition.result import CorePartition
    from device_agents.emulated_npu.partition.score import AbsoluteScore, ShareScore
    from device_agents.emulated_npu.partition.split_walk import SplitRule

Method = Literal["both", "balanced", "score", "absolute"]

_SHARE = {
    "compute": "compute_weight",
    "storage": "storage_weight",
    "routing": "routing_weight",
    "static": "static_factor",
    "dynamic": "dynamic_factor",
}
_ABSOLUTE = {name: f"{name}_weight" for name in ("compute", "dynamic", "static", "routing")}


@dataclass(frozen=True)
class CoreChoices:
    """What the user said about cores and partition; None where the default holds."""

    cores: int | None = None
    groups: str | None = None
    inputs: int | None = None
    method: str = "both"
    coefficients: tuple[str, ...] = ()
    threshold: float | None = None
    node_limit: int | None = None
    start: str | None = None
    add_groups: bool = False
    core_storage_bytes: int | None = None
    period_ms: float | None = None
    cycle_budget: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether more than the one core of a plain run is asked for."""
        return self.cores is not None or self.groups is not None

    @property
    def says_of_score(self) -> bool:
        """Whether anything is said of the partition by score."""
        said = (self.threshold, self.node_limit, self.period_ms, self.start)
        return self.method in ("score", "absolute") or bool(self.coefficients) or self.add_groups or said != (None,) * 4

    def check(self) -> None:
        """Raises UsageError for options of the partition without groups, and for words that mean nothing."""
        plain = CoreChoices(cycle_budget=self.cycle_budget)
        if not self.wanted and self != plain:
            named = [name for name, value in vars(self).items() if value != getattr(plain, name)]
            options = ", ".join(_OPTION[name] for name in named)
            raise UsageError(f"{options} without --groups", why="One core needs no partition", next_step="Add --groups")
        if self.method not in get_args(Method):
            what = f"--partition {self.method[:40]} is unknown"
            raise UsageError(what, next_step=f"Choose from {', '.join(get_args(Method))}")
        if self.method == "balanced":
            by_score = replace(self, cores=None, groups=None, inputs=None, method="both", start=None)
            if replace(by_score, core_storage_bytes=None) != plain:
                why = "The balanced partition knows no score"
                raise UsageError("Options of the split score with --partition balanced", why=why)


_OPTION = {
    "inputs": "--inputs",
    "method": "--partition",
    "coefficients": "--score",
    "threshold": "--threshold",
    "node_limit": "--max-nodes",
    "start": "--start",
    "add_groups": "--add-groups",
    "core_storage_bytes": "--core-storage",
    "period_ms": "--period-ms",
}


@dataclass(frozen=True)
class PartitionRun:
    """One partition as it was compiled and run, by `method`: balanced, score or absolute.

    `max_rel_error` as in `Checked`, None where nothing was compared.
    """

    method: str
    placed: TimedPartition
    took_s: float
    max_rel_error: float | None

    @property
    def partition(self) -> CorePartition:
        """Which nodes each group computes."""
        return self.placed.partition

    @property
    def timed(self) -> TimedSystem:
        """Its programs and their times."""
        return self.placed.timed


@dataclass(frozen=True)
class CoresRun:
    """A network on core groups; `single_core_ps` is what one core takes for an input."""

    source: CompiledModel
    single_core_ps: int
    nodes: NetworkNodes
    runs: tuple[PartitionRun, ...]


def run_on_cores(source: CompiledModel, choices: CoreChoices, with_values: bool) -> CoresRun:
    """Partitions a network that was compiled for one core, and runs it; raises InputError for what cannot be."""
    from device_agents.emulated_npu.many_cores.core_groups import fabric_of, form_groups

    with errors_of_user():
        fabric = fabric_of(source.compiled.machine, choices.core_storage_bytes)
        groups = form_groups(fabric, "1" if choices.groups is None else choices.groups, choices.cores)
        rule = None if choices.method == "balanced" else _split_rule(choices)
        ground = _ground(source, groups, choices)
    with errors_of_compiler():
        runs = tuple(_runs(ground, groups, fabric, rule, choices))
    if with_values and can_compare(source):
        with errors_of_compiler():
            runs = tuple(replace(each, max_rel_error=system_error(source.model, each.timed.compiled)) for each in runs)
    return CoresRun(source, ground.single_core_ps, ground.nodes, runs)


def _ground(source: CompiledModel, groups: Sequence[CoreGroup], choices: CoreChoices) -> PartitionTask:
    """What is best for a core that shares its memories with others is not what is best for one alone."""
    from device_agents.emulated_npu.compiler.pipeline import compile_model
    from device_agents.emulated_npu.inference import time_program
    from device_agents.emulated_npu.many_cores.core_groups import contended, traversal_from
    from device_agents.emulated_npu.many_cores.network_nodes import network_nodes
    from device_agents.emulated_npu.many_cores.stage_balancing import PartitionTask

    machine, options = source.compiled.machine, source.compiled.options
    alone = time_program(source.compiled.program, machine).timing
    crowded = contended(machine, groups)
    compiled, timing = source.compiled, alone
    if crowded != machine:
        compiled = compile_model(source.model.content, crowded, options)
        timing = time_program(compiled.program, crowded).timing
    nodes = network_nodes(compiled.graph, crowded, timing)
    traversal = traversal_from(nodes, choices.start)
    limit_ps = None if choices.cycle_budget is None else choices.cycle_budget * alone.cycle_ps
    return PartitionTask(
        compiled.graph, machine, options, nodes, traversal, alone.makespan_ps, choices.inputs, limit_ps
    )


def _runs(
    ground: PartitionTask, groups: Sequence[CoreGroup], fabric: Fabric, rule: SplitRule | None, choices: CoreChoices
) -> Iterator[PartitionRun]:
    """The balanced partition first, on the same groups as that by score, those that were added included."""
    from device_agents.emulated_npu.emulator_errors import DoesNotFit
    from device_agents.emulated_npu.many_cores.stage_balancing import balance_stages, compile_and_time
    from device_agents.emulated_npu.partition.greedy import partition_by_score, partition_by_score_adding_groups

    by_score = None
    if rule is not None and (len(groups) > 1 or choices.says_of_score):
        if choices.add_groups:
            by_score = partition_by_score_adding_groups(ground.nodes.graph, ground.traversal, groups, rule, fabric)
        else:
            by_score = partition_by_score(ground.nodes.graph, ground.traversal, groups, rule)
    if choices.method in ("both", "balanced"):
        start = time.perf_counter()
        try:
            placed = balance_stages(ground, groups if by_score is None else by_score.groups)
            yield PartitionRun("balanced", placed, time.perf_counter() - start, None)
        except DoesNotFit as error:  # it needs a node in every group; by score groups may stay empty
            if by_score is None:
                raise
            note(f"No balanced partition: {error.what}: {error.why}")
    if by_score is not None:
        start = time.perf_counter()
        placed = compile_and_time(ground, by_score)
        method = "absolute" if choices.method == "absolute" else "score"
        yield PartitionRun(method, placed, time.perf_counter() - start, None)


def _split_rule(choices: CoreChoices) -> SplitRule:
    from device_agents.emulated_npu.partition.split_walk import SplitRule

    period_s = None if choices.period_ms is None else choices.period_ms / 1000
    return SplitRule(_score(choices), choices.threshold, choices.node_limit, period_s)


def _score(choices: CoreChoices) -> ShareScore | AbsoluteScore:
    """The split score with the coefficients that were given; raises UsageError for others than it has."""
    from device_agents.emulated_npu.partition.score import AbsoluteScore, ShareScore

    names = _ABSOLUTE if choices.method == "absolute" else _SHARE
    given: dict[str, float] = {}
    for text in choices.coefficients:
        name, _, value = text.partition("=")
        if name not in names:
            step = f"Choose from {', '.join(names)}: --score compute=0.5"
            raise UsageError(f"--score {text[:40]} names no coefficient", next_step=step)
        try:
            given[names[name]] = float(value)
        except ValueError:
            raise UsageError(f"--score {text[:40]} is no number", next_step="Write --score compute=0.5") from None
    return AbsoluteScore(**given) if choices.method == "absolute" else ShareScore(**given)
