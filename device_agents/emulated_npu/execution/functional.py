"""The functional machine: executes commands on memories, values and all (S2.2, S2.3), and counts what they move.

Deterministic: the same program on the same inputs gives the same bytes. On the order in which the two queues
proceed see `interleaving`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.emulator_errors import DoesNotFit, ExecutionFault
from device_agents.emulated_npu.execution import vfu, vfu_windows
from device_agents.emulated_npu.execution.interleaving import Order, Queues, queue_depths, run_items
from device_agents.emulated_npu.execution.memory import Array, Memories, ResolvedView, resolve_view
from device_agents.emulated_npu.execution.mfu import convolve
from device_agents.emulated_npu.execution.signatures import operands_of
from device_agents.emulated_npu.isa.program import Footprint, Port, Program
from device_agents.emulated_npu.isa.sequencer import DEFAULT_BUDGET, IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import macs
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space

EVALUATORS: Mapping[Function, Callable[..., Array]] = {
    Function.LOAD: vfu.transfer,
    Function.STORE: vfu.transfer,
    Function.GATHER: vfu.gather,
    Function.CONVOLVE: convolve,
    Function.COPY: vfu.copy,
    Function.FILL: vfu.fill,
    Function.MAP: vfu.apply_map,
    Function.BINARY: vfu.binary,
    Function.AFFINE: vfu.affine,
    Function.WHERE: vfu.where,
    Function.REDUCE: vfu.reduce,
    Function.SOFTMAX: vfu.softmax,
    Function.NORMALIZE: vfu.normalize,
    Function.LRN: vfu.local_response,
    Function.POOL_MAX: vfu_windows.pool_max,
    Function.POOL_AVERAGE: vfu_windows.pool_average,
    Function.DEPTHWISE: vfu_windows.depthwise,
}
"""What each function computes: (command, target, sources…) -> values with the target's dims."""


@dataclass
class ExecutionCounters:
    """What has been done since the machine was made: by memory in bytes; elements of views, repeated ones too.

    `high_water` is one past the highest byte touched. `multiply_adds` are those of the matrix unit and of depthwise
    windows, with the taps that fall on padding.
    """

    read_bytes: dict[Space, int]
    written_bytes: dict[Space, int]
    high_water: dict[Space, int]
    multiply_adds: int = 0
    commands: int = 0

    @classmethod
    def zero(cls) -> ExecutionCounters:
        """Nothing done yet."""
        return cls(dict.fromkeys(Space, 0), dict.fromkeys(Space, 0), dict.fromkeys(Space, 0))


class FunctionalMachine:
    """Executes commands on `memories` one at a time."""

    def __init__(self, memories: Memories) -> None:
        self.memories = memories
        self.counters = ExecutionCounters.zero()
        self.setup_counters = ExecutionCounters.zero()

    def execute(self, command: Command) -> None:
        """Computes the command's values and writes its target, as if all sources were read first.

        Raises ExecutionFault, without having written anything, if an operand lies outside its memory or in one that
        the unit cannot reach, if operands and settings do not go together, or for SEND and RECEIVE.
        """
        view = self.memories.view
        operands = operands_of(command)
        if command.function not in EVALUATORS:
            raise ExecutionFault(
                f"{command.function.name} needs the core {command.peer}", "this core runs alone", "Run all cores"
            )
        target = self.memories.writable(command.target)
        sources = [None if operand is None else view(operand) for operand in operands]
        with np.errstate(all="ignore"):
            values = EVALUATORS[command.function](command, target, *sources)
            # Where the values are a view of a source, NumPy copies them first if that overlaps the target.
            np.copyto(target, values, casting="unsafe")
        self.count(command, operands)
        self.count_written(command.target)

    def count(self, command: Command, operands: tuple[Operand | None, ...]) -> None:
        """Counts a command and what it reads."""
        counters = self.counters
        counters.commands += 1
        access = resolve_view(command.target.descriptor)
        if command.accumulate:
            counters.read_bytes[access.space] += access.bytes
        for operand in operands:
            if operand is not None:
                read = resolve_view(operand.descriptor)
                # Of the table of GATHER only the rows that go to the target are read.
                gathered = command.function is Function.GATHER and operand is command.first
                counters.read_bytes[read.space] += access.bytes if gathered else read.bytes
                self._touch(read, operand.address)
        counters.multiply_adds += macs(command)

    def count_written(self, target: Operand) -> None:
        """Counts what has been written."""
        access = resolve_view(target.descriptor)
        self.counters.written_bytes[access.space] += access.bytes
        self._touch(access, target.address)

    def _touch(self, access: ResolvedView, address: int) -> None:
        high_water = self.counters.high_water
        if address + access.high > high_water[access.space]:
            high_water[access.space] = address + access.high


def memories_for(machine: Machine, footprint: Footprint) -> Memories:
    """Memories of the sizes that a program was compiled for, so that every access beyond them is found.

    Raises DoesNotFit if the machine has less than that; the halo buffer is carved out of NB (S3.4).
    """
    neurons = footprint.nb_bytes + footprint.halo_bytes
    demands = [
        ("DDR", footprint.ddr_bytes, machine.ddr.bytes, "ddr.bytes"),
        ("LLC", footprint.llc_bytes, machine.llc.bytes, "llc.bytes"),
        ("the halo buffer", footprint.halo_bytes, machine.halo_bytes, "halo_bytes"),
    ]
    if machine.shared_buffer:
        demands.append(("NB and the halo buffer", neurons, machine.nb_bytes, "nb_bytes"))
        demands.append(("SB", footprint.sb_bytes, machine.nb_bytes, "nb_bytes"))
        demands.append(("the shared buffer", footprint.shared_bytes, machine.nb_bytes, "nb_bytes"))
    else:
        demands.append(("NB and the halo buffer", neurons, machine.nb_bytes, "nb_bytes"))
        demands.append(("SB", footprint.sb_bytes, machine.sb_bytes, "sb_bytes"))
    for name, demand, limit, parameter in demands:
        if not 0 <= demand <= limit:
            raise DoesNotFit(
                f"the program needs {demand} bytes of {name} and {machine.name} has {limit}",
                "it was compiled for another machine",
                f"compile it for {machine.name}, or raise {parameter}",
            )
    sizes = {
        Space.DDR: footprint.ddr_bytes,
        Space.LLC: footprint.llc_bytes,
        Space.NB: footprint.nb_bytes,
        Space.SB: footprint.sb_bytes,
        Space.HALO: footprint.halo_bytes,
    }
    return Memories.with_one_buffer(sizes) if machine.shared_buffer else Memories(sizes)


Filling = Iterable[tuple[int, Array]]
"""Constants: addresses in DDR, and what lies there."""


def run(
    program: Program,
    machine: FunctionalMachine,
    fill: Filling,
    inputs: Mapping[str, Array],
    *,
    order: Order = "program",
    queues: Queues | None = None,
    budget_instructions: int = DEFAULT_BUDGET,
) -> Mapping[str, Array]:
    """Runs the program once and returns its outputs by name (S2.2); afterwards `machine.counters` tell what it took.

    `fill` may be empty if the constants are still in memory from an earlier run. `order` is how the queues proceed
    where the semaphores leave a choice; `queues` are their depths, without limit if there are none. The program may
    take `budget_instructions`, loops unrolled.

    Raises InvalidProgram, ExecutionFault with the instruction's number, Deadlock, or BudgetExceeded.
    """
    depths = queues or queue_depths(None)
    load(program, machine, fill, order=order, queues=depths, budget_instructions=budget_instructions)
    steps = started(program, machine.memories, inputs, budget_instructions=budget_instructions)
    run_items(steps, machine.execute, order=order, queues=depths)
    return outputs_of(program, machine.memories)


def load(
    program: Program,
    machine: FunctionalMachine,
    fill: Filling,
    *,
    order: Order = "program",
    queues: Queues | None = None,
    budget_instructions: int = DEFAULT_BUDGET,
) -> None:
    """Writes the constants, where there are any, and then runs the setup of the program; raises as `run`.

    What the setup takes is in `machine.setup_counters`, not in those of the runs.
    """
    is_filled = False
    for address, array in fill:
        machine.memories.write(address, array)
        is_filled = True
    if is_filled and program.setup.code:
        setup = program.setup
        runs, machine.counters = machine.counters, machine.setup_counters
        steps = _issued(setup.code, setup.layer_of, machine.memories, budget_instructions)
        run_items(steps, machine.execute, order=order, queues=queues or queue_depths(None))
        machine.counters = runs


def started(
    program: Program, memories: Memories, inputs: Mapping[str, Array], *, budget_instructions: int = DEFAULT_BUDGET
) -> Iterator[IssuedStep]:
    """Puts the inputs of a run where the program finds them, empties what is on chip, and yields what it issues.

    Raises ExecutionFault for inputs that are missing or of another shape or type.
    """
    for port in program.inputs:
        _put_input(memories, port, inputs)
    return _issued(program.code, program.layer_of, memories, budget_instructions)


def _issued(code: bytes, layer_of: Sequence[int], memories: Memories, budget_instructions: int) -> Iterator[IssuedStep]:
    """What some code issues, from empty on-chip memories on."""
    memories.clear_on_chip()

    def register_from_memory(space: Space, dtype: DataType, address: int) -> int:
        return int(memories.view(Operand(Descriptor(space, dtype, (), ()), address))[()])

    return sequence(
        code, layer_of=layer_of, budget_instructions=budget_instructions, registers_from_memory=register_from_memory
    )


def outputs_of(program: Program, memories: Memories) -> dict[str, Array]:
    """The outputs of a program by name, after a run."""
    return {port.name: memories.view(_operand(port)).copy() for port in program.outputs}


def _operand(port: Port) -> Operand:
    return Operand(Descriptor(Space.DDR, port.dtype, port.shape, port.strides), port.address)


def _put_input(memories: Memories, port: Port, inputs: Mapping[str, Array]) -> None:
    if port.name not in inputs:
        raise ExecutionFault(
            f"the input {port.name} is missing", f"given are {', '.join(inputs) or 'none'}", "name every input"
        )
    given, view = inputs[port.name], memories.writable(_operand(port))
    if given.shape != view.shape or given.dtype != view.dtype:
        raise ExecutionFault(
            f"the input {port.name} is {given.dtype.name} {given.shape}",
            f"the program takes {view.dtype.name} {view.shape}",
        )
    np.copyto(view, given)
