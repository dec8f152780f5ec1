"""The functional machine: executes commands on memories.

Execution is deterministic: the same program on the same inputs gives the same bytes. See interleaving.py for the order
in which the queues proceed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from device_agents.emulated_npu.emulator_errors import DoesNotFit, ExecutionFault
from device_agents.emulated_npu.execution import vector_unit as vfu, vector_windows as vfu_windows
from device_agents.emulated_npu.execution.integer_values import evaluate as evaluate_quantised
from device_agents.emulated_npu.execution.interleaving import Order, run_items
from device_agents.emulated_npu.execution.matrix_unit import convolve
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.execution.operand_checks import operands_of
from device_agents.emulated_npu.execution.vector_unit import piecewise_linear
from device_agents.emulated_npu.isa.program import Footprint, Port, Program
from device_agents.emulated_npu.isa.sequencer import DEFAULT_BUDGET, IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.numpy_types import Array
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
    Function.TABLE: piecewise_linear,
}
"""The evaluator of each function: (command, target, sources…) -> values with the dims of the target."""


class FunctionalMachine:
    """Executes one command at a time on `memories`.

    In a run, `order` selects how the queues proceed if the semaphores leave a choice, and `budget_instructions` limits
    the instructions, loops unrolled.
    """

    def __init__(self, memories: Memories, order: Order = "program", budget_instructions: int = DEFAULT_BUDGET) -> None:
        self.memories, self.order, self.budget_instructions = memories, order, budget_instructions

    def execute(self, command: Command) -> None:
        """Compute the command's values and write its target, as if all sources were read first.

        Raises ExecutionFault before writing anything if an operand lies outside its memory or in a memory that the unit
        cannot reach, if operands and settings do not match, and for SEND and RECEIVE.
        """
        view = self.memories.view
        operands = operands_of(command)
        if command.function not in EVALUATORS:
            what = f"{command.function.name} needs the core {command.peer}"
            raise ExecutionFault(what, "this core runs by itself", "Run all cores")
        target = self.memories.writable(command.target)
        sources = [None if operand is None else view(operand) for operand in operands]
        with np.errstate(all="ignore"):
            evaluator = EVALUATORS[command.function]
            if command.settings.quantises:
                values = evaluate_quantised(evaluator, command, target, sources)
            else:
                values = evaluator(command, target, *sources)
            # If the values are a view of a source that overlaps the target, NumPy copies them first.
            np.copyto(target, values, casting="unsafe")


def memories_for(machine: Machine, footprint: Footprint) -> Memories:
    """Return memories of the sizes that a program was compiled for, so that every access beyond them is detected.

    Raises DoesNotFit if the machine has less; the halo buffer is part of NB.
    """
    sizes = {space: getattr(footprint, f"{space.name.lower()}_bytes") for space in Space}
    demands = [
        ("DDR", footprint.ddr_bytes, machine.ddr.bytes, "ddr.bytes"),
        ("LLC", footprint.llc_bytes, machine.llc.bytes, "llc.bytes"),
        ("the halo buffer", footprint.halo_bytes, machine.halo_bytes, "halo_bytes"),
        ("NB and the halo buffer", footprint.nb_bytes + footprint.halo_bytes, machine.nb_bytes, "nb_bytes"),
        ("SB", footprint.sb_bytes, machine.sb_bytes, "nb_bytes" if machine.shared_buffer else "sb_bytes"),
    ]
    if machine.shared_buffer:  # of sb_bytes = nb_bytes
        demands.append(("the shared buffer", footprint.shared_bytes, machine.nb_bytes, "nb_bytes"))
    for name, demand, limit, parameter in demands:
        if not 0 <= demand <= limit:
            what = f"the program needs {demand} bytes of {name} and {machine.name} has {limit}"
            why = "it was compiled for another machine"
            raise DoesNotFit(what, why, f"compile it for {machine.name}, or raise {parameter}")
    return Memories.with_one_buffer(sizes) if machine.shared_buffer else Memories(sizes)


Filling = Iterable[tuple[int, Array]]
"""Constants: their addresses in DDR and their values."""


def run(program: Program, machine: FunctionalMachine, fill: Filling, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the program once and return its outputs by name.

    `fill` may be empty if the constants are still in memory from an earlier run.

    Raises InvalidProgram, ExecutionFault with the instruction's number, Deadlock, or BudgetExceeded.
    """
    load(program, machine, fill)
    run_items(start_run(program, machine, inputs), machine.execute, order=machine.order)
    return outputs_of(program, machine.memories)


def load(program: Program, machine: FunctionalMachine, fill: Filling) -> None:
    """Write the constants, if there are any, and then run the setup of the program; raise as `run`."""
    is_filled = False
    for address, array in fill:
        machine.memories.write(address, array)
        is_filled = True
    if is_filled and program.setup.code:
        steps = _issued(machine, program.setup.code, program.setup.layer_of)
        run_items(steps, machine.execute, order=machine.order)


def start_run(program: Program, machine: FunctionalMachine, inputs: Mapping[str, Array]) -> Iterator[IssuedStep]:
    """Write the inputs of a run to DDR, clear the on-chip memories, and yield the steps of the program.

    Raises ExecutionFault for inputs that are missing or have another shape or type.
    """
    for port in program.inputs:
        _put_input(machine.memories, port, inputs)
    return _issued(machine, program.code, program.layer_of)


def _issued(machine: FunctionalMachine, code: bytes, layer_of: Sequence[int]) -> Iterator[IssuedStep]:
    """Clear the on-chip memories and yield the steps of some code."""
    memories = machine.memories
    memories.clear_on_chip()

    def register_from_memory(space: Space, dtype: DataType, address: int) -> int:
        return int(memories.view(Operand(Descriptor(space, dtype, (), ()), address))[()])

    budget = machine.budget_instructions
    return sequence(code, layer_of=layer_of, budget_instructions=budget, registers_from_memory=register_from_memory)


def outputs_of(program: Program, memories: Memories) -> dict[str, Array]:
    """Return the outputs of a program by name, after a run."""
    return {port.name: memories.view(port.operand).copy() for port in program.outputs}


def _put_input(memories: Memories, port: Port, inputs: Mapping[str, Array]) -> None:
    if port.name not in inputs:
        what = f"the input {port.name} is missing"
        raise ExecutionFault(what, f"given are {', '.join(inputs) or 'none'}", "name every input")
    if 0 in port.operand.descriptor.dims:
        return  # nothing reads a tensor without elements
    given, view = inputs[port.name], memories.writable(port.operand)
    if given.shape != view.shape or given.dtype != view.dtype:
        what = f"the input {port.name} is {given.dtype.name} {given.shape}"
        raise ExecutionFault(what, f"the program takes {view.dtype.name} {view.shape}")
    np.copyto(view, given)
