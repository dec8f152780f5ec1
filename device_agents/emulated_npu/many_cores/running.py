"""Runs a network that was compiled for several core groups on its values."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.many_cores import GroupProgram, SystemRun, run_cores
from device_agents.emulated_npu.execution.memory import Array
from device_agents.emulated_npu.many_cores.system import CompiledSystem


def run_system(
    compiled: CompiledSystem, weights: Mapping[str, Array], inputs: Mapping[str, Array], *, order: Order = "program"
) -> SystemRun:
    """Runs all cores functionally: `weights` by initializer, `inputs` by input of the network.

    Raises DoesNotFit where the host lacks memory, EmulatorError for a machine that has timing but no values, and what
    `run_cores` raises.
    """
    groups = [
        GroupProgram({core.core: core.program for core in group.cores}, group.image(weights))
        for group in compiled.groups
    ]
    return run_cores(groups, compiled.machine, inputs, order=order)
