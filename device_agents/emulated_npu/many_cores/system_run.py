"""Runs the programs of a system of core groups functionally, with values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device_agents.emulated_npu.arrays import Array
from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.stream_execution import (
    GroupProgram,
    StreamRun,
    SystemRun,
    run_cores,
    run_stream,
)


def run_system(
    compiled: CompiledSystem, weights: Mapping[str, Array], inputs: Mapping[str, Array], *, order: Order = "program"
) -> SystemRun:
    """Run all cores functionally: `weights` by initializer, `inputs` by input of the network.

    Raises DoesNotFit if the host lacks memory, EmulatorError for a machine that has timing but no values, and the
    errors of `run_stream`.
    """
    return run_cores(_programs(compiled, weights), compiled.machine, inputs, order=order)


def run_system_on_stream(
    compiled: CompiledSystem,
    weights: Mapping[str, Array],
    stream: Sequence[Mapping[str, Array]],
    *,
    order: Order = "program",
) -> StreamRun:
    """Run all cores on a stream of inputs, several at the same time; raises as `run_system`."""
    return run_stream(_programs(compiled, weights), compiled.machine, stream, order=order)


def _programs(compiled: CompiledSystem, weights: Mapping[str, Array]) -> list[GroupProgram]:
    return [
        GroupProgram({core.core: core.program for core in group.cores}, group.image(weights))
        for group in compiled.groups
    ]
