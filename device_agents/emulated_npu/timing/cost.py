"""What a command costs on a machine: time in whole picoseconds, multiply-adds, bytes of external memory (S2.6).

The one source of durations: the compiler predicts with it, and timing and formula run on it. A cost never
depends on an address, so equal shapes cost the same wherever they lie and are looked up once.

- IO: the latency of the memory, then its bytes at its bandwidth (`transfer_cost.py`). Where it uses two memories,
  or a link, the slower one counts. This is its time alone; where cores share, `many_cores.py` has more to say.
- MFU: the cycles of its dataflow (`_matrix_cycles`) plus the start-up. The epilogue (sum with the third
  operand, scale and shift, activation) lies on the output path and costs nothing.
- VFU: operations over lanes, rounded up to whole cycles, plus the start-up (`vector_cost.py`).

The model is monotone: more bandwidth or a faster clock never makes a command slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import PS_PER_S, ceil_div
from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, Mfu
from device_agents.emulated_npu.timing import systolic
from device_agents.emulated_npu.timing.transfer_cost import Demand, Traffic, demands, external_bytes
from device_agents.emulated_npu.timing.vector_cost import vector_operations
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Queue, Settings


@dataclass(frozen=True)
class CommandCost:
    """What one command costs; `fill_ps` is the part of its time that start-up, fill and drain take."""

    duration_ps: int
    fill_ps: int
    macs: int
    traffic: tuple[Traffic, ...] = ()
    demands: tuple[Demand, ...] = ()


def cycle_ps(machine: Machine) -> int:
    """Picoseconds of one cycle, rounded to whole ones."""
    return round(PS_PER_S / machine.clock_hz)


def duration_ps(machine: Machine, command: Command) -> int:
    """Time of one command on its unit; see `CostModel` for many. Raises as that does."""
    return CostModel(machine).duration_ps(command)


def macs(command: Command) -> int:
    """Multiply-adds of a command, those on padding included; 0 for all but CONVOLVE and DEPTHWISE."""
    if command.function is Function.CONVOLVE:
        pixels, taps, channels, columns = _matrix_shape(command)
        return pixels * taps * channels * columns
    if command.function is Function.DEPTHWISE:
        return command.target.descriptor.elements * math.prod(_dims(command, command.second, 5)[:3])
    return 0


class CostModel:
    """Costs on one machine, each computed once for every combination of function, shapes and settings.

    Raises `ExecutionFault` for a command whose operands its function cannot have, and for one that uses a
    last-level cache where there is none.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cycle_ps = cycle_ps(machine)
        self._costs: dict[tuple[object, ...], CommandCost] = {}

    def duration_ps(self, command: Command) -> int:
        """Time of the command on its unit, from the start of its service to its end."""
        return self.cost(command).duration_ps

    def demands(self, command: Command) -> tuple[Demand, ...]:
        """What an IO command asks of the resources of its chip; alone, the longest takes `duration_ps`."""
        return self.cost(command).demands

    def cost(self, command: Command) -> CommandCost:
        """Everything it costs."""
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


# --- MFU --------------------------------------------------------------------------------------------------------


def _matrix_shape(command: Command) -> tuple[int, int, int, int]:
    """Output pixels, taps of the kernel, input channels, output channels."""
    *pixels, columns = _dims(command, command.target, 4)
    *taps, channels, _ = _dims(command, command.second, 5)
    return math.prod(pixels), math.prod(taps), channels, columns


def _matrix_cycles(mfu: Mfu, command: Command) -> tuple[int, int]:
    """Cycles of a CONVOLVE without start-up: all of them, and those in which the array streams products.

    Dot product: every cycle `rows` products into each of `columns` outputs, so nothing fills; all stream. The
    stationary dataflows: SCALE-Sim's closed forms (ANCHORS.md B), of which each fold streams one vector a cycle.
    """
    pixels, taps, channels, columns = _matrix_shape(command)
    if 0 in (pixels, taps, channels, columns):
        return 0, 0
    if mfu.dataflow == "dot-product":
        cycles = _dot_product_cycles(mfu, command.settings, _dims(command, command.second, 5), pixels)
        return cycles, cycles
    depth = taps * channels
    shape = (pixels, columns, depth, mfu.rows, mfu.columns)
    if mfu.dataflow == "weight-stationary":
        folds = ceil_div(depth, mfu.rows) * ceil_div(columns, mfu.columns)
        return systolic.weight_stationary_cycles(*shape), folds * pixels
    if mfu.dataflow == "output-stationary":
        folds = ceil_div(pixels, mfu.rows) * ceil_div(columns, mfu.columns)
        return systolic.output_stationary_cycles(*shape), folds * depth
    folds = ceil_div(depth, mfu.rows) * ceil_div(pixels, mfu.columns)
    return systolic.input_stationary_cycles(*shape), folds * columns


def _dot_product_cycles(mfu: Mfu, settings: Settings, weights: tuple[int, ...], pixels: int) -> int:
    """Cycles by what fills the rows: channels, a row of the window, or channels x strides (NVDLA's sheet)."""
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


# --- Operands ---------------------------------------------------------------------------------------------------


def _present(command: Command, operand: Operand | None) -> Operand:
    if operand is None:
        raise ExecutionFault(f"{command.function.name} lacks an operand")
    return operand


def _dims(command: Command, operand: Operand | None, rank: int) -> tuple[int, ...]:
    """Sizes of an operand that must have `rank` axes."""
    dims = _present(command, operand).descriptor.dims
    if len(dims) != rank:
        raise ExecutionFault(f"{command.function.name} has an operand of {len(dims)} axes", f"it needs {rank}")
    return dims
