"""Totals of a run: bytes by memory and class of tensor, multiply-adds, peak memory, instructions, energy.

The energy is every multiply-add, operation of a lane and byte of a memory times its figure. Bytes of NB and SB are the
fewest that the buffers must move (`sram_traffic` in timing/cost/matrix_cost.py); transfers fill and empty them as well.
Bytes of DDR and the last-level cache are payload, compressed as they are read. The links of a chip are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Literal

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.planning.chains.tiling import Geometry
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import energy_figures
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.matrix_cost import sram_traffic
from device_agents.emulated_npu.timing.cost.vector_cost import vector_operations
from device_agents.emulated_npu.timing.occupancy import occupancy
from device_agents.emulated_npu.timing.single_core import Schedule
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

TensorClass = Literal["weights", "activations", "input_output", "halo_copies"]
TENSOR_CLASSES: tuple[TensorClass, ...] = ("weights", "activations", "input_output", "halo_copies")
_CLASS_OF_OPCODE = {0x00: "control", 0x10: "config", 0x20: "io", 0x30: "mfu", 0x40: "vfu"}
_PJ_PER_UJ = 1e6
_UJ_PER_MW_PS = 1e-9


@dataclass(frozen=True)
class MovedBytes:
    """Bytes read from and written to a memory."""

    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: MovedBytes) -> MovedBytes:
        """Return the sum."""
        return MovedBytes(self.read_bytes + other.read_bytes, self.written_bytes + other.written_bytes)


def moved_by_memory(steps: Iterable[IssuedStep], costs: CostModel) -> Mapping[Space, MovedBytes]:
    """Return the payload bytes of DDR and the last-level cache."""
    found = {Space.DDR: MovedBytes(), Space.LLC: MovedBytes()}
    for step in steps:
        if isinstance(step.item, Command):
            for space, read, written in costs.cost(step.item).traffic:
                found[space] += MovedBytes(read, written)
    return found


def moved_by_class(
    steps: Iterable[IssuedStep], compiled: Compiled, costs: CostModel
) -> Mapping[TensorClass, MovedBytes]:
    """Return the payload bytes by class of tensor; the first three classes sum to `moved_by_memory`.

    "weights" are all constants, "input_output" the inputs and outputs of the network, "activations" the tensors that
    layers leave in DDR or the last-level cache for others, "halo_copies" the copies between NB and the auxiliary
    buffer.
    """
    classes = _AddressClasses(compiled)
    found: dict[TensorClass, MovedBytes] = dict.fromkeys(TENSOR_CLASSES, MovedBytes())
    for step in steps:
        command = step.item
        if not isinstance(command, Command):
            continue
        is_packed = command.loads_packed_weights
        for space, read, written in costs.cost(command).traffic:
            if read:
                source = next(operand for operand in command.sources if operand.descriptor.space is space)
                kind = "weights" if is_packed else classes.kind(source, command.layer)
                found[kind] += MovedBytes(read_bytes=read)
            if written:
                kind = "weights" if is_packed else classes.kind(command.target, command.layer)
                found[kind] += MovedBytes(written_bytes=written)
        if command.function is Function.COPY:
            target = command.target.descriptor
            read = sum(one.descriptor.bytes for one in command.sources if one.descriptor.space is Space.HALO)
            found["halo_copies"] += MovedBytes(read, target.bytes if target.space is Space.HALO else 0)
    return found


class _AddressClasses:
    """The classes of off-chip addresses. Activations share addresses over time, so the class depends on the layer."""

    def __init__(self, compiled: Compiled) -> None:
        # Constants lie after everything that a run writes.
        addresses = [packed.address for packed in compiled.packed] + [plain.address for plain in compiled.plain]
        self._first_constant = min(addresses, default=compiled.program.footprint.ddr_bytes)
        ports = (*compiled.program.inputs, *compiled.program.outputs)
        self._ports: dict[int, list[tuple[int, int]]] = {}
        for layer in compiled.graph.layers:
            values = {layer.output.value, *(view.value for view in layer.reads)}
            self._ports[layer.index] = [port.operand.span for port in ports if port.name in values]

    def kind(self, operand: Operand, layer: int) -> TensorClass:
        """Return the class of an operand that an IO command of a layer moves."""
        if operand.descriptor.space is not Space.DDR:
            return "activations"
        if operand.address >= self._first_constant:
            return "weights"
        is_port = any(low <= operand.address < high for low, high in self._ports.get(layer, ()))
        return "input_output" if is_port else "activations"


def useful_macs(compiled: Compiled) -> Mapping[int, int]:
    """Return the multiply-adds by layer without repeated outputs; layers without multiply-adds are absent.

    Taps on padding count. Rows and columns that no layer reads, such as those that pooling drops, count if they are
    computed: a chain in tiles leaves them out.
    """
    found: Counter[int] = Counter()
    for plan in compiled.plans:
        for layer in plan.layers:
            if layer.function.multiplies:
                products = layer.inputs[0].shape[-1] if layer.matrix else math.prod(layer.fixed_weights.shape[1:])
                found[layer.index] += _outputs(plan.geometry, layer) * products
    return found


def _outputs(geometry: Geometry, layer: HardwareLayer) -> int:
    """Return the number of output elements of a layer that its chain computes at least once."""
    regions = [geometry.output_region(layer, tile) for tile in geometry.tiles()]
    computed = [region for region in regions if all(low < high for low, high in region)]
    axes = zip(*computed, strict=True)
    return math.prod(max(high for _, high in axis) - min(low for low, _ in axis) for axis in axes) if computed else 0


def peak_bytes(schedule: Schedule) -> Mapping[Space, int]:
    """Return the largest number of live bytes of each on-chip memory (occupancy.py)."""
    return {
        space: int(occupancy(schedule, space).live_bytes.max(initial=0)) for space in (Space.NB, Space.SB, Space.HALO)
    }


def instruction_counts(program: Program) -> Mapping[str, int]:
    """Return the number of instructions of a valid program by class: io, mfu, vfu, config, control."""
    opcodes = Counter(opcode & 0xF0 for opcode in program.code[::INSTRUCTION_BYTES])
    return {name: opcodes[opcode] for opcode, name in sorted(_CLASS_OF_OPCODE.items(), reverse=True)}


def issued_instructions(steps: Iterable[IssuedStep]) -> int:
    """Return the number of instructions that the control unit issues, loops unrolled."""
    return sum(step.control + (step.item is not None) for step in steps)


@dataclass(frozen=True)
class RunEnergy:
    """The energy of a run in microjoules by its causes; `static` is power times the time of the run."""

    mfu: float
    vfu: float
    nb: float
    sb: float
    llc: float
    ddr: float
    static: float

    @property
    def total(self) -> float:
        """Sum of all causes."""
        return float(sum(astuple(self)))


def run_energy(steps: Iterable[IssuedStep], costs: CostModel, makespan_ps: int) -> RunEnergy:
    """Return the energy of the steps of a program that takes `makespan_ps`."""
    numbers = Counter(step.item for step in steps if isinstance(step.item, Command))
    counts: Counter[str] = Counter()
    for command, number in numbers.items():
        for name, count in _accesses(command, costs).items():
            counts[name] += count * number
    figures = energy_figures(costs.machine)
    return RunEnergy(
        mfu=counts["mac"] * figures.mac_pj / _PJ_PER_UJ,
        vfu=counts["lane"] * figures.lane_pj / _PJ_PER_UJ,
        nb=counts["nb"] * figures.nb_pj_per_byte / _PJ_PER_UJ,
        sb=counts["sb"] * figures.sb_pj_per_byte / _PJ_PER_UJ,
        llc=counts["llc"] * figures.llc_pj_per_byte / _PJ_PER_UJ,
        ddr=counts["ddr"] * figures.ddr_pj_per_byte / _PJ_PER_UJ,
        static=figures.static_mw * makespan_ps * _UJ_PER_MW_PS,
    )


def _accesses(command: Command, costs: CostModel) -> dict[str, int]:
    """Return the multiply-adds, operations of lanes and bytes of each memory of one command."""
    cost, sram = costs.cost(command), sram_traffic(costs.machine.mfu, command)
    counts = {
        "nb": sram.nb_read_bytes + sram.nb_written_bytes,
        "sb": sram.sb_read_bytes + sram.sb_written_bytes,
        "llc": sum(one.read_bytes + one.written_bytes for one in cost.traffic if one.space is Space.LLC),
        "ddr": sum(one.read_bytes + one.written_bytes for one in cost.traffic if one.space is Space.DDR),
    }
    if cost.on_mfu:
        counts["mac"] = cost.macs
    elif not command.function.is_transfer:
        counts["lane"] = vector_operations(command, costs.machine.vfu.special_cycles)
    return counts
