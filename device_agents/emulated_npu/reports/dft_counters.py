"""Counters of convolutions by odd DFT, from the commands of a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.odd_blocks import TransformedConvolution
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.timing.cost.command_cost import macs
from device_agents.emulated_npu.unit_commands import Command, Function, Space
from device_agents.emulated_npu.unit_settings import Binary


@dataclass(frozen=True)
class DftCounters:
    """The counters of one convolution.

    - `length`: of a block. `kernel_level`: the memory that holds the kernel DFTs.
    - `kernel_transforms`: two-dimensional kernel DFTs that the setup computes.
    - `bins`: frequencies of a block whose kernel DFTs are fetched.
    - `multiplications`: real multiplications of the pointwise product in a run.
    """

    name: str
    length: int
    blocks: int
    kernel_level: Space
    kernel_transforms: int
    bins: int
    multiplications: int


def dft_counters(compiled: Compiled) -> tuple[DftCounters, ...]:
    """Return the counters of every convolution by DFT of a compiled network, in network order."""
    program = compiled.program
    runs = _by_layer(program.code, program.layer_of)
    setup = _by_layer(program.setup.code, program.setup.layer_of)
    return tuple(_counted(one, runs, setup) for one in compiled.graph.dft)


_Commands = Mapping[int, list[Command]]


def _by_layer(code: bytes, layer_of: tuple[int, ...]) -> _Commands:
    found: dict[int, list[Command]] = defaultdict(list)
    for step in sequence(code, layer_of=layer_of) if code else ():
        if isinstance(step.item, Command):
            found[step.item.layer].append(step.item)
    return found


def _counted(one: TransformedConvolution, runs: _Commands, setup: _Commands) -> DftCounters:
    blocks = one.blocks
    complex_of_kernels = _transformed(_of(setup, one.kernels)) // 2
    products = list(_of(runs, one.products))
    level, kernels = _kernel_dfts(_of(setup, one.kernels))
    fetched = {part for command in products for part in _fetched(command, level, kernels)}
    return DftCounters(
        one.name,
        blocks.length,
        blocks.number,
        level,
        complex_of_kernels // blocks.stored,
        sum(size for _, size in fetched) // (2 * blocks.kernel_transforms),
        sum(map(_multiplications, products)),
    )


def _of(commands: _Commands, layers: Iterable[int]) -> Iterator[Command]:
    for layer in layers:
        yield from commands.get(layer, ())


def _transformed(commands: Iterable[Command]) -> int:
    return sum(command.target.descriptor.elements for command in commands if command.function is Function.CONVOLVE)


def _multiplications(command: Command) -> int:
    """Return the multiplications of a product, which runs on the vector unit if groups have one channel."""
    if command.function is Function.BINARY:
        return command.target.descriptor.elements if command.settings.mode == Binary.MULTIPLY else 0
    return macs(command)


def _kernel_dfts(setup: Iterable[Command]) -> tuple[Space, range]:
    """Return the memory that holds the kernel DFTs of a convolution, and their addresses."""
    stores = [command.target for command in setup if command.function is Function.STORE]
    (level,) = {target.descriptor.space for target in stores}
    return level, range(min(target.address for target in stores), max(target.span[1] for target in stores))


def _fetched(command: Command, level: Space, kernels: range) -> Iterator[tuple[int, int]]:
    """Yield address and number of elements of every part of the kernel DFTs that a load fetches."""
    source = command.first
    if command.function is not Function.LOAD or source is None or source.descriptor.space is not level:
        return
    if source.address in kernels:
        descriptor = source.descriptor
        batch = descriptor.dims[0] if len(descriptor.dims) > 2 else 1
        for place in range(batch):
            yield source.address + place * descriptor.strides[0] * (batch > 1), descriptor.elements // batch
