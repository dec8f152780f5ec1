"""Counters of convolutions by DFT against closed forms, memory levels, and the kernel DFT (S4.2 to S4.6)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from counting_machine import CountingMachine
from networks_on_npu import TOLERANCE
from odd_dft_networks import DIRECT, EDGE, by_dft, commands_of, convolution, setup_commands_of
from published_figures.published import read_anchor

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.execution.functional import memories_for, run
from device_agents.emulated_npu.machine import Memory
from device_agents.emulated_npu.reports.dft_counters import dft_counters
from device_agents.emulated_npu.timing.cost.command_cost import macs
from device_agents.emulated_npu.unit_commands import Command, Function, Space

ANCHOR = read_anchor("odd_dft")


@pytest.mark.parametrize("row", ANCHOR["blocks"], ids=lambda row: f"{row['kernel']}-{row['block']}")
def test_multiplications_and_bins_of_a_block(row: dict[str, Any]) -> None:
    """Multiplications of a DFT block against those of direct convolution, as in the published table.

    For kernel 3 and length 9: 7 x 7 outputs of 9 taps are 441, 41 bins of 4 are 164: 2.69 times fewer.
    """
    kernel, length = row["kernel"], row["block"]
    network = convolution((1, 1, length, length), (1, 1, kernel, kernel))
    (counters,) = dft_counters(by_dft(network, length, chains="layers"))
    machine = replace(EDGE, mfu=replace(EDGE.mfu, packing="none"))  # pixels one by one: no multiplications by zeros
    direct = sum(macs(command) for command in commands_of(compile_model(network.model, machine, DIRECT)))
    assert counters.blocks == 1
    assert direct / counters.multiplications == pytest.approx(row["four"], rel=ANCHOR["relative_tolerance"])
    assert direct / (3 * counters.bins) == pytest.approx(row["three"], rel=ANCHOR["relative_tolerance"])


@pytest.mark.parametrize(
    ("shape", "weights", "group", "length"),
    [
        ((1, 4, 20, 22), (6, 4, 3, 3), 1, 9),  # 3 x 3 blocks of 7 x 7 outputs
        ((1, 3, 40, 40), (2, 3, 5, 5), 1, 15),  # 4 x 4 blocks of 11 x 11 outputs
        ((2, 4, 12, 12), (6, 2, 2, 4), 2, 7),  # even and rectangular kernels, groups, two pictures
        ((1, 5, 12, 12), (10, 1, 3, 3), 5, 7),  # groups of one channel
    ],
)
def test_counters_of_commands(shape: tuple[int, ...], weights: tuple[int, ...], group: int, length: int) -> None:
    """Commands fetch (L L + 1) / 2 bins, store (N + 1) L complex numbers and multiply 4 bins C M T times."""
    compiled = by_dft(convolution(shape, weights, group=group), length, chains="layers")
    (counters,) = dft_counters(compiled)
    valid = [length - size + 1 for size in weights[2:]]
    outputs = [size - kernel + 1 for size, kernel in zip(shape[2:], weights[2:], strict=True)]
    number = shape[0] * -(-outputs[0] // valid[0]) * -(-outputs[1] // valid[1])
    assert counters.blocks == number
    assert counters.bins == (length * length + 1) // 2
    (one,) = compiled.graph.dft
    transforms = [each for each in commands_of(compiled) if each.layer in one.transforms]
    elements = sum(each.target.descriptor.elements for each in transforms if each.function is Function.CONVOLVE)
    assert elements == 2 * number * shape[1] * (length // 2 + 1) * length
    assert counters.kernel_transforms == weights[0] * weights[1]
    assert counters.multiplications == 4 * counters.bins * weights[0] * weights[1] * number


def test_one_kernel_dft_however_many_blocks() -> None:
    """The setup is the same for one block and for sixteen, and a run computes no kernel DFT."""
    few, many = (by_dft(convolution((1, 3, size, size), (4, 3, 5, 5)), 15, chains="layers") for size in (15, 59))
    (one,), (more,) = dft_counters(few), dft_counters(many)
    assert (one.blocks, more.blocks) == (1, 25)
    assert one.kernel_transforms == more.kernel_transforms == 12
    assert _moves(setup_commands_of(few)) == _moves(setup_commands_of(many))
    assert not any("kernel" in name for name in many.program.layers)
    assert all("kernel" in name for name in many.program.setup.layers)


def test_every_level_is_passed() -> None:
    """Blocks pass DDR, NB, last-level cache, NB and the unit; kernel DFTs pass SB instead of NB."""
    compiled = by_dft(convolution((1, 8, 40, 40), (8, 8, 5, 5)), 15, dft_kernels="llc")
    moves, setup_moves = _moves(commands_of(compiled)), _moves(setup_commands_of(compiled))
    blocks = compiled.graph.dft[0].blocks
    high_bytes = 8 * blocks.padded[0] * blocks.padded[1] * 4
    assert moves[Space.DDR, Space.NB] >= 8 * 40 * 40 * 4
    assert moves[Space.NB, Space.LLC] >= high_bytes
    assert moves[Space.LLC, Space.NB] >= high_bytes
    assert moves[Space.LLC, Space.SB] == blocks.bins * 8 * 8 * 2 * 4
    assert moves[Space.SB, Space.NB] > 0
    assert moves[Space.NB, Space.DDR] == 8 * 36 * 36 * 4
    assert setup_moves[Space.NB, Space.LLC] >= blocks.stored * 8 * 8 * 2 * 4


@pytest.mark.parametrize("level", ["llc", "ddr"])
def test_the_level_of_the_kernel_dfts(level: str) -> None:
    """Kernel DFTs lie in the selected memory, and nothing that a run writes overlaps them."""
    network = convolution((1, 4, 21, 20), (3, 4, 5, 5), pads=[2] * 4)
    compiled = by_dft(network, 11, dft_kernels=level)
    (counters,) = dft_counters(compiled)
    moves = _moves(commands_of(compiled))
    fetched = {space for space in (Space.LLC, Space.DDR) if moves[space, Space.SB] >= 61 * 4 * 3 * 2 * 4}
    assert Space[level.upper()] in fetched
    assert (Space.LLC in fetched) is (level == "llc")
    kernels = [each for layer in compiled.graph.dft[0].kernels for each in _written(setup_commands_of(compiled), layer)]
    assert {space for space, _, _ in kernels} == {Space[level.upper()]} == {counters.kernel_level}
    assert sum(end - first for _, first, end in kernels) >= 66 * 4 * 3 * 2 * 4
    runs = list(_written(commands_of(compiled)))
    assert runs
    for space, first, end in kernels:
        assert not any(space is other and low < end and first < high for other, low, high in runs)


def _moves(commands: list[Command]) -> Counter[tuple[Space, Space]]:
    """Return the bytes that loads, stores and copies move, and that units read and write, by source and target."""
    found: Counter[tuple[Space, Space]] = Counter()
    for command in commands:
        target = command.target.descriptor
        moving = command.function in (Function.LOAD, Function.STORE, Function.COPY)
        for source in command.sources:
            read = source.descriptor
            found[read.space, target.space] += target.bytes if moving else read.bytes
    return found


def _written(commands: list[Command], layer: int | None = None) -> Iterator[tuple[Space, int, int]]:
    """Return memory, first address and end of all off-chip writes of the commands."""
    for command in commands:
        descriptor, first = command.target.descriptor, command.target.address
        if layer in (None, command.layer) and descriptor.space in (Space.DDR, Space.LLC):
            steps = zip(descriptor.dims, descriptor.strides, strict=True)
            yield descriptor.space, first, first + sum((n - 1) * step for n, step in steps) + descriptor.dtype.bytes


def test_the_same_program_runs_again_and_again() -> None:
    """Constants are written and kernels transformed once; later inputs reuse them."""
    network = convolution((1, 4, 21, 20), (3, 4, 5, 5), pads=[2] * 4)
    for level in ("llc", "ddr"):
        compiled = by_dft(network, 11, dft_kernels=level)
        machine = CountingMachine(memories_for(EDGE, compiled.program.footprint))
        first = run(compiled.program, machine, compiled.image(network.weights), network.inputs)
        once, setup = len(commands_of(compiled)), len(setup_commands_of(compiled))
        assert machine.commands == setup + once
        other = {"x": 2 * network.inputs["x"]}
        second = run(compiled.program, machine, (), other)
        bias = network.weights["b"][None, :, None, None]
        assert np.abs(2 * (first["y"] - bias) - (second["y"] - bias)).max() <= TOLERANCE * np.abs(second["y"]).max()
        assert machine.commands == setup + 2 * once > 2 * once


def test_without_a_last_level_cache() -> None:
    """Without a last-level cache everything lies in DDR."""
    machine = replace(EDGE, llc=Memory(0, 0.0, 0.0, 0))
    compiled = by_dft(convolution((1, 4, 21, 20), (3, 4, 5, 5)), 11, machine)
    assert all(Space.LLC not in move for move in _moves(commands_of(compiled)))
