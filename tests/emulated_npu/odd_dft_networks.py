"""Convolutions compiled by DFT of odd blocks, beside ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

from networks_on_npu import NetworkCase, execute, network_of, relative_error
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.unit_commands import Command

EDGE = find_machine("edge")
DIRECT = Options(conv_algorithm="direct")


def convolution(shape: Sequence[int], weights: Sequence[int], **attributes: Any) -> NetworkCase:
    """Return a network of one convolution with bias."""
    constants = {"w": values(weights, 1), "b": values((weights[0],), 2)}
    return network_of([node("Conv", "x w b", "y", **attributes)], {"x": values(shape)}, constants, ["y"])


def by_dft(network: NetworkCase, block: int | None = None, machine: Machine = EDGE, **options: Any) -> Compiled:
    """Return the network compiled with every possible convolution by DFT."""
    return compile_model(network.model, machine, Options(conv_algorithm="odd-dft", dft_block=block, **options))


def commands_of(compiled: Compiled) -> list[Command]:
    """Return the commands of a run, loops unrolled."""
    return _commands(compiled.program.code, compiled.program.layer_of)


def setup_commands_of(compiled: Compiled) -> list[Command]:
    """Return the commands of the setup."""
    return _commands(compiled.program.setup.code, compiled.program.setup.layer_of)


def _commands(code: bytes, layer_of: tuple[int, ...]) -> list[Command]:
    return [step.item for step in sequence(code, layer_of=layer_of) if isinstance(step.item, Command)]


def error_of(network: NetworkCase, compiled: Compiled) -> float:
    """Return the largest difference from ONNX Runtime, relative to the largest value."""
    return relative_error(execute(compiled, network), network.expected)
