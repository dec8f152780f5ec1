"""Convolutions by DFT of odd blocks have the values of ONNX Runtime (S4.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, event, given, settings, strategies as st
from networks_on_npu import ORDERS, TOLERANCE, execute, network_of, relative_error, small_machine
from odd_dft_networks import by_dft, convolution, error_of
from small_models import node, values

from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import find_machine

LENGTHS = tuple(range(9, 35, 2))
SOME_LENGTHS = LENGTHS[1::3]


@pytest.mark.parametrize(
    ("kernel", "lengths"),
    [
        *[(3, LENGTHS), (5, SOME_LENGTHS), (7, SOME_LENGTHS), (11, SOME_LENGTHS)],
        *(pytest.param(kernel, LENGTHS, marks=pytest.mark.long) for kernel in (5, 7, 11)),
    ],
)
def test_kernels_and_blocks(kernel: int, lengths: tuple[int, ...]) -> None:
    """Kernels 3, 5, 7 and 11 work with every block from 9 to 33 that holds them, on a map of several blocks."""
    network = convolution((1, 2, 19, 26), (3, 2, kernel, kernel), pads=[kernel // 2] * 4)
    for length in lengths:
        if length >= kernel:
            compiled = by_dft(network, length, dft_kernels="llc", chains="layers")
            assert compiled.graph.dft[0].blocks.length == length
            assert error_of(network, compiled) <= TOLERANCE, length


@given(st.data())
@settings(max_examples=8)
def test_shapes_padding_groups_and_channels(data: st.DataObject) -> None:
    """Any kernel, also even and rectangular, works with any padding, groups, pictures and map."""
    kernel = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 8)), "kernel")
    groups = data.draw(st.sampled_from([1, 1, 2, 3]), "groups")
    channels, outputs = (groups * data.draw(st.integers(1, 4), what) for what in ("channels", "outputs"))
    pads = [data.draw(st.integers(0, size - 1), "pad") for size in (*kernel, *kernel)]
    size = [data.draw(st.integers(max(1, one - first - last), 24), "size") for one, first, last in _axes(kernel, pads)]
    pictures = data.draw(st.integers(1, 2), "pictures")
    length = data.draw(st.sampled_from([n for n in range(3, 18, 2) if n >= max(kernel)]), "length")
    weights = (outputs, channels // groups, *kernel)
    network = convolution((pictures, channels, *size), weights, pads=pads, group=groups)
    level, chains = (data.draw(st.sampled_from(names)) for names in (["llc", "ddr"], ["layers", "auto"]))
    compiled = by_dft(network, length, dft_kernels=level, chains=chains)
    assert len(compiled.graph.dft) == 1
    assert error_of(network, compiled) <= TOLERANCE


def _axes(kernel: tuple[int, int], pads: list[int]) -> zip[tuple[int, int, int]]:
    return zip(kernel, pads[:2], pads[2:], strict=True)


@given(st.data())
@settings(max_examples=4)
def test_small_machines(data: st.DataObject) -> None:
    """In buffers of a few KiB, where every step is cut into tiles, the values are the same in every order."""
    kernel = data.draw(st.sampled_from([2, 3, 5]), "kernel")
    channels, outputs = (data.draw(st.integers(1, 9), what) for what in ("channels", "outputs"))
    size = data.draw(st.integers(kernel, 20), "size")
    network = convolution((1, channels, size, size), (outputs, channels, kernel, kernel), pads=[kernel // 2] * 4)
    machine = small_machine(nb_bytes=data.draw(st.sampled_from([6, 12, 40]), "NB") << 10, sb_bytes=6 << 10)
    try:
        length, chains = (data.draw(st.sampled_from(choices)) for choices in ([5, 7, 9], ["layers", "auto"]))
        compiled = by_dft(network, length, machine, chains=chains)
    except DoesNotFit:
        event("does not fit")
        assume(False)
    found = [execute(compiled, network, order) for order in ORDERS]
    event("several passes" if any(plan.passes > 1 for plan in compiled.plans) else "one pass")
    assert relative_error(found[0], network.expected) <= TOLERANCE
    assert all(one["y"].tobytes() == found[0]["y"].tobytes() for one in found[1:])


def _network(nodes: list[Any], weights: tuple[int, ...], **constants: Any) -> Any:
    given_ = {"w": values(weights, 1), "b": values(weights[:1], 2), **constants}
    return network_of(nodes, {"x": values((1, weights[1], 14, 13))}, given_, ["y"])


@pytest.mark.parametrize("length", [5, 21])
def test_what_is_folded_into_a_convolution(length: int) -> None:
    """Batch normalisation, bias, residual and activation of a convolution stay part of it."""
    normal = {name: abs(values((4,), seed)) + 0.5 for seed, name in enumerate(("gamma", "beta", "mean", "variance"))}
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("BatchNormalization", "c gamma beta mean variance", "n"),
        node("Add", "n x", "s"),
        node("Relu", "s", "y"),
    ]
    network = _network(nodes, (4, 4, 3, 3), **normal)
    compiled = by_dft(network, length)
    assert error_of(network, compiled) <= TOLERANCE
    assert [layer.nodes for layer in compiled.graph.layers if layer.nodes] == [("c", "n", "s", "y")]
    assert sum(layer.name == "c" for layer in compiled.graph.layers) == 1


def test_parts_of_a_concatenation_and_a_depthwise_convolution() -> None:
    """A DFT convolution can write into a part of another tensor, and have one channel per group."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("Conv", "c d", "e", pads=[2] * 4, group=4),
        node("Concat", "e c", "y", axis=1),
    ]
    network = _network(nodes, (4, 3, 3, 3), d=values((8, 1, 5, 5), 5))
    compiled = by_dft(network, 9)
    assert len(compiled.graph.dft) == 2
    assert error_of(network, compiled) <= TOLERANCE


@pytest.mark.parametrize("bytes_per_s", [2e9, *(pytest.param(one, marks=pytest.mark.long) for one in (4e9, 17e9))])
def test_a_dense_block_compiles_at_any_bandwidth(bytes_per_s: float) -> None:
    """A chain that reads a concatenation and appends to it is compared by DFT and directly, and values are right."""
    edge = find_machine("edge")
    machine = replace(edge, ddr=replace(edge.ddr, bytes_per_s=bytes_per_s))
    size, width, growth = 7, 256, 32
    nodes, constants, last = [], {}, "x"
    for at in range(2):
        channels = width + at * growth
        constants |= {
            f"s{at}": values((1, channels, 1, 1), at),
            f"a{at}": values((128, channels, 1, 1), at) / 16,
            f"b{at}": values((growth, 128, 3, 3), at) / 16,
        }
        nodes += [
            node("Mul", f"{last} s{at}", f"m{at}"),
            node("Relu", f"m{at}", f"r{at}"),
            node("Conv", f"r{at} a{at}", f"p{at}"),
            node("Relu", f"p{at}", f"q{at}"),
            node("Conv", f"q{at} b{at}", f"c{at}", pads=[1] * 4),
            node("Concat", f"{last} c{at}", f"y{at}", axis=1),
        ]
        last = f"y{at}"
    network = network_of(nodes, {"x": values((1, width, size, size))}, constants, [last])
    compiled = compile_model(network.model, machine, DEFAULT)
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
