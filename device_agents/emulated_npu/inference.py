"""One inference on the emulated NPU: its time, its values, and checks of programs of unknown origin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.emulator_errors import BudgetExceeded, ExecutionFault
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.execution.operand_checks import operands_of
from device_agents.emulated_npu.gc_tuning import rare_collections
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.isa.sequencer import DEFAULT_BUDGET, IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.timing.cost.command_cost import CostModel, costs_of
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.simulation import Timing, marginal_ps, simulate
from device_agents.emulated_npu.unit_commands import Command

MOST_ITEMS = 1_000_000
"""The most items, loops unrolled, that are timed: they stay in memory, about a kilobyte each."""

MOST_ITEMS_OF_FILE = 200_000
"""The same for program files of unknown origin, which may loop. Large networks issue 80,000."""

_RAISE_BUDGET = "Raise the cycle budget (--cycle-budget) if the program is sound"


@dataclass(frozen=True)
class TimedProgram:
    """A program, the items that it issues on a machine, and its time by simulation and by the formula of S2.6."""

    program: Program
    machine: Machine
    steps: tuple[IssuedStep, ...]
    costs: CostModel
    timing: Timing
    formula: Formula

    @property
    def cycles(self) -> float:
        """The makespan in cycles."""
        return self.timing.cycles(self.timing.makespan_ps)

    def marginal_cycles(self) -> tuple[float, ...]:
        """Return, by layer, how many cycles shorter the makespan is if the layer takes no time."""
        return tuple(
            self.timing.cycles(marginal_ps(self.steps, self.machine, layer, costs=self.costs))
            for layer in range(len(self.program.layers))
        )


@rare_collections()
def time_program(
    program: Program, machine: Machine, *, cycle_budget: int | None = None, most_items: int = MOST_ITEMS
) -> TimedProgram:
    """Decode a program and time it; `cycle_budget` limits its cycles, `most_items` the items kept in memory.

    Raises InvalidProgram, ExecutionFault, Deadlock, BudgetExceeded, and DoesNotFit if the program needs more memory
    than the machine has.
    """
    memories_for(machine, program.footprint)
    steps = tuple(_steps(program, machine, cycle_budget, most_items))
    costs = costs_of(machine)
    try:
        timing = simulate(steps, machine, costs=costs, cycle_budget=cycle_budget)
    except BudgetExceeded as error:  # which names picoseconds
        what = f"the program takes more than the budget of {cycle_budget} cycles"
        raise BudgetExceeded(what, error.why, _RAISE_BUDGET) from error
    return TimedProgram(program, machine, steps, costs, timing, formula(steps, machine, costs=costs))


def _steps(program: Program, machine: Machine, cycle_budget: int | None, most_items: int) -> Iterator[IssuedStep]:
    """Yield the items of a program; raise BudgetExceeded if issuing its instructions takes more than the budget."""
    budget = DEFAULT_BUDGET
    if cycle_budget is not None and machine.issue_cycles:
        budget = min(budget, cycle_budget // machine.issue_cycles + 1)
    steps = sequence(program.code, layer_of=program.layer_of, budget_instructions=budget)
    try:
        yield from islice(steps, most_items)
    except BudgetExceeded as error:
        if budget == DEFAULT_BUDGET:
            raise
        what = f"the program takes more than {cycle_budget} cycles"
        raise BudgetExceeded(what, f"{error.what}: {error.why}", _RAISE_BUDGET) from error
    for step in steps:
        what = f"the program is at instruction {step.pc} after {most_items} items"
        why = "it loops without end, or is longer than can be timed: every item of a run is kept"
        raise BudgetExceeded(what, why, "Correct the loop, or run a smaller network")


def check_accesses(steps: Iterable[IssuedStep], program: Program, machine: Machine) -> None:
    """Check every operand of every command against the bounds of its memory, without computing anything.

    Raises ExecutionFault, naming the instruction, as a functional run of the same items would.
    """
    memories = memories_for(machine, program.footprint)
    checked: set[Command] = set()
    for step in steps:
        command = step.item
        if not isinstance(command, Command) or command in checked:
            continue
        checked.add(command)
        try:
            operands = operands_of(command)
            memories.writable(command.target)
            for operand in operands:
                if operand is not None:
                    memories.view(operand)
        except ExecutionFault as fault:
            raise fault.at(f"instruction {step.pc}") from fault


def compute_values(compiled: Compiled, weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a compiled network by name; `weights` are by initializer, `inputs` by input.

    Raises DoesNotFit if the host lacks memory, EmulatorError for a machine with timing but no values.
    """
    program = compiled.program
    functional = FunctionalMachine(memories_for(compiled.machine, program.footprint))
    return run(program, functional, compiled.image(weights), inputs)
