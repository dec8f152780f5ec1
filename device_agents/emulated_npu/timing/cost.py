"""What a command costs on a machine: time in whole picoseconds, multiply-adds, bytes of external memory (S2.6).

The one source of durations: the compiler predicts with it, and timing and formula run on it. A cost never
depends on an address, so equal shapes cost the same wherever they lie and are looked up once.

- IO: the latency of the memory, then its bytes at its bandwidth. A view is fetched run by run in the order
  of memory, each run rounded up to whole bursts; GATHER fetches row by row. An axis of stride zero is
  fetched once and repeated on chip. Where both sides are external, the slower one counts.
- MFU: the cycles of its dataflow (`_matrix_cycles`) plus the start-up. The epilogue (sum with the third
  operand, scale and shift, activation) lies on the output path and costs nothing.
- VFU: operations over lanes, rounded up to whole cycles, plus the start-up (`vector_cost.py`).

The model is monotone: more bandwidth or a faster clock never makes a command slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.command import Command, Descriptor, Function, Operand, Queue, Settings, Space
from device_agents.emulated_npu.errors import ExecutionFault
from device_agents.emulated_npu.machine import Link, Machine, Memory, Mfu
from device_agents.emulated_npu.timing import closed_form
from device_agents.emulated_npu.timing.vector_cost import vector_operations

_PS_PER_S = 10**12
_PS_PER_NS = 1000
_EXTERNAL = (Space.DDR, Space.LLC)


class Traffic(NamedTuple):
    """Bytes that a command moves out of and into one external memory; the payload, not the bursts."""

    space: Space
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class Cost:
    """What one command costs; `fill_ps` is the part of its time that start-up, fill and drain take."""

    duration_ps: int
    fill_ps: int
    macs: int
    traffic: tuple[Traffic, ...]


def cycle_ps(machine: Machine) -> int:
    """Picoseconds of one cycle, rounded to whole ones."""
    return round(_PS_PER_S / machine.clock_hz)


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


def external_bytes(command: Command) -> tuple[Traffic, ...]:
    """Bytes that an IO command reads and writes, by external memory; empty for a CP command."""
    return _traffic(_transfers(command))


class CostModel:
    """Costs on one machine, each computed once for every combination of function, shapes and settings.

    Raises `ExecutionFault` for a command whose operands its function cannot have, and for one that uses a
    last-level cache where there is none.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cycle_ps = cycle_ps(machine)
        self._costs: dict[tuple[object, ...], Cost] = {}

    def duration_ps(self, command: Command) -> int:
        """Time of the command on its unit, from the start of its service to its end."""
        return self.cost(command).duration_ps

    def cost(self, command: Command) -> Cost:
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

    def _computed(self, command: Command) -> Cost:
        if command.function is Function.RECEIVE or (command.function is Function.SEND and command.first is None):
            return Cost(0, 0, 0, ())
        if command.queue is Queue.IO:
            transfers = _transfers(command)
            if command.function is Function.SEND:
                return Cost(_sending_ps(self.machine, command, transfers), 0, 0, _traffic(transfers))
            return Cost(_transfers_ps(self.machine, command, transfers), 0, 0, _traffic(transfers))
        if command.function is Function.CONVOLVE:
            mfu = self.machine.mfu
            cycles, streaming = _matrix_cycles(mfu, command)
            cycles += mfu.startup_cycles
        else:
            vfu = self.machine.vfu
            streaming = closed_form.ceil_div(vector_operations(command, vfu.special_cycles), vfu.lanes)
            cycles = streaming + vfu.startup_cycles
        return Cost(cycles * self.cycle_ps, (cycles - streaming) * self.cycle_ps, macs(command), ())


# --- IO ---------------------------------------------------------------------------------------------------------


class _Runs(NamedTuple):
    """Stretches of adjacent bytes: how many, and how long each is."""

    number: int
    length_bytes: int


def _runs(descriptor: Descriptor, skip: int = 0) -> _Runs:
    """The runs of a view in the order of memory, without its first `skip` axes."""
    axes = sorted(
        (abs(stride), size)
        for size, stride in zip(descriptor.dims[skip:], descriptor.strides[skip:], strict=True)
        if size != 1 and stride != 0
    )
    if not descriptor.elements:
        return _Runs(0, 0)
    run, count = descriptor.dtype.bytes, 1
    for stride, size in axes:
        if stride == run and count == 1:
            run *= size
        else:
            count *= size
    return _Runs(count, run)


_Transfers = dict[Space, tuple[list[_Runs], list[_Runs]]]


def _transfers(command: Command) -> _Transfers:
    """What an IO command reads and writes of every external memory that it touches."""
    found: _Transfers = {}
    if command.queue is not Queue.IO:
        return found
    if command.first is None and command.function in (Function.SEND, Function.RECEIVE):  # nothing is moved
        return found
    first, target = _present(command, command.first).descriptor, command.target.descriptor
    skip, times = 0, 1
    if command.function is Function.GATHER:
        index = _present(command, command.second).descriptor
        skip, times = 1, index.elements
        if index.space in _EXTERNAL:
            found[index.space] = ([_runs(index)], [])
    if first.space in _EXTERNAL:
        row = _runs(first, skip)
        found.setdefault(first.space, ([], []))[0].append(_Runs(row.number * times, row.length_bytes))
    if target.space in _EXTERNAL:
        found.setdefault(target.space, ([], []))[1].append(_runs(target))
    return found


def _traffic(transfers: _Transfers) -> tuple[Traffic, ...]:
    return tuple(
        Traffic(space, *(sum(run.number * run.length_bytes for run in runs) for runs in sides))
        for space, sides in transfers.items()
    )


def _transfers_ps(machine: Machine, command: Command, transfers: _Transfers) -> int:
    if not transfers:
        raise ExecutionFault(
            f"{command.function.name} touches no external memory", "IO commands move data to or from DDR or LLC"
        )
    return max(_memory_ps(machine, space, reads + writes) for space, (reads, writes) in transfers.items())


def _sending_ps(machine: Machine, command: Command, transfers: _Transfers) -> int:
    """Until the payload is out, to a core of the same chip: as long as the slower of memory and link takes."""
    return max(link_ps(machine.cores.link, payload_bytes(command)), _transfers_ps(machine, command, transfers))


def payload_bytes(command: Command) -> int:
    """What a SEND moves; 0 for one that only tells."""
    return 0 if command.first is None else command.target.descriptor.elements * command.target.descriptor.dtype.bytes


def link_ps(link: Link, moved_bytes: int) -> int:
    """Time of a payload on a link that nobody else uses, without its latency; raises ExecutionFault without a link."""
    if link.bytes_per_s == 0:
        raise ExecutionFault("a command sends over a link", "the machine has none", "Compile for this machine")
    return math.ceil(moved_bytes * _PS_PER_S / link.bytes_per_s)


def _memory_ps(machine: Machine, space: Space, runs: list[_Runs]) -> int:
    memory: Memory = machine.llc if space is Space.LLC else machine.ddr
    if memory.bytes == 0:
        raise ExecutionFault(
            f"a command uses {space.name}", f"{machine.name} has none", "Compile the network for this machine"
        )
    burst = memory.burst_bytes
    bursts_bytes = sum(run.number * closed_form.ceil_div(run.length_bytes, burst) * burst for run in runs)
    return round(memory.latency_ns * _PS_PER_NS) + math.ceil(bursts_bytes * _PS_PER_S / memory.bytes_per_s)


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
        folds = closed_form.ceil_div(depth, mfu.rows) * closed_form.ceil_div(columns, mfu.columns)
        return closed_form.weight_stationary_cycles(*shape), folds * pixels
    if mfu.dataflow == "output-stationary":
        folds = closed_form.ceil_div(pixels, mfu.rows) * closed_form.ceil_div(columns, mfu.columns)
        return closed_form.output_stationary_cycles(*shape), folds * depth
    folds = closed_form.ceil_div(depth, mfu.rows) * closed_form.ceil_div(pixels, mfu.columns)
    return closed_form.input_stationary_cycles(*shape), folds * columns


def _dot_product_cycles(mfu: Mfu, settings: Settings, weights: tuple[int, ...], pixels: int) -> int:
    """Cycles by what fills the rows: channels, a row of the window, or channels x strides (NVDLA's sheet)."""
    depth, height, width, channels, columns = weights
    groups = pixels * closed_form.ceil_div(columns, mfu.columns)
    if mfu.packing == "row":
        return groups * depth * height * closed_form.ceil_div(width * channels, mfu.rows)
    if mfu.packing == "stride":
        unfolded = math.prod(settings.stride)
        if not unfolded:
            raise ExecutionFault("CONVOLVE has a stride of zero")
        return closed_form.ceil_div(
            groups * depth * height * width * closed_form.ceil_div(channels * unfolded, mfu.rows), unfolded
        )
    return groups * depth * height * width * closed_form.ceil_div(channels, mfu.rows)


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
