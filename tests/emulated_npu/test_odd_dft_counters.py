"""Counters of convolutions by DFT against closed forms, levels of the hierarchy, and the kernel DFT (S4.2 to S4.6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks_on_npu import TOLERANCE
from odd_dft_networks import EDGE, by_dft, convolution

from device_agents.emulated_npu.command import Space
from device_agents.emulated_npu.compiler.odd_dft_blocks import Blocks
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.machine import Memory
from device_agents.emulated_npu.reports.dft_counters import dft_counters

# Kernel, block: direct multiplications over those of the pointwise product, four for each complex one.
PUBLISHED = {
    (3, 9): 2.69, (3, 15): 3.37, (3, 21): 3.68, (3, 33): 3.97, (5, 15): 6.69, (5, 33): 9.64, (7, 15): 8.78,
    (7, 33): 16.4, (11, 21): 16.6,
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "length"), PUBLISHED)
def test_multiplications_and_bins_of_a_block(kernel: int, length: int) -> None:
    """By hand for kernel 3 and length 9: 7 x 7 outputs of 9 taps are 441, 41 bins of 4 are 164: 2.69 times as many."""
    blocks = Blocks(length, (kernel, kernel), (length - kernel + 1,) * 2, channels=1, outputs=1)
    assert blocks.number == 1
    assert blocks.bins == (length * length + 1) // 2
    assert blocks.stored == (length // 2 + 1) * length
    ratio = blocks.direct_multiplications / blocks.multiplications
    assert ratio == pytest.approx(PUBLISHED[kernel, length], rel=5e-3)


@pytest.mark.parametrize(
    ("shape", "weights", "group", "length"),
    [
        ((1, 4, 20, 22), (6, 4, 3, 3), 1, 9),  # 3 x 3 blocks of 7 x 7 outputs
        ((1, 3, 40, 40), (2, 3, 5, 5), 1, 15),  # 4 x 4 blocks of 11 x 11 outputs
        ((2, 4, 12, 12), (6, 2, 2, 4), 2, 7),  # even and rectangular kernels, groups, two pictures
    ],
)
def test_counters_of_commands(shape: tuple[int, ...], weights: tuple[int, ...], group: int, length: int) -> None:
    """Commands fetch (L L + 1) / 2 bins, store (N + 1) L complex numbers and multiply 4 bins C M T times."""
    compiled = by_dft(convolution(shape, weights, group=group), length)
    (counters,) = dft_counters(compiled)
    valid = [length - size + 1 for size in weights[2:]]
    outputs = [size - kernel + 1 for size, kernel in zip(shape[2:], weights[2:], strict=True)]
    number = shape[0] * -(-outputs[0] // valid[0]) * -(-outputs[1] // valid[1])
    assert counters.blocks == number
    assert counters.bins == (length * length + 1) // 2
    assert counters.stored == (length // 2 + 1) * length
    assert counters.kernel_transforms == weights[0] * weights[1]
    assert counters.multiplications == 4 * counters.bins * weights[0] * weights[1] * number


def test_one_kernel_dft_however_many_blocks() -> None:
    """The setup is the same for one block and for sixteen, and a run computes no DFT of a kernel."""
    few, many = (by_dft(convolution((1, 3, size, size), (4, 3, 5, 5)), 15) for size in (15, 59))
    (one,), (more,) = dft_counters(few), dft_counters(many)
    assert (one.blocks, more.blocks) == (1, 25)
    assert one.kernel_transforms == more.kernel_transforms == 12
    assert one.setup_moves == more.setup_moves
    assert not any("kernel" in name for name in many.program.layers)
    assert all("kernel" in name for name in many.program.setup.layers)


def test_every_level_is_passed() -> None:
    """Blocks go from DDR by NB to the last-level cache, from there by NB to the unit; so do kernel DFTs, by SB."""
    compiled = by_dft(convolution((1, 8, 40, 40), (8, 8, 5, 5)), 15, dft_kernels="llc")
    (counters,) = dft_counters(compiled)
    blocks = compiled.graph.dft[0].blocks
    high_bytes = 8 * blocks.padded[0] * blocks.padded[1] * 4
    assert counters.moves[Space.DDR, Space.NB] >= 8 * 40 * 40 * 4
    assert counters.moves[Space.NB, Space.LLC] >= high_bytes
    assert counters.moves[Space.LLC, Space.NB] >= high_bytes
    assert counters.moves[Space.LLC, Space.SB] == blocks.bins * 8 * 8 * 2 * 4
    assert counters.moves[Space.SB, Space.NB] > 0
    assert counters.moves[Space.NB, Space.DDR] == 8 * 36 * 36 * 4
    assert counters.setup_moves[Space.NB, Space.LLC] >= blocks.stored * 8 * 8 * 2 * 4


@pytest.mark.parametrize("level", ["llc", "ddr"])
def test_the_level_of_the_kernel_dfts(level: str) -> None:
    """They lie where they are told to, and nothing that a run writes overlaps them."""
    network = convolution((1, 4, 21, 20), (3, 4, 5, 5), pads=[2] * 4)
    compiled = by_dft(network, 11, dft_kernels=level)
    (counters,) = dft_counters(compiled)
    fetched = {space for space in (Space.LLC, Space.DDR) if counters.moves[space, Space.SB] >= 61 * 4 * 3 * 2 * 4}
    assert Space[level.upper()] in fetched
    assert (Space.LLC in fetched) is (level == "llc")


def test_the_same_program_runs_again_and_again() -> None:
    """Constants are written and kernels transformed once; later inputs share them."""
    network = convolution((1, 4, 21, 20), (3, 4, 5, 5), pads=[2] * 4)
    for level in ("llc", "ddr"):
        compiled = by_dft(network, 11, dft_kernels=level)
        machine = FunctionalMachine(memories_for(EDGE, compiled.program.footprint))
        first = run(compiled.program, machine, compiled.image(network.weights), network.inputs)
        once, setup = machine.counters.commands, machine.setup_counters.commands
        other = {"x": 2 * network.inputs["x"]}
        second = run(compiled.program, machine, (), other)
        bias = network.weights["b"][None, :, None, None]
        assert np.abs(2 * (first["y"] - bias) - (second["y"] - bias)).max() <= TOLERANCE * np.abs(second["y"]).max()
        assert machine.counters.commands == 2 * once
        assert machine.setup_counters.commands == setup > 0


def test_without_a_last_level_cache() -> None:
    """Then everything lies in DDR."""
    machine = replace(EDGE, llc=Memory(0, 0.0, 0.0, 0))
    compiled = by_dft(convolution((1, 4, 21, 20), (3, 4, 5, 5)), 11, machine)
    (counters,) = dft_counters(compiled)
    assert all(Space.LLC not in move for move in counters.moves)
