"""Runs the programs of a system of core groups functionally, with values."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.stream_execution import GroupProgram, SystemRun, run_cores
from device_agents.emulated_npu.numpy_types import Array


def run_system(
    compiled: CompiledSystem, weights: Mapping[str, Array], inputs: Mapping[str, Array], *, order: Order = "program"
) -> SystemRun:
    """Run all cores functionally: `weights` by initializer, `inputs` by input of the network.

    Raises DoesNotFit if the host lacks memory, EmulatorError for a machine that has timing but no values, and the
    errors of `run_cores`.
    """
    return run_cores(group_programs(compiled, weights), compiled.machine, inputs, order=order)


def group_programs(compiled: CompiledSystem, weights: Mapping[str, Array]) -> list[GroupProgram]:
    """Return the programs and constants of every group, for `run_cores` and `run_stream`."""
    return [
        GroupProgram({core.core: core.program for core in group.cores}, group.image(weights))
        for group in compiled.groups
    ]
