"""The memories that hold the values between the steps of a DFT convolution (S4.1, S4.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.machine import Machine

Role = Literal["blocks", "lines", "columns", "kernels"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Values between the steps: the input in blocks, its row DFT, the inverse across the lines, and the kernel DFTs."""


@dataclass(frozen=True)
class DftSizes:
    """Bytes of the values between the steps of one picture, and of the kernel DFTs of the layer."""

    blocks: int
    lines: int
    columns: int
    kernels: int

    @classmethod
    def of(cls, blocks: OddBlocks, machine: Machine) -> DftSizes:
        """Return the sizes for a convolution in the machine's data type."""
        item = machine.data_type.bytes
        (height, width), (rows, across) = blocks.padded, blocks.counts
        channels, outputs = blocks.groups * blocks.channels, blocks.groups * blocks.outputs
        lines = blocks.half + 1
        return cls(
            height * width * channels * item,
            2 * lines * height * across * channels * item,
            2 * lines * rows * blocks.valid[0] * across * outputs * item,
            lines * blocks.length * blocks.kernel_transforms * 2 * item,
        )


@dataclass(frozen=True)
class CacheLevels:
    """Whether the values between the steps lie in the last-level cache; they are in DDR otherwise."""

    blocks: bool
    lines: bool
    columns: bool
    kernels: bool

    @property
    def cached(self) -> tuple[Role, ...]:
        """The values in the last-level cache."""
        return tuple(role for role in ROLES if getattr(self, role))


def levels(blocks: OddBlocks, machine: Machine, taken_bytes: int = 0) -> Iterator[CacheLevels]:
    """Yield the best set of values for the last-level cache, with the kernel DFTs and without them.

    The blocks are cached if they fit, then the values that save most traffic. Blocks and lines are live at the same
    time, so are lines and columns; the kernel DFTs are always live. `taken_bytes` counts the kernel DFTs of other
    convolutions.
    """
    sizes = DftSizes.of(blocks, machine)
    for kernels in (True, False):
        room = machine.llc.bytes - taken_bytes - kernels * sizes.kernels
        if kernels and room < 0:
            continue
        high = sizes.blocks <= room
        fitting = [
            (lines, columns)
            for lines, columns in itertools.product((True, False), repeat=2)
            if high * sizes.blocks + lines * sizes.lines <= room
            and lines * sizes.lines + columns * sizes.columns <= room
        ]
        if fitting and (high or not kernels):
            lines, columns = max(fitting, key=lambda pair: pair[0] * sizes.lines + pair[1] * sizes.columns)
            yield CacheLevels(high, lines, columns, kernels)


def largest_length(machine: Machine) -> int:
    """Return the longest odd block of one channel for which the buffers hold block, lines and both DFT matrices."""
    item = machine.data_type.bytes
    half_nb, half_sb = (machine.nb_bytes - machine.halo_bytes) // 2, machine.sb_bytes // 4
    if machine.shared_buffer:
        half_sb //= 2
    side = min(math.isqrt(half_nb // (2 * item)), math.isqrt(half_sb // (2 * item)))
    return side if side % 2 else side - 1
