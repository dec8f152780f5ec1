"""The cost of a command on a machine: time in whole picoseconds, multiply-adds, bytes of external memory.

All durations come from here: the compiler predicts with them, and both engines and the formula run on them. A cost
never depends on an address, so commands of equal shapes share one.

- IO: the latency of the memory, then its bytes at its bandwidth, without other users (transfer_cost.py). If the command
  uses two memories, or a link, the slower one counts. With several transfers in flight, the engines hide the latency
  behind earlier transfers (queue_rules.py).
- MFU: the cycles of its dataflow (matrix_cost.py) plus the start-up. The epilogue (sum with the third operand, scale
  and shift, activation) lies on the output path and takes no time, unless the machine limits that path.
- VFU: operations over lanes, rounded up to whole cycles, plus the start-up (vector_cost.py).
- Both units: no less than the ports of NB and SB need (`sram_traffic` in matrix_cost.py).

The model is monotone: more bandwidth or a faster clock never makes a command slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from device_agents.emulated_npu.arithmetic import PS_PER_S, ceil_div
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.matrix_cost import (
    matrix_cycles,
    matrix_shape,
    port_cycles,
    runs_on_mfu,
    sram_traffic,
)
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand, Traffic, demands, external_bytes
from device_agents.emulated_npu.timing.cost.vector_cost import vector_operations
from device_agents.emulated_npu.unit_commands import Command


@dataclass(frozen=True)
class CommandCost:
    """The cost of one command; `fill_ps` is the part of its time that start-up, fill and drain take.

    `on_mfu`: the matrix unit executes it.
    """

    duration_ps: int
    fill_ps: int
    macs: int
    traffic: tuple[Traffic, ...] = ()
    demands: tuple[Demand, ...] = ()
    on_mfu: bool = False


def macs(command: Command) -> int:
    """Return the multiply-adds of a command, including those on padding; 0 except for CONVOLVE and DEPTHWISE."""
    return matrix_shape(command).macs if command.function.multiplies else 0


_MOST_COSTS = 1 << 16
"""The most costs that a model keeps."""


class CostModel:
    """Costs on one machine, computed once per combination of function, shapes and settings.

    `cycle_ps` is the time of a cycle, rounded to whole picoseconds.
    Raises `ExecutionFault` for a command with operands that its function cannot have, and for one that uses a
    last-level cache on a machine without one.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cycle_ps = round(PS_PER_S / machine.clock_hz)
        self._costs: dict[tuple[object, ...], CommandCost] = {}

    def duration_ps(self, command: Command) -> int:
        """Return the time of the command on its unit, from the start of its service to its end."""
        return self.cost(command).duration_ps

    def demands(self, command: Command) -> tuple[Demand, ...]:
        """Return the demands of an IO command on the resources of its chip; the longest of them takes `duration_ps`."""
        return self.cost(command).demands

    def cost(self, command: Command) -> CommandCost:
        """Return the whole cost of a command."""
        first, second, third, fourth = command.first, command.second, command.third, command.fourth
        key = (
            command.function,
            command.target.descriptor,
            first and first.descriptor,
            second and second.descriptor,
            third and third.descriptor,
            fourth and fourth.descriptor,
            command.settings,
            command.accumulate,
        )
        cost = self._costs.get(key)
        if cost is None:
            if len(self._costs) >= _MOST_COSTS:
                self._costs.clear()
            cost = self._costs[key] = self._computed(command)
        return cost

    def _computed(self, command: Command) -> CommandCost:
        machine = self.machine
        if command.function.is_transfer:
            asked = demands(machine, command)
            alone_ps = max((demand.latency_ps + demand.work_ps for demand in asked), default=0)
            return CommandCost(alone_ps, 0, 0, external_bytes(command, machine), asked)
        on_mfu = runs_on_mfu(machine.mfu, command.function)
        if on_mfu:
            cycles, streaming = matrix_cycles(machine.mfu, command)
            startup = machine.mfu.startup_cycles
        else:
            cycles = streaming = ceil_div(vector_operations(command, machine.vfu.special_cycles), machine.vfu.lanes)
            startup = machine.vfu.startup_cycles
        if machine.nb_port_bytes or machine.sb_port_bytes:
            stalled = port_cycles(machine.nb_port_bytes, machine.sb_port_bytes, sram_traffic(machine.mfu, command))
            cycles, streaming = max(cycles, stalled), max(streaming, stalled)
        cycles += startup
        fill_ps = (cycles - streaming) * self.cycle_ps
        return CommandCost(cycles * self.cycle_ps, fill_ps, macs(command), on_mfu=on_mfu)


@lru_cache(maxsize=8)
def costs_of(machine: Machine) -> CostModel:
    """Return the costs on a machine, which all networks that a process compiles for it share."""
    return CostModel(machine)
