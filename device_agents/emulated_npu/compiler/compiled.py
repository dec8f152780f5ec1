"""The results of a compilation: programs, and the constants that the loader writes to memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, LazyConstant
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import pack_weights
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import PackedWeights, PlainConstant
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.isa.program import Preload, Program
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType, Space

if TYPE_CHECKING:
    from device_agents.emulated_npu.numpy_types import Array


@dataclass(frozen=True)
class Compiled:
    """A network compiled for one core: its program, its graph, the decisions made, and its constants in memory."""

    program: Program
    graph: Graph
    machine: Machine
    options: Options
    decisions: tuple[Decision, ...]
    packed: tuple[PackedWeights, ...]
    plain: tuple[PlainConstant, ...]

    @property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the hardware layers of each chain, in order."""
        return tuple(dict.fromkeys(tuple(layer.index for layer in plan.layers) for plan in self.plans))

    @property
    def plans(self) -> tuple[ChainPlan, ...]:
        """The chains in the order in which they run."""
        return tuple(plan for decision in self.decisions for plan in decision.chains)

    def image(self, arrays: Mapping[str, Array]) -> Iterator[tuple[int, Array]]:
        """Yield what the loader writes to DDR before the first run: (address, array), from initializers by name.

        Raises EmulatorError for a machine whose data type has no values.
        """
        return _image(self.machine, self.packed, self.plain, arrays)


@dataclass(frozen=True)
class CompiledCore:
    """The program of one core, with the layer names of the whole network. `preload` loads weights that stay in SB."""

    core: int
    program: Program
    decisions: tuple[Decision, ...]
    preload: Preload | None = None


@dataclass(frozen=True)
class CompiledGroup:
    """A core group: its cores, its stage in the pipeline, and the constants in its part of the chip's memory.

    `depth` is the number of inputs for which it holds what it receives; `received_bytes` is for one input. `spaces` has
    the memory of each value.
    """

    cores: tuple[CompiledCore, ...]
    chip: int
    stage: int
    depth: int
    received_bytes: int
    machine: Machine
    packed: tuple[PackedWeights, ...]
    plain: tuple[PlainConstant, ...]
    spaces: Mapping[str, Space]

    @property
    def resident_bytes(self) -> int:
        """The weights that stay in the SBs of its cores from input to input."""
        return sum(core.preload.stop - core.preload.start for core in self.cores if core.preload is not None)

    @property
    def ddr_bytes(self) -> int:
        """The DDR of the chip that the group uses."""
        return self.cores[0].program.footprint.ddr_bytes

    def image(self, arrays: Mapping[str, Array]) -> Iterator[tuple[int, Array]]:
        """Yield what the loader writes to its DDR before the first run, as `Compiled.image`."""
        return _image(self.machine, self.packed, self.plain, arrays)


@dataclass(frozen=True)
class CompiledSystem:
    """A network compiled for several core groups, in the order of the assignment.

    The layers of `graph` are slices where the cores of a group share a layer; `origins` are the indices of the layers
    that they are parts of.
    """

    graph: Graph
    origins: tuple[int, ...]
    machine: Machine
    options: Options
    assignment: Assignment
    groups: tuple[CompiledGroup, ...]

    @property
    def cores(self) -> tuple[CompiledCore, ...]:
        """The cores of all groups, in their order."""
        return tuple(core for group in self.groups for core in group.cores)


def _image(
    machine: Machine, packed: Iterable[PackedWeights], plain: Iterable[PlainConstant], arrays: Mapping[str, Array]
) -> Iterator[tuple[int, Array]]:
    import numpy as np

    if machine.data_type is not DataType.FLOAT32:
        own = machine.data_type.name.lower()
        what = f"{machine.name} computes in {own}: a float32 network has timing there but no values"
        raise EmulatorError(
            what, next_step=f"Convert the network to {own}, or run on a preset of float32, such as edge"
        )
    for item in packed:
        weights = _evaluate(item.layer.fixed_weights, arrays)
        scale = item.layer.scale_shift
        vectors = None if scale is None else _evaluate(scale, arrays)
        yield item.address, np.frombuffer(pack_weights(item.layer, item.blocks, weights, vectors), np.uint8)
    for constant in plain:
        array = _evaluate(constant.constant, arrays).reshape(constant.shape)
        yield constant.address, np.ascontiguousarray(array.transpose(constant.order))


def _evaluate(constant: LazyConstant, arrays: Mapping[str, Array]) -> Array:
    result: Array = constant.compute(*(arrays[name] for name in constant.sources))
    return result
