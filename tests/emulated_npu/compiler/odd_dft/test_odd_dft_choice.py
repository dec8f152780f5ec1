"""Convolutions are computed by DFT of odd blocks if that is predicted to be faster, or forced (S4.1, S4.7)."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from networks_on_npu import TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from odd_dft_networks import EDGE, by_dft, convolution, error_of
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.odd_dft.choice import DirectConvolution, direct_convolutions
from device_agents.emulated_npu.compiler.odd_dft.levels import CacheLevels, largest_length, levels
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import ContradictoryOptions, DoesNotFit, UnsupportedOperator
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine


def _compiled(network: NetworkCase, algorithm: str, **options: Any) -> Compiled:
    return _compiled_model(network.model, Options(conv_algorithm=algorithm, **options))


@cache
def _compiled_model(model: bytes, options: Options) -> Compiled:
    return compile_model(model, EDGE, options)


def _cycles(compiled: Compiled) -> float:
    return time_program(compiled.program, EDGE).cycles


@pytest.mark.parametrize(
    ("kernel", "channels", "size", "by_dft_"),
    [(7, 64, 28, True), (7, 4, 28, False), pytest.param(3, 16, 56, False, marks=pytest.mark.long)],
)
def test_the_choice_is_the_faster_one(kernel: int, channels: int, size: int, by_dft_: bool) -> None:
    """Large kernels on maps of many blocks use the DFT; the choice is at most 5 % slower than the better one."""
    shape, weights = (1, channels, size, size), (channels, channels, kernel, kernel)
    network = convolution(shape, weights, pads=[kernel // 2] * 4)
    chosen = _compiled(network, "auto")
    direct, forced = _compiled(network, "direct"), _compiled(network, "odd-dft")
    assert bool(chosen.graph.dft) is by_dft_
    assert not direct.graph.dft
    assert forced.graph.dft
    assert _cycles(chosen) <= 1.05 * min(_cycles(direct), _cycles(forced))


def test_a_network_is_not_slower_by_the_choice() -> None:
    """Convolutions that share a chain are compared within it; values stay those of ONNX Runtime."""
    nodes = [
        node("Conv", "x a", "p", pads=[1] * 4),
        node("Relu", "p", "q"),
        node("Conv", "q b", "r", pads=[3] * 4),
        node("Conv", "r c", "s"),
        node("Conv", "s d", "y", pads=[5] * 4),
    ]
    shapes = {"a": (16, 3, 3, 3), "b": (16, 16, 7, 7), "c": (64, 16, 1, 1), "d": (64, 64, 11, 11)}
    constants = {name: values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    network = network_of(nodes, {"x": values((1, 3, 48, 48))}, constants, ["y"])
    chosen, direct = _compiled(network, "auto"), _compiled(network, "direct")
    assert "y" in [one.name for one in chosen.graph.dft]
    assert _cycles(chosen) < _cycles(direct)
    assert relative_error(execute(chosen, network), network.expected) <= TOLERANCE


def test_the_cache_holds_the_kernels_that_save_most() -> None:
    """If the cache has room for the kernel DFTs of only one layer, the layer that saves more per byte gets it."""
    nodes = [node("Conv", f"{read} {kernel}", made, pads=[1] * 4) for read, kernel, made in ("xap", "zbq")]
    constants = {"a": values((128, 128, 3, 3), 0), "b": values((256, 256, 3, 3), 1)}
    inputs = {"x": values((1, 128, 8, 8)), "z": values((1, 256, 4, 4))}
    faster = replace(EDGE, llc=replace(EDGE.llc, bytes_per_s=2 * EDGE.llc.bytes_per_s))
    compiled = compile_model(network_of(nodes, inputs, constants, ["p", "q"]).model, faster)
    assert [one.name for one in compiled.graph.dft] == ["q"]


@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "reason"),
    [
        ((1, 3, 20, 20), (4, 3, 3, 3), {"strides": [2, 1]}, "stride 2 x 1"),
        ((1, 3, 20, 20), (4, 3, 3, 3), {"dilations": [1, 2]}, "dilation 1 x 2"),
        ((1, 3, 20), (4, 3, 3), {}, "1 spatial axis, not 2"),
        ((1, 3, 9, 9, 9), (4, 3, 3, 3, 3), {}, "3 spatial axes, not 2"),
    ],
    ids=str,
)
def test_convolutions_that_stay_direct(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any], reason: str
) -> None:
    """With a forced DFT, convolutions that it cannot compute stay direct, and the reason is listed."""
    compiled = by_dft(convolution(shape, weights, **attributes))
    assert not compiled.graph.dft
    assert direct_convolutions(compiled.graph) == (DirectConvolution("y", reason),)


def test_machines_of_other_types() -> None:
    """A machine that computes in int8 convolves directly, and refuses a forced DFT."""
    network, machine = convolution((1, 3, 20, 20), (4, 3, 3, 3)), find_machine("nvdla-32")
    assert not compile_model(network.model, machine).graph.dft
    with pytest.raises(UnsupportedOperator, match="nvdla-32 computes in int8") as caught:
        by_dft(network, machine=machine)
    assert "float32" in caught.value.why


@pytest.mark.parametrize(
    ("shape", "weights", "group", "depthwise"),
    [((1, 128, 14, 14), (128, 1, 7, 7), 128, True), ((1, 130, 6, 6), (65, 2, 3, 3), 65, False)],
    ids=["one channel", "two channels"],
)
def test_many_groups(shape: tuple[int, ...], weights: tuple[int, ...], group: int, depthwise: bool) -> None:
    """A forced DFT accepts any number of groups; groups of one channel share a layer."""
    network = convolution(shape, weights, group=group, pads=[weights[2] // 2] * 4)
    compiled = by_dft(network, 13 if depthwise else 5, chains="layers")
    assert [one.blocks.groups for one in compiled.graph.dft] == [group]
    assert (len(compiled.graph.dft[0].products) < group) is depthwise
    assert not direct_convolutions(compiled.graph)
    assert error_of(network, compiled) <= TOLERANCE


def test_no_room_for_kernel_dfts() -> None:
    """If kernel DFTs are forced into a last-level cache that is too small, the error has their size."""
    machine = replace(EDGE, llc=replace(EDGE.llc, bytes=4 << 10))
    with pytest.raises(DoesNotFit, match="kernel DFTs of y do not fit the last-level cache") as caught:
        by_dft(convolution((1, 8, 20, 20), (8, 8, 3, 3)), 9, machine, dft_kernels="llc")
    # 5 x 9 complex numbers of 4 bytes a part for each of 64 kernels, and 4 x 1024 free.
    assert "23040 bytes" in caught.value.why and "4096 are free" in caught.value.why


def test_what_is_forced_about_chains_is_about_the_networks_own_layers() -> None:
    """With a forced tile, convolutions are direct unless the DFT is forced as well."""
    network = convolution((1, 64, 28, 28), (64, 64, 7, 7), pads=[3] * 4)
    assert _compiled(network, "auto").graph.dft
    assert not _compiled(network, "auto", tile=(8, 8)).graph.dft
    assert _compiled(network, "odd-dft", tile=(8, 8)).graph.dft


@pytest.mark.parametrize(
    ("block", "algorithm", "words"),
    [
        (10, "odd-dft", ["block of 10", "odd", "11"]),
        (1, "auto", ["block of 1", "at least 3"]),
        (65, "odd-dft", ["block of 65", "63"]),
        (5, "odd-dft", ["y has a kernel of 7", "block of at most 5", "block of 7"]),
        (9, "direct", ["--dft-block 9 contradicts --conv-algorithm direct"]),
    ],
)
def test_impossible_blocks(block: int, algorithm: str, words: list[str]) -> None:
    """Blocks that are even, too short, too long, or shorter than a kernel are refused with value and limit."""
    network = convolution((1, 2, 20, 20), (2, 2, 7, 5))
    with pytest.raises((UnsupportedOperator, ContradictoryOptions)) as caught:
        _compiled(network, algorithm, dft_block=block)
    said = f"{caught.value.what} {caught.value.why} {caught.value.next_step}"
    assert all(word in said for word in words), said


def test_a_kernel_larger_than_the_largest_block() -> None:
    """A kernel that no block holds is refused if the DFT is forced, and convolved directly otherwise."""
    network = convolution((1, 1, 70, 70), (1, 1, 65, 3))
    with pytest.raises(UnsupportedOperator, match="kernel of 65, too large for a block of at most 63") as caught:
        _compiled(network, "odd-dft")
    assert "choose the algorithm" in caught.value.next_step
    assert not _compiled(network, "auto").graph.dft


def test_the_buffers_limit_the_blocks() -> None:
    """The lines and matrices of the longest block fit: sqrt((16 KiB - 4 KiB) / 2 / 8) is 27 for NB, 15 for SB."""
    machine = small_machine(nb_bytes=16 << 10, sb_bytes=8 << 10, halo_bytes=4 << 10)
    assert largest_length(machine) == 15
    assert largest_length(replace(machine, sb_bytes=1 << 20)) == 27
    with pytest.raises(UnsupportedOperator, match="block of 17"):
        by_dft(convolution((1, 1, 30, 30), (1, 1, 3, 3)), 17, machine)


def test_what_the_last_level_cache_holds() -> None:
    """Blocks lie in the cache if they fit; with little room, kernel DFTs and intermediate values do not."""
    blocks = OddBlocks(15, (5, 5), (56, 56), 16, 16)
    assert list(levels(blocks, EDGE)) == [CacheLevels(True, True, True, True), CacheLevels(True, True, True, False)]
    small = replace(EDGE, llc=replace(EDGE.llc, bytes=320_000))  # 70 x 70 x 16 floats are 313,600 bytes
    assert list(levels(blocks, small)) == [CacheLevels(True, False, False, False)]
    none = replace(EDGE, llc=replace(EDGE.llc, bytes=310_000))
    assert list(levels(blocks, none)) == [CacheLevels(False, False, False, False)]


def test_tiles_that_would_divide_columns_of_blocks_are_passed_over() -> None:
    """Line 0 of many columns of blocks is cut between columns, although most tile sizes would divide one."""
    network = convolution((1, 64, 112, 112), (16, 64, 3, 3), pads=[1] * 4)
    compiled = by_dft(network, 9, dft_kernels="llc")
    assert compiled.graph.dft[0].blocks.counts == (16, 16)
    assert any(plan.passes > 1 for plan in compiled.plans)
