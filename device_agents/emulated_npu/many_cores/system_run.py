"""Runs the programs of a system of core groups functionally, with values."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.stream_execution import GroupProgram, Preload, run_stream
from device_agents.emulated_npu.numpy_types import Array


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
            {core.core: Preload(core.preload, core.resident) for core in group.cores if core.preload},
        )
        for group in compiled.groups
    ]
