"""Several pixels side by side fill an array that few channels leave idle, and compute the same values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.cost.matrix_cost import matrix_cycles, matrix_shape
from device_agents.emulated_npu.unit_commands import Command, Function

EDGE = find_machine("edge")


def _convolution(
    channels: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int = 1,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    dilation: int = 1,
) -> NetworkCase:
    """Return a convolution with bias and activation, with the sum of a second map where that has its shape."""
    constants = {"w": values((outputs, channels, *kernel), 1), "b": values((outputs,), 2)}
    window = {"strides": [stride] * 2, "pads": list(pads), "dilations": [1, dilation]}
    nodes = [node("Conv", "x w b", "c", **window)]
    if channels == outputs and stride == dilation == 1 and pads == (1, 1, 1, 1) and kernel == (3, 3):
        nodes.append(node("Add", "c x", "s"))
    nodes.append(node("Relu", nodes[-1].output[0], "y"))
    return network_of(nodes, {"x": values((1, channels, *size), 3)}, constants, ["y"])


def _products(compiled: Compiled) -> list[Command]:
    steps = sequence(compiled.program.code)
    items = [step.item for step in steps if isinstance(step.item, Command)]
    return [item for item in items if item.function is Function.CONVOLVE]


def _cycles(compiled: Compiled) -> int:
    return sum(matrix_cycles(compiled.machine.mfu, command)[0] for command in _products(compiled))


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "one_by_one", "most"),
    [
        (12, 12, 3, 6, 2.7),  # FSRCNN's maps: two pixels, whose windows of 3 x 4 x 12 inputs take 5 cycles
        (56, 4, 5, 45, 14.5),  # its transposed convolution as four phases: eight pixels, 5 x 12 x 56 inputs
        (1, 56, 5, 10, 2.3),  # its first layer: the whole window on the rows
        (64, 64, 3, 36, 36),  # enough channels: nothing is idle
    ],
)
def test_few_channels_leave_little_of_the_array_idle(
    channels: int, outputs: int, kernel: int, one_by_one: int, most: float
) -> None:
    """On `edge`, a pixel takes fewer cycles than with one row of its window at a time, and the values are right."""
    before = kernel // 2
    network = _convolution(channels, outputs, (48, 160), (kernel, kernel), pads=(before,) * 4)
    compiled = compile_model(network.model, EDGE)
    assert _cycles(compiled) <= most * 48 * 160 <= one_by_one * 48 * 160
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.integers(1, 3),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from(((8, 8), (8, 2), (32, 32))),
    st.sampled_from((1, 1, 2)),
)
@settings(max_examples=18)
def test_values_are_those_of_the_runtime(
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int],
    array: tuple[int, int],
    dilation: int,
) -> None:
    """Whatever the window, its padding and the array, values are right and no more cycles pass than one by one."""
    height, width, bottom, right = pads
    inside = (min(height, kernel[0] - 1), min(width, kernel[1] - 1), min(bottom, kernel[0] - 1))
    network = _convolution(channels, outputs, (7, 19), kernel, stride, (*inside, min(right, kernel[1] - 1)), dilation)
    machine = small_machine(array=array)
    compiled = compile_model(network.model, machine)
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
    plain = compile_model(network.model, _one_by_one(machine))
    assert _cycles(compiled) <= _cycles(_on(plain, machine))


def _one_by_one(machine: Machine) -> Machine:
    """Return the machine whose compiler takes the map for one that an array with rows of the window cannot share."""
    return replace(machine, mfu=replace(machine.mfu, packing="none"))


def _on(compiled: Compiled, machine: Machine) -> Compiled:
    """Return the same program for another machine."""
    return replace(compiled, machine=machine)


def test_tiles_have_the_bits_of_the_whole() -> None:
    """Whether pixels are computed side by side depends on the layer, so that parts of lines and maps have its bits."""
    network = _convolution(12, 12, (24, 64), (3, 3))
    found = [
        execute(compile_model(network.model, EDGE, Options(tile=tile)), network)["y"]
        for tile in ((24, 64), (4, 64), (1, 64), (5, 17))
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_several_pixels_are_one_product() -> None:
    """The columns of a product are the channels of several pixels, and its rows their common window."""
    network = _convolution(12, 12, (96, 64), (3, 3))
    shapes = {matrix_shape(command) for command in _products(compile_model(network.model, EDGE))}
    assert max(shape.columns for shape in shapes) == 24
    assert {(shape.channels, shape.taps) for shape in shapes if shape.columns == 24} == {(48, 3)}
