"""What the `harness npu` commands work on: a network under its own names, or a program file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import options
from harness.cli.npu_errors import errors_of_forced_choices, errors_of_user, shortened
from harness.cli.npu_options import choose_machine
from harness.errors import InputError, UsageError, reason_of
from harness.files import read_file
from harness.network.assemble import ArraySpec, AssembledModel, assemble_network
from harness.network.models import BUILTIN_PREFIX, load_networks

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.options import Options
    from device_agents.emulated_npu.compiler.pipeline import Compiled
    from device_agents.emulated_npu.isa.program import Program
    from device_agents.emulated_npu.machine import Machine
    from harness.network.network import Network

_MAX_PROGRAM_BYTES = 1 << 28


@dataclass(frozen=True)
class NetworkModel:
    """A network as it is compiled: without its weights, and with the names of tensors and nodes of its file.

    `operators` has ONNX's operator of every node by name; `free_nodes` counts nodes of the file that were gone
    before anything was compiled, because they are constant, unused or an identity.
    """

    name: str
    content: bytes
    weights: tuple[ArraySpec, ...]
    inputs: tuple[ArraySpec, ...]
    operators: Mapping[str, str]
    free_nodes: int


@dataclass(frozen=True)
class CompiledModel:
    """A compiled network, and how long compiling took."""

    model: NetworkModel
    compiled: Compiled
    compile_s: float

    @property
    def operators(self) -> tuple[str, ...]:
        """ONNX's operators of every hardware layer, joined by +; the machine's function where it has no node."""
        return tuple(
            "+".join(self.model.operators[node] for node in layer.nodes) or layer.function.name.lower()
            for layer in self.compiled.graph.layers
        )


def load_model(reference: str, dims: Sequence[str] | None) -> NetworkModel:
    """Reads a network; raises as `load_networks`."""
    (network,) = load_networks([reference], options.parse_dims(dims))
    return network_model(network)


def network_model(network: Network) -> NetworkModel:
    """A network without its weights, under its own names."""
    from onnx import load_model_from_string

    assembled = assemble_network(network)
    proto = load_model_from_string(assembled.content)
    tensors = _tensor_names(network, assembled, {tensor.name for tensor in proto.graph.initializer})
    by_index = {node.index: node.name for node in network.nodes}
    for node in proto.graph.node:
        node.name = by_index[assembled.names.nodes[node.name]]
        for names in (node.input, node.output):
            names[:] = [tensors.get(name, name) for name in names]
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = tensors[value.name]
    return NetworkModel(
        name=network.name,
        content=proto.SerializeToString(deterministic=True),
        weights=assembled.weights,
        inputs=tuple(replace(spec, name=tensors[spec.name]) for spec in assembled.inputs),
        operators={node.name: node.op for node in network.nodes},
        free_nodes=len(network.free),
    )


def _tensor_names(network: Network, assembled: AssembledModel, constants: Iterable[str]) -> dict[str, str]:
    """The network's name of every computed tensor by its name in the model, where `constants` keep theirs."""
    inputs = (spec.name for spec in assembled.inputs)
    own = {**assembled.names.tensors, **dict(zip(inputs, network.inputs, strict=True))}
    taken, found = set(constants), {}
    for emitted, name in own.items():
        while name in taken:
            name = f"{name}'"
        taken.add(name)
        found[emitted] = name
    return found


def is_program(reference: str) -> bool:
    """Whether the reference is a file that begins as programs of the emulated NPU do."""
    from device_agents.emulated_npu.isa.program import MAGIC

    if reference.startswith(BUILTIN_PREFIX):
        return False
    try:
        if not Path(reference).is_file():
            return False
        with Path(reference).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise _unreadable(reference, error) from error


def read_program(path: Path) -> Program:
    """Reads a program file; raises InputError."""
    from device_agents.emulated_npu.isa.program import Program

    try:
        content = read_file(path, _MAX_PROGRAM_BYTES)
    except OSError as error:
        raise _unreadable(str(path), error) from error
    with errors_of_user():
        return Program.from_bytes(content)


def _unreadable(path: str, error: OSError) -> InputError:
    step = "Name an ONNX file, builtin:NAME, or a file of `harness npu compile -o`"
    return InputError(f"{shortened(path)} cannot be read", why=reason_of(error), next_step=step)


def machine_of(program: Program, preset: str | None, file: Path | None) -> Machine:
    """The machine of the options, else that for which the program was compiled."""
    from device_agents.emulated_npu.machine import preset_names

    if preset is None and file is None and program.machine not in preset_names():
        what = f"The program was compiled for {shortened(program.machine)}, which is no preset"
        raise InputError(what, next_step="Give the file of that machine by --machine")
    return choose_machine(preset, file, program.machine)


def refuse_choices(choices: Options, dims: Sequence[str] | None) -> None:
    """Raises UsageError for options that a program, which is compiled already, cannot heed."""
    from device_agents.emulated_npu.compiler.options import DEFAULT

    if choices != DEFAULT or dims:
        why = "A program file is compiled already"
        raise UsageError("Options of the compiler and --dim need a network", why=why, next_step="Name an ONNX file")


def compile_network(model: NetworkModel, machine: Machine, choices: Options) -> CompiledModel:
    """Compiles; raises InputError where the machine cannot run the network."""
    from device_agents.emulated_npu.compiler.pipeline import compile_model

    start = time.perf_counter()
    with errors_of_user(), errors_of_forced_choices(choices):
        compiled = compile_model(model.content, machine, choices)
    return CompiledModel(model, compiled, time.perf_counter() - start)
