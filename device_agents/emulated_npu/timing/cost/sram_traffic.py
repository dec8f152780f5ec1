"""The bytes that commands read from and write to the memories of a core, NB (with the halo buffer) and SB.

The units keep what they use again, if the machine says so: weights and vectors are read once for a command,
features of a CONVOLVE once for each group of output channels (`Mfu.held_columns`), and every result is written once. So
these are the fewest bytes that the buffers must move. Bytes that a view repeats are read once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.machine import Mfu
from device_agents.emulated_npu.timing.cost.transfer_cost import dims_of
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Operand, Space

_NB = (Space.NB, Space.HALO)


class SramTraffic(NamedTuple):
    """Bytes read from NB and written to it, halo buffer included, and bytes read from SB and written to it."""

    nb_read_bytes: int
    nb_written_bytes: int
    sb_read_bytes: int
    sb_written_bytes: int


def sram_traffic(mfu: Mfu, command: Command) -> SramTraffic:
    """Return the bytes of any data command; raises ExecutionFault for a CONVOLVE without its operands."""
    repeated = _sweeps(mfu, command)
    nb_read = sb_read = 0
    for operand in command.sources:
        size = _distinct_bytes(operand.descriptor) * (repeated if operand is command.first else 1)
        nb_read += size if operand.descriptor.space in _NB else 0
        sb_read += size if operand.descriptor.space is Space.SB else 0
    written = _distinct_bytes(command.target.descriptor)
    if command.accumulate:
        nb_read += written
    return SramTraffic(nb_read, _in(command.target, _NB, written), sb_read, _in(command.target, (Space.SB,), written))


def port_cycles(nb_port_bytes: int, sb_port_bytes: int, traffic: SramTraffic) -> int:
    """Return the cycles that the ports of NB and SB need for a CP command; a port of 0 bytes never limits."""
    features = traffic.nb_read_bytes + traffic.nb_written_bytes
    of_nb = ceil_div(features, nb_port_bytes) if nb_port_bytes else 0
    of_sb = ceil_div(traffic.sb_read_bytes, sb_port_bytes) if sb_port_bytes else 0
    return max(of_nb, of_sb)


def _in(operand: Operand, spaces: tuple[Space, ...], size: int) -> int:
    return size if operand.descriptor.space in spaces else 0


def _sweeps(mfu: Mfu, command: Command) -> int:
    """Return how often a command reads its first operand."""
    if command.function is not Function.CONVOLVE:
        return 1
    *_, columns = dims_of(command, command.target, 4)
    return ceil_div(columns, mfu.held_columns or mfu.columns)


def _distinct_bytes(descriptor: Descriptor) -> int:
    """Return the bytes of a view, those that it repeats once."""
    sizes = zip(descriptor.dims, descriptor.strides, strict=True)
    moved = math.prod(size if stride or not size else 1 for size, stride in sizes) * descriptor.dtype.bytes
    low, high = descriptor.extent
    return min(moved, high - low)
