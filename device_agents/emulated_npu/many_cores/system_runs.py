"""Runs a network on several core groups: its values, and its time for a single input and for a stream of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.emulator_errors import BudgetExceeded
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.stream_execution import GroupProgram, run_stream
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.reports.pipeline_report import PipelineReport, pipeline_report
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import NO_LIMIT_PS, StreamTiming, simulate_cores

MOST_ITEMS = 40_000_000
"""The most items of all cores and inputs that are timed; they take some minutes."""


@dataclass(frozen=True)
class TimedSystem:
    """A compiled network, the steps of its cores for an input, and its times: for a single input and in a stream."""

    compiled: CompiledSystem
    cores: tuple[CoreSteps, ...]
    alone: StreamTiming
    stream: StreamTiming
    report: PipelineReport

    @property
    def items(self) -> int:
        """The number of items that all cores issue for one input."""
        return sum(len(core.steps) for core in self.cores)


def core_steps(compiled: CompiledSystem) -> tuple[CoreSteps, ...]:
    """Return the steps of every core for an input, with loops unrolled; groups are numbered in their order."""
    return tuple(
        CoreSteps(core.core, number, tuple(sequence(core.program.code, layer_of=core.program.layer_of)))
        for number, group in enumerate(compiled.groups)
        for core in group.cores
    )


def enough_inputs(groups: int) -> int:
    """Return the number of inputs that fill a pipeline, keep it full at least as long, and drain it."""
    return 4 * groups + 4


def time_system(
    compiled: CompiledSystem, single_core_ps: int, inputs: int | None = None, limit_ps: int | None = None
) -> TimedSystem:
    """Time a compiled network for one input and a stream; one core takes `single_core_ps` for an input.

    The stream has `inputs` inputs, but at least `enough_inputs`, because shorter ones have no steady state. `limit_ps`
    bounds the time of the single input.

    Raises BudgetExceeded for more items than can be timed, and the errors of `simulate_cores`.
    """
    count = max(inputs or 0, enough_inputs(len(compiled.groups)))
    cores = core_steps(compiled)
    items = sum(len(core.steps) for core in cores)
    if items * count > MOST_ITEMS:
        what = f"{count} inputs of {items} items are {count * items} to be timed"
        raise BudgetExceeded(what, f"the limit is {MOST_ITEMS}", "Time fewer inputs, or a smaller network")
    depths = {number: group.depth for number, group in enumerate(compiled.groups)}
    costs = CostModel(compiled.machine)
    limit = NO_LIMIT_PS if limit_ps is None else limit_ps
    alone = simulate_cores(cores, compiled.machine, inputs=1, depths=depths, limit_ps=limit, costs=costs)
    stream = simulate_cores(cores, compiled.machine, inputs=count, depths=depths, costs=costs)
    return TimedSystem(compiled, cores, alone, stream, pipeline_report(stream, alone, single_core_ps))


def run_system(
    compiled: CompiledSystem, weights: Mapping[str, Array], inputs: Mapping[str, Array], *, order: Order = "program"
) -> Mapping[str, Array]:
    """Run all cores on one input of the network: `weights` by initializer, `inputs` by input; return the outputs.

    Raises DoesNotFit if the host lacks memory, EmulatorError for a machine that has timing but no values, and the
    errors of `run_stream`.
    """
    (outputs,) = run_stream(group_programs(compiled, weights), compiled.machine, (inputs,), order=order)
    return outputs


def group_programs(compiled: CompiledSystem, weights: Mapping[str, Array]) -> list[GroupProgram]:
    """Return the programs and constants of every group, for `run_stream`."""
    return [
        GroupProgram(
            {core.core: core.program for core in group.cores},
            group.image(weights),
            {core.core: core.preload for core in group.cores if core.preload is not None},
        )
        for group in compiled.groups
    ]
