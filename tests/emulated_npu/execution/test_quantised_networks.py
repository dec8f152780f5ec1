"""Quantised and half-precision networks on the emulated NPU beside ONNX Runtime."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from networks_on_npu import small_machine
from onnx import ModelProto, TensorProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from quantised_networks import (
    SCALES,
    by_runtime,
    convolution,
    integers,
    network,
    on_npu,
    quantised,
    small_network,
)
from small_models import assert_accounted, node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit, EmulatorError, UnsupportedOperator
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.reports.accounting import moved_by_memory
from device_agents.emulated_npu.unit_commands import DataType, Function, Space

_STEP = 1 / 255
"""A step of 8 bits, over the range."""


@cache
def forms(
    form: QuantFormat, activations: QuantType, weights: QuantType, per_channel: bool, symmetric: bool
) -> ModelProto:
    """Return the small network as ONNX Runtime quantises it."""
    proto, shape = small_network()
    return quantised(proto, shape, form, activations, weights, per_channel, ActivationSymmetric=symmetric)


@pytest.mark.parametrize(
    ("form", "activations", "weights", "per_channel", "symmetric"),
    [
        (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, True, False),
        (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QUInt8, False, False),
        (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, True, False),
        (QuantFormat.QOperator, QuantType.QInt8, QuantType.QInt8, False, True),
    ],
)
def test_quantised_networks(
    form: QuantFormat, activations: QuantType, weights: QuantType, per_channel: bool, symmetric: bool
) -> None:
    """A network with depthwise layers, sums, pools, a concatenation and products is within steps of ONNX Runtime's.

    Every feature map between the layers is of bytes, and an int8 machine, a float32 machine and one whose layers run
    in tiles have the same bits.
    """
    proto = forms(form, activations, weights, per_channel, symmetric)
    inputs = {"x": values(small_network()[1], 9)}
    expected = by_runtime(proto, inputs)["y"]
    found = []
    for machine in (find_machine("edge"), find_machine("nvdla-64"), small_machine(6 << 10, 3 << 10)):
        compiled, outputs = on_npu(proto, inputs, machine)
        assert_accounted(compiled.graph)
        between = [value for value in compiled.graph.values.values() if value.kind == "activation"]
        assert {value.dtype.bytes for value in between if not value.is_output} == {1}
        found.append(outputs["y"])
    assert np.abs(found[0] - expected).max() <= 5 * _STEP * np.abs(expected).max()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_bytes_that_move() -> None:
    """A quantised layer moves a byte for each element, one of float16 two, and one of float32 four."""
    rng = np.random.default_rng(0)
    x, w = values((1, 16, 24, 24)), rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    moved = {}
    for kind in (np.float32, np.float16):
        proto = network([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"x": x.astype(kind)}, {"w": w.astype(kind)})
        moved[kind] = _ddr_bytes(proto)
    nodes, _, constants = convolution(np.uint8, np.int8, 1, 0, False)
    nodes[0] = node("QLinearConv", "x xs xz w ws wz ys yz", "y", pads=[1, 1, 1, 1])
    del constants["b"]
    quantised_inputs = {"x": integers(x.shape, np.uint8)}
    integer = network(nodes, quantised_inputs, constants | {"w": integers(w.shape, np.int8)})
    assert moved[np.float32] == 2 * moved[np.float16] == 4 * _ddr_bytes(integer)


def _ddr_bytes(proto: ModelProto) -> int:
    edge = find_machine("edge")
    timed = time_program(compile_model(proto.SerializeToString(), edge, Options(chains="whole")).program, edge)
    moved = moved_by_memory(timed.steps, timed.costs)[Space.DDR]
    return moved.read_bytes + moved.written_bytes


def test_sums_stay_whole() -> None:
    """Where weights do not fit, quantised layers take fewer channels at a time and keep their bits, or are refused."""
    rng = np.random.default_rng(2)
    constants = {
        **SCALES,
        "w": integers((2000, 24), np.int8, 2),
        "ws": rng.uniform(0.001, 0.002, 24).astype(np.float32),
        "wz": np.zeros(24, np.int8),
    }
    del constants["zs"], constants["zz"]
    inputs = {"x": integers((3, 2000), np.uint8)}
    proto = network([node("QLinearMatMul", "x xs xz w ws wz ys yz", "y")], inputs, constants)
    machine = small_machine(32 << 10, 16 << 10, array=(8, 16))
    np.testing.assert_array_equal(on_npu(proto, inputs, machine)[1]["y"], by_runtime(proto, inputs)["y"])
    with pytest.raises(DoesNotFit, match="one output channel"):
        on_npu(proto, inputs, small_machine(32 << 10, 2 << 10))


def test_views_of_numbers_are_views_of_integers() -> None:
    """A reshape or transposition between equal conversions takes no layer."""
    nodes = [
        node("DequantizeLinear", "x xs xz", "a"),
        node("Transpose", "a", "b", perm=[1, 0, 2]),
        node("QuantizeLinear", "b xs xz", "c"),
        node("DequantizeLinear", "c xs xz", "d"),
        node("Sigmoid", "d", "e"),
        node("QuantizeLinear", "e ys yz", "y"),
    ]
    inputs = {"x": integers((3, 4, 5), np.uint8)}
    used = {name: SCALES[name] for name in ("xs", "xz", "ys", "yz")}
    proto = network(nodes, inputs, used)
    compiled, found = on_npu(proto, inputs)
    assert [layer.function for layer in compiled.graph.layers] == [Function.MAP]
    assert_accounted(compiled.graph)
    np.testing.assert_array_equal(found["y"], by_runtime(proto, inputs, optimised=False)["y"])


def test_parts_of_a_concatenation_are_written_as_integers() -> None:
    """The layers that write the parts of a quantised concatenation convert, and no layer does it behind them."""
    nodes = [
        node("Relu", "x", "r"),
        node("Sigmoid", "x", "s"),
        node("Concat", "r s", "c", axis=1),
        node("QuantizeLinear", "c xs xz", "y"),
    ]
    inputs = {"x": values((2, 3, 4))}
    proto = network(nodes, inputs, {name: SCALES[name] for name in ("xs", "xz")})
    compiled, found = on_npu(proto, inputs)
    assert [layer.function for layer in compiled.graph.layers] == [Function.MAP, Function.MAP]
    assert_accounted(compiled.graph)
    np.testing.assert_array_equal(found["y"], by_runtime(proto, inputs)["y"])


def test_numbers_that_others_read_stay_numbers() -> None:
    """A layer whose numbers are read as they are, beside their quantisation, does not write integers."""
    nodes = [node("Sigmoid", "x", "s"), node("QuantizeLinear", "s xs xz", "y"), node("Neg", "s", "z")]
    inputs = {"x": values((2, 3, 4))}
    proto = network(nodes, inputs, {name: SCALES[name] for name in ("xs", "xz")}, ("y", "z"))
    found = on_npu(proto, inputs)[1]
    for name, expected in by_runtime(proto, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_scales_of_channels() -> None:
    """Activations with a scale and zero point for each channel are converted in plain arithmetic, to the same bits."""
    constants = {"s": np.array([0.01, 0.02, 0.03], np.float32), "z": np.array([1, 200, 100], np.uint8)}
    nodes = [node("QuantizeLinear", "x s z", "q", axis=1), node("DequantizeLinear", "q s z", "y", axis=1)]
    inputs = {"x": values((2, 3, 6, 5), 1)}
    proto = network(nodes, inputs, constants, ("q", "y"))
    found, expected = on_npu(proto, inputs)[1], by_runtime(proto, inputs, optimised=False)
    np.testing.assert_array_equal(found["q"], expected["q"])
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_dynamic_quantisation() -> None:
    """DynamicQuantizeLinear, whose scale the network computes, has the integers of ONNX Runtime."""
    inputs = {"x": values((2, 3, 6, 5), 1)}
    proto = network([node("DynamicQuantizeLinear", "x", "y s z")], inputs, {}, ("y", "s", "z"))
    found, expected = on_npu(proto, inputs)[1], by_runtime(proto, inputs)
    np.testing.assert_array_equal(found["y"], expected["y"])
    assert found["s"] == pytest.approx(expected["s"])


def test_float_layers_in_quantised_networks() -> None:
    """A float convolution between quantised ones runs on a float machine, and is refused by name on an int8 machine."""
    nodes, inputs, constants = convolution(np.uint8, np.int8, 12, 0, True)
    weights = np.random.default_rng(5).standard_normal((4, 12, 1, 1)).astype(np.float32)
    nodes = [*nodes, node("DequantizeLinear", "y ys yz", "d"), node("Conv", "d v", "island")]
    proto = network(nodes, inputs, {**constants, "v": weights}, ("island",))
    expected = by_runtime(proto, inputs)["island"]
    found = on_npu(proto, inputs)[1]["island"]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    with pytest.raises(UnsupportedOperator, match="island") as refused:
        on_npu(proto, inputs, "nvdla-64")
    assert "Quantise this layer" in refused.value.next_step


def test_float_networks_on_int8_machines() -> None:
    """A float network on an int8 machine has a time, and an error says that it has no values and what to do."""
    proto, shape = small_network()
    nvdla = find_machine("nvdla-64")
    compiled = compile_model(proto.SerializeToString(), nvdla)
    assert time_program(compiled.program, nvdla).cycles > 0
    with pytest.raises(EmulatorError, match="no values") as refused:
        on_npu(proto, {"x": values(shape)}, nvdla)
    assert "Convert the network to int8" in refused.value.next_step


def _half(proto: ModelProto) -> ModelProto:
    """Return a float32 network with all of its tensors in float16."""
    half = ModelProto()
    half.CopyFrom(proto)
    for tensor in half.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in half.graph.input:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half


def test_networks_of_float16() -> None:
    """A network in float16 has the values of ONNX Runtime within its rounding, on machines of float32 and float16."""
    proto, shape = small_network()
    half, inputs = _half(proto), {"x": values(shape, 9).astype(np.float16)}
    expected = by_runtime(half, inputs)["y"].astype(np.float64)
    edge = find_machine("edge")
    for machine in (edge, replace(edge, data_type=DataType.FLOAT16), small_machine(6 << 10, 4 << 10)):
        compiled, found = on_npu(half, inputs, machine)
        assert {value.dtype for value in compiled.graph.values.values()} == {DataType.FLOAT16}
        assert found["y"].dtype == np.float16
        assert np.abs(found["y"] - expected).max() <= 4 * 2.0**-11 * np.abs(expected).max()
    with pytest.raises(UnsupportedOperator, match="float16"):
        on_npu(half, inputs, "nvdla-64")
