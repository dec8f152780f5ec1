"""Load a network under its own names, or a program file, for the emulated NPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onnx import load_model_from_string

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.odd_dft.choice import DirectConvolution, direct_convolutions
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.isa.program import MAGIC, Program
from device_agents.emulated_npu.machine import Machine, preset_names
from device_agents.emulated_npu.reports.dft_counters import DftCounters, dft_counters
from harness.errors import InputError, UsageError, reason_of
from harness.files import read_input
from harness.measure.progress import Observer, begin, ignore
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import BUILTIN_PREFIX, ModelReference
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.network.reading.limited_process import allow_for_size
from harness.npu.activation_tables import read_tables, with_tables
from harness.npu.compiling_effort import compiling_effort
from harness.npu.error_translation import errors_of_forced_choices, errors_of_user
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import DEFAULT, MachineChoice, Options
from harness.text import unused_name

_MAX_PROGRAM_BYTES = 1 << 28
_NAME_A_FILE = "Name an ONNX file, builtin:NAME, or a file of `harness npu compile -o`"
Note = Callable[[str], None]


@dataclass(frozen=True)
class CompiledModel:
    """A compiled network, and how long compilation took."""

    model: NetworkModel
    compiled: Compiled
    compile_s: float

    @property
    def operators(self) -> tuple[str, ...]:
        """The ONNX operators of each hardware layer, joined by +; the machine's function for a layer without a node."""
        return tuple(map(self.model.operators_of, self.compiled.graph.layers))

    @property
    def onnx_nodes(self) -> int:
        """The nodes of the network."""
        return self.compiled.graph.node_count + self.model.free_nodes

    @property
    def free_nodes(self) -> int:
        """The nodes that take no time."""
        return len(self.compiled.graph.free_nodes) + self.model.free_nodes

    @property
    def passes(self) -> int:
        """The passes of all chains."""
        return sum(plan.passes for plan in self.compiled.plans)

    @property
    def effort(self) -> float:
        """About how long a compilation takes, as `compiling_effort`."""
        return compiling_effort(self.compiled.graph.layers, self.compiled.machine)

    @property
    def predicted_s(self) -> float:
        """The time that the compiler predicts."""
        return sum(decision.chosen.predicted_ps for decision in self.compiled.decisions) / PS_PER_S

    @cached_property
    def by_dft(self) -> tuple[DftCounters, ...]:
        """The convolutions that are computed by DFT."""
        return dft_counters(self.compiled) if self.compiled.graph.dft else ()

    @property
    def stayed_direct(self) -> tuple[DirectConvolution, ...]:
        """The convolutions that cannot be computed by DFT although it is forced, with the reason."""
        is_forced = self.compiled.options.conv_algorithm == "odd-dft"
        return direct_convolutions(self.compiled.graph) if is_forced else ()


@dataclass(frozen=True)
class LoadedProgram:
    """A program and the machine that runs it; `source` is None for a program file. `reference` is the user's."""

    name: str
    program: Program
    machine: Machine
    source: CompiledModel | None = None
    reference: str = ""

    @classmethod
    def of(cls, source: CompiledModel, reference: str = "") -> LoadedProgram:
        """Return the program of a compiled network."""
        return cls(source.model.name, source.compiled.program, source.compiled.machine, source, reference)


def load(
    reference: str,
    machine: MachineChoice,
    options: Options,
    dims: Mapping[str, int],
    tables: Sequence[str] = (),
    note: Note = lambda _: None,
    observe: Observer = ignore,
) -> LoadedProgram:
    """Compile a network, or read a program file together with its machine; `tables` are activations NAME=FILE.csv.

    `note` receives a line if a part of the network is skipped, `observe` the progress.

    Raises UsageError for compiler options that contradict each other or that are given with a program file.
    """
    if not is_program(reference):
        return LoadedProgram.of(compile_reference(reference, machine, options, dims, tables, note, observe), reference)
    if options != DEFAULT or dims or tables:
        why = "A program file is already compiled"
        raise UsageError(
            "Compiler options, --dim and --activation need a network", why=why, next_step="Name an ONNX file"
        )
    program = read_program(Path(reference))
    if machine == MachineChoice() and program.machine not in preset_names():
        what = f"The program was compiled for {program.machine}, which is not a built-in machine"
        raise InputError(what, next_step="Give the file of that machine with --machine")
    return LoadedProgram(reference, program, machine.load(program.machine))


def compile_reference(
    reference: ModelReference,
    machine: MachineChoice,
    options: Options,
    dims: Mapping[str, int],
    tables: Sequence[str] = (),
    note: Note = lambda _: None,
    observe: Observer = ignore,
) -> CompiledModel:
    """Read a network and compile it; raises as `load_model`, `compile_network` and `activation_tables`."""
    with errors_of_user():
        options.check()
    target = machine.load()
    activations = read_tables(tables)
    begin(observe, "importing")
    return compile_network(with_tables(load_model(reference, dims, note), activations), target, options, observe)


def load_model(reference: ModelReference, dims: Mapping[str, int], note: Note = lambda _: None) -> NetworkModel:
    """Read a network; raises as `load_networks`. `note` receives a line if a part of it is skipped."""
    (network,) = load_networks([reference], dims, note)
    allow_for_size(network.stored_bytes)
    return network_model(network, dims)


def compile_network(
    model: NetworkModel, machine: Machine, options: Options, observe: Observer = ignore
) -> CompiledModel:
    """Compile a network; raises InputError if the machine cannot run it."""
    start = time.perf_counter()
    with errors_of_user(), errors_of_forced_choices(options):
        options.check()
        graph = import_model(model.content, machine.of_core(0).mfu.columns)
        begin(observe, "compiling", compiling_effort(graph.layers, machine))
        compiled = compile_graph(graph, machine, options)
    return CompiledModel(model, compiled, time.perf_counter() - start)


def network_model(network: Network, dims: Mapping[str, int]) -> NetworkModel:
    """Return a network that was read with the values `dims`, without its weights, under its own names."""
    assembled = assemble_network(network)
    proto = load_model_from_string(assembled.content)
    tensors = _tensor_names(network, assembled, [tensor.name for tensor in proto.graph.initializer])
    by_index = {node.index: node.name for node in network.nodes}
    for node in proto.graph.node:
        node.name = by_index[assembled.names.nodes[node.name]]
        for names in (node.input, node.output):
            names[:] = [tensors.get(name, name) for name in names]
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.name = tensors[value.name]
    found = {name: tensors[emitted] for emitted, name in _origins(network, assembled).items()}
    return NetworkModel(
        name=network.name,
        content=proto.SerializeToString(deterministic=True),
        weights=tuple(replace(spec, name=tensors[spec.name]) for spec in assembled.weights),
        inputs=tuple(replace(spec, name=tensors[spec.name]) for spec in assembled.inputs),
        operators={node.name: node.op for node in network.nodes},
        free_nodes=len(network.free),
        constants={tensors[emitted]: name for emitted, name in assembled.names.constants.items()},
        dims=dims,
        file_outputs={name: found.get(tensor, tensor) for name, tensor in network.file_outputs.items()},
    )


def _origins(network: Network, assembled: AssembledModel) -> dict[str, str]:
    """Map the name of each input and computed tensor in the model to its name in the network."""
    inputs = (spec.name for spec in assembled.inputs)
    return {**dict(zip(inputs, network.inputs, strict=True)), **assembled.names.tensors}


def _tensor_names(network: Network, assembled: AssembledModel, constants: Iterable[str]) -> dict[str, str]:
    """Map the name of each tensor in the model to its name in the network; `constants` have none there and keep theirs.

    Outputs have the name of the file's first output that they are. A name that is used already gets `'` at its end.
    """
    titles = {tensor: name for name, tensor in reversed(list(network.file_outputs.items()))}
    named = {
        emitted: titles.get(name, name) if emitted in assembled.names.tensors else name
        for emitted, name in _origins(network, assembled).items()
    }
    used: set[str] = set()
    return {emitted: unused_name(name, used) for emitted, name in {**named, **{one: one for one in constants}}.items()}


def is_program(reference: str) -> bool:
    """Return whether the reference names a file that begins as programs of the emulated NPU do."""
    if reference.startswith(BUILTIN_PREFIX):
        return False
    try:
        if not Path(reference).is_file():
            return False
        with Path(reference).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise InputError(f"{reference} cannot be read", why=reason_of(error), next_step=_NAME_A_FILE) from error


def read_program(path: Path) -> Program:
    """Read a program file; raises InputError if it cannot be read or is not a valid program."""
    content = read_input(path, _MAX_PROGRAM_BYTES, _NAME_A_FILE)
    with errors_of_user():
        return Program.from_bytes(content)
