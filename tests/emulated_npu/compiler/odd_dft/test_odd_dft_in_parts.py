"""Convolutions whose chain reads one part of a tensor and writes another, as concatenations in dense blocks do."""

from dataclasses import replace

import pytest
from networks_on_npu import TOLERANCE, execute, network_of, relative_error
from small_models import node, values

from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import find_machine


@pytest.mark.parametrize("bytes_per_s", [2e9, pytest.param(4e9, marks=pytest.mark.long), 17e9])
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
