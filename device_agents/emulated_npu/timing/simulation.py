"""The time of a program on a machine, from the same steps that a functional run executes.

`simulate` runs the control unit and the queues (single_core.py) with the costs of timing/cost, and divides the time
among layers (attribution.py). All times are whole picoseconds, so sums are exact:

- max(io, cp, vfu_queue, llc_queue) <= makespan <= io + cp + vfu_queue + llc_queue + control,
- wait = makespan - max(io, cp, vfu_queue, llc_queue), and the entries of `waits` sum to it,
- the layers, with the time of no layer, sum to the makespan.

With the same steps, a faster memory or clock never makes the makespan longer if only one queue waits for each
semaphore, as in the compiler's programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.attribution import WaitTime, layer_of, layer_times, wait_times
from device_agents.emulated_npu.timing.cost.command_cost import CostModel, costs_of
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand
from device_agents.emulated_npu.timing.failures import over_budget
from device_agents.emulated_npu.timing.queue_rules import UnitFeeds
from device_agents.emulated_npu.timing.single_core import NOTHING, Schedule, schedule
from device_agents.emulated_npu.unit_commands import Command, Queue

_NO_LIMIT_PS = 1 << 62


@dataclass(frozen=True)
class Timing:
    """The time of one run and its parts.

    - `io_ps`, `cp_ps`, `vfu_queue_ps`, `llc_queue_ps`: busy time of the queues' servers, memory latency included; 0 for
      a queue that the machine lacks. `cp_ps` and `vfu_queue_ps` together are `mfu_ps` plus `vfu_ps`.
    - `control_ps`: time in which all queues were idle.
    - `wait_ps`: idle time of `waiting_queue`, the first queue with the largest sum; `waits` divides it.
    - `layers`: latency in the network by layer index; `no_layer_ps`: time of no layer.
    """

    schedule: Schedule
    cycle_ps: int
    makespan_ps: int
    io_ps: int
    cp_ps: int
    mfu_ps: int
    vfu_ps: int
    control_ps: int
    wait_ps: int
    waiting_queue: Queue
    waits: tuple[WaitTime, ...]
    layers: tuple[int, ...]
    no_layer_ps: int
    vfu_queue_ps: int = 0
    llc_queue_ps: int = 0

    @property
    def transfer_ps(self) -> int:
        """Busy time of the busier queue of transfers."""
        return max(self.io_ps, self.llc_queue_ps)

    @property
    def compute_ps(self) -> int:
        """Busy time of the busier compute queue."""
        return max(self.cp_ps, self.vfu_queue_ps)

    def cycles(self, ps: int) -> float:
        """Convert picoseconds to cycles of the machine."""
        return ps / self.cycle_ps


def simulate(
    steps: Iterable[IssuedStep], machine: Machine, *, costs: CostModel | None = None, cycle_budget: int | None = None
) -> Timing:
    """Time the steps of a program on the machine.

    Raises `Deadlock`, `BudgetExceeded` for more than `cycle_budget` cycles, `ExecutionFault` for an invalid command,
    and the errors of the sequencer that yields the steps.
    """
    costs = costs or costs_of(machine)
    limit_ps = _NO_LIMIT_PS if cycle_budget is None else cycle_budget * costs.cycle_ps
    collected = _collected(steps, machine.issue_cycles * costs.cycle_ps, limit_ps)
    durations = durations_ps(collected, costs)
    issue_ps = machine.issue_cycles * costs.cycle_ps
    result = schedule(collected, durations, machine, limit_ps, issue_ps, demands_of(collected, costs))
    queues_ps = [sum(result.durations_ps[index] for index in entries) for entries in result.entries]
    mfu_ps = sum(
        duration
        for step, duration in zip(result.steps, durations, strict=True)
        if duration and isinstance(step.item, Command) and costs.cost(step.item).on_mfu
    )
    waiting = Queue(queues_ps.index(max(queues_ps)))
    layers_ps = layer_times(result)
    count = max((layer_of(step) for step in result.steps), default=NOTHING) + 1
    return Timing(
        schedule=result,
        cycle_ps=costs.cycle_ps,
        makespan_ps=result.makespan_ps,
        io_ps=queues_ps[Queue.IO],
        cp_ps=queues_ps[Queue.CP],
        mfu_ps=mfu_ps,
        vfu_ps=queues_ps[Queue.CP] + queues_ps[Queue.VFU] - mfu_ps,
        control_ps=result.makespan_ps - _busy_ps(result),
        wait_ps=result.makespan_ps - max(queues_ps),
        waiting_queue=waiting,
        waits=wait_times(result, waiting),
        layers=tuple(layers_ps[layer] for layer in range(count)),
        no_layer_ps=layers_ps[NOTHING],
        vfu_queue_ps=queues_ps[Queue.VFU],
        llc_queue_ps=queues_ps[Queue.LLC],
    )


def simulate_program(program: Program, machine: Machine) -> Timing:
    """Decode a program, unroll its loops and time it. Raises `InvalidProgram`, and as `simulate`."""
    return simulate(sequence(program.code, layer_of=program.layer_of), machine)


def marginal_ps(steps: Sequence[IssuedStep], machine: Machine, layer: int, *, costs: CostModel | None = None) -> int:
    """Return how much shorter the makespan is if the commands of a layer take no time; raise as `simulate`."""
    costs = costs or costs_of(machine)
    issue_ps = machine.issue_cycles * costs.cycle_ps
    durations = durations_ps(steps, costs)
    without = [0 if layer_of(step) == layer else ps for step, ps in zip(steps, durations, strict=True)]
    demands = demands_of(steps, costs)
    lighter = [() if layer_of(step) == layer else each for step, each in zip(steps, demands, strict=False)]
    whole = schedule(steps, durations, machine, _NO_LIMIT_PS, issue_ps, demands).makespan_ps
    rest = schedule(steps, without, machine, _NO_LIMIT_PS, issue_ps, lighter).makespan_ps
    return whole - rest


def durations_ps(steps: Sequence[IssuedStep], costs: CostModel) -> list[int]:
    """Return the time of every step on its unit; 0 for a step that is not a command."""
    # A loop issues the same command object again; `steps` keeps it alive, so its id stays unique.
    known: dict[int, int] = {}
    feeds = UnitFeeds(costs.machine)
    durations = []
    for pc, item, _ in steps:
        if type(item) is not Command:
            durations.append(0)
            continue
        duration = known.get(id(item))
        if duration is None:
            try:
                cost = costs.cost(item)
                feeds.add(item.queue, cost)
                duration = known[id(item)] = cost.duration_ps
            except ExecutionFault as fault:
                raise fault.at(f"instruction {pc}") from fault
        durations.append(duration)
    return durations


def demands_of(steps: Sequence[IssuedStep], costs: CostModel) -> list[tuple[Demand, ...]]:
    """Return the demands of every step, for a machine with several transfers in flight; empty for any other machine."""
    if costs.machine.io_outstanding == 1:
        return []
    items = (step.item for step in steps)
    return [costs.demands(item) if isinstance(item, Command) else () for item in items]


def _collected(steps: Iterable[IssuedStep], issue_ps: int, limit_ps: int) -> list[IssuedStep]:
    """Return the steps as a list; raise `BudgetExceeded` if issuing them takes longer than the limit."""
    collected, issuing_ps = [], 0
    for step in steps:
        collected.append(step)
        issuing_ps += (step.control + 1) * issue_ps
        if issuing_ps > limit_ps + issue_ps:  # one more: the last step may have no item
            raise over_budget(step, limit_ps)
    return collected


def _busy_ps(result: Schedule) -> int:
    """Return the time in which at least one queue serves a command."""
    begins: np.ndarray[Any, Any] = np.asarray(result.served_ps, np.int64)
    ends: np.ndarray[Any, Any] = np.asarray(result.finished_ps, np.int64)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order]) if len(order) else ends
    covered_until = np.concatenate([[0], ends[:-1]])
    return int(np.maximum(0, ends - np.maximum(begins, covered_until)).sum())
