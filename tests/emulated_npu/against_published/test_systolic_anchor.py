"""ResNet-18 on the systolic preset, layer by layer through the whole compiler: exactly the published cycles."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from published_figures.published import read_anchor

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.timing.simulation import simulate_program

ANCHOR = read_anchor("systolic_resnet18")


@cache
def matrix_cycles(size: int, kernel: int, in_channels: int, out_channels: int, stride: int) -> float:
    """Return the busy cycles of the matrix unit for one convolution; the end is padded because sizes are rounded up."""
    side = -(-(size - kernel + stride) // stride)
    padded = (side - 1) * stride + kernel
    weights = numpy_helper.from_array(np.zeros((out_channels, in_channels, kernel, kernel), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride, stride])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, in_channels, padded, padded])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, out_channels, side, side])],
        [weights],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    machine = load_preset(f"systolic-{ANCHOR['rows']}")
    timing = simulate_program(compile_model(content, machine).program, machine)
    return timing.cycles(timing.mfu_ps)


def _cycles(layer: dict[str, Any]) -> float:
    return matrix_cycles(*(layer[key] for key in ("size", "kernel", "in_channels", "out_channels", "stride")))


@pytest.mark.parametrize("name", [layer["name"] for layer in ANCHOR["layers"] if "cycles" in layer])
def test_a_layer_takes_the_published_cycles(name: str) -> None:
    """A compiled single layer keeps the matrix unit busy for exactly the published number of cycles."""
    layer = next(each for each in ANCHOR["layers"] if each["name"] == name)
    assert _cycles(layer) == layer["cycles"]


def test_the_network_takes_the_published_cycles() -> None:
    """The compiled layers of ResNet-18 add up to exactly the published sum."""
    assert sum(map(_cycles, ANCHOR["layers"])) == ANCHOR["cycles"]
