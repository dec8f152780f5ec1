"""The cost of a command on a machine: time in whole picoseconds, multiply-adds, bytes of external memory.

All durations come from here: the compiler predicts with them, and both engines and the formula run on them. A cost
never depends on an address, so commands of equal shapes share one.

- IO: the latency of the memory, then its bytes at its bandwidth, without other users (transfer_cost.py). If the command
  uses two memories, or a link, the slower one counts.
- MFU: the cycles of its dataflow (`_matrix_cycles`) plus the start-up. The epilogue (sum with the third operand, scale
  and shift, activation) lies on the output path and takes no time.
- VFU: operations over lanes, rounded up to whole cycles, plus the start-up (vector_cost.py).

The model is monotone: more bandwidth or a faster clock never makes a command slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import PS_PER_S, ceil_div
from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, Mfu
from device_agents.emulated_npu.timing.systolic import systolic_cycles
from device_agents.emulated_npu.timing.transfer_cost import Demand, Traffic, demands, dims_of, external_bytes
from device_agents.emulated_npu.timing.vector_cost import vector_operations
from device_agents.emulated_npu.unit_commands import Command, Function, Queue, Settings


@dataclass(frozen=True)
class CommandCost:
    """The cost of one command; `fill_ps` is the part of its time that start-up, fill and drain take."""

    duration_ps: int
    fill_ps: int
    macs: int
    traffic: tuple[Traffic, ...] = ()
    demands: tuple[Demand, ...] = ()


def macs(command: Command) -> int:
    """Return the multiply-adds of a command, including those on padding; 0 except for CONVOLVE and DEPTHWISE."""
    if command.function is Function.CONVOLVE:
        pixels, taps, channels, columns = _matrix_shape(command)
        return pixels * taps * channels * columns
    if command.function is Function.DEPTHWISE:
        return command.target.descriptor.elements * math.prod(dims_of(command, command.second, 5)[:3])
    return 0


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
        """Return the demands of an IO command on the resources of its chip; the longest alone takes `duration_ps`."""
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
            cost = self._costs[key] = self._computed(command)
        return cost

    def _computed(self, command: Command) -> CommandCost:
        if command.queue is Queue.IO:
            asked = demands(self.machine, command)
            alone_ps = max((demand.latency_ps + demand.work_ps for demand in asked), default=0)
            return CommandCost(alone_ps, 0, 0, external_bytes(command), asked)
        if command.function is Function.CONVOLVE:
            mfu = self.machine.mfu
            cycles, streaming = _matrix_cycles(mfu, command)
            cycles += mfu.startup_cycles
        else:
            vfu = self.machine.vfu
            streaming = ceil_div(vector_operations(command, vfu.special_cycles), vfu.lanes)
            cycles = streaming + vfu.startup_cycles
        return CommandCost(cycles * self.cycle_ps, (cycles - streaming) * self.cycle_ps, macs(command))


def _matrix_shape(command: Command) -> tuple[int, int, int, int]:
    """Return output pixels, kernel taps, input channels and output channels."""
    *pixels, columns = dims_of(command, command.target, 4)
    *taps, channels, _ = dims_of(command, command.second, 5)
    return math.prod(pixels), math.prod(taps), channels, columns


def _matrix_cycles(mfu: Mfu, command: Command) -> tuple[int, int]:
    """Return the cycles of a CONVOLVE without start-up, and how many of them stream products.

    A dot-product array computes `rows` products for each of `columns` outputs in every cycle: all cycles stream. The
    stationary dataflows follow SCALE-Sim's closed forms (systolic.py).
    """
    pixels, taps, channels, columns = _matrix_shape(command)
    if 0 in (pixels, taps, channels, columns):
        return 0, 0
    if mfu.dataflow == "dot-product":
        cycles = _dot_product_cycles(mfu, command.settings, dims_of(command, command.second, 5), pixels)
        return cycles, cycles
    return systolic_cycles(mfu.dataflow, pixels, columns, taps * channels, mfu.rows, mfu.columns)


def _dot_product_cycles(mfu: Mfu, settings: Settings, weights: tuple[int, ...], pixels: int) -> int:
    """Return the cycles; channels, a window row or channels x strides fill the rows (`Mfu.packing`)."""
    depth, height, width, channels, columns = weights
    groups = pixels * ceil_div(columns, mfu.columns)
    if mfu.packing == "row":
        return groups * depth * height * ceil_div(width * channels, mfu.rows)
    if mfu.packing == "stride":
        unfolded = math.prod(settings.stride)
        if not unfolded:
            raise ExecutionFault("CONVOLVE has a stride of zero")
        return ceil_div(groups * depth * height * width * ceil_div(channels * unfolded, mfu.rows), unfolded)
    return groups * depth * height * width * ceil_div(channels, mfu.rows)
