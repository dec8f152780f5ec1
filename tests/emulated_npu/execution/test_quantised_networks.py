"""Quantised and half-precision networks on the emulated NPU beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from networks_on_npu import small_machine
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from quantised_networks import by_runtime, integers, network, on_npu, quantised, small_network
from small_models import assert_accounted, node, values

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit, EmulatorError, UnsupportedOperator
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.reports.accounting import moved_by_memory
from device_agents.emulated_npu.unit_commands import DataType, Function, Space

_STEP = 1 / 255
"""A step of 8 bits, over the range."""
_RUNTIME = {"domain": "com.microsoft"}
_SCALES = {
    "xs": np.float32(0.031),
    "zs": np.float32(0.05),
    "ys": np.float32(0.37),
    "xz": np.array(117, np.uint8),
    "zz": np.array(17, np.uint8),
    "yz": np.array(100, np.uint8),
}


def convolution(x: Any, w: Any, channels: int, zero: int, bias: bool, groups: int = 1) -> tuple[Any, ...]:
    """Return a QLinearConv of these types, its inputs and its constants; `channels` is the number of weight scales."""
    rng = np.random.default_rng(3)
    zeros = {np.uint8: (117, 100), np.int8: (-7, 9)}[x]
    constants = {
        "xs": np.float32(0.031),
        "xz": np.array(zeros[0], x),
        "w": integers((12, 6 // groups, 3, 3), w, 2),
        "ws": rng.uniform(0.001, 0.02, channels).astype(np.float32) if channels > 1 else np.float32(0.0123),
        "wz": np.full(channels if channels > 1 else (), zero, w),
        "ys": np.float32(0.37),
        "yz": np.array(zeros[1], x),
        "b": rng.integers(-5000, 5000, 12).astype(np.int32),
    }
    read = "x xs xz w ws wz ys yz" + " b" * bias
    one = node("QLinearConv", read, "y", pads=[1, 1, 1, 1], strides=[2, 1], group=groups)
    return [one], {"x": integers((2, 6, 11, 9), x)}, constants


def product(a: Any, b: Any, columns: int, varied: bool) -> tuple[Any, ...]:
    """Return a QLinearMatMul; `varied` zero points differ between columns."""
    constants = {
        "as": np.float32(0.031),
        "az": np.array(17, a),
        "b": integers((300, 12), b, 2),
        "bs": np.random.default_rng(3).uniform(0.001, 0.02, columns).astype(np.float32),
        "bz": integers((columns,), b, 9) if varied else np.full(columns, 5, b),
        "ys": np.float32(0.9),
        "yz": np.array(10, a),
    }
    if columns == 1:
        constants |= {name: constants[name].reshape(()) for name in ("bs", "bz")}
    return [node("QLinearMatMul", "a as az b bs bz ys yz", "y")], {"a": integers((2, 7, 300), a)}, constants


def of_two(op: str) -> tuple[Any, ...]:
    """Return an operator of ONNX Runtime on two quantised tensors."""
    inputs = {"x": integers((1, 6, 11, 9), np.uint8), "z": integers((1, 6, 11, 9), np.uint8, 4)}
    return [node(op, "x xs xz z zs zz ys yz", "y", **_RUNTIME)], inputs, _SCALES


def of_one(op: str, **attributes: Any) -> tuple[Any, ...]:
    """Return an operator of ONNX Runtime on one quantised tensor."""
    constants = _SCALES | {"ys": np.float32(0.01)}
    return (
        [node(op, "x xs xz ys yz", "y", **_RUNTIME, **attributes)],
        {"x": integers((1, 6, 8, 9), np.uint8)},
        constants,
    )


def sums(op: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an operator whose outputs are sums of 32 bits."""
    constants = {"b": integers(second, np.uint8, 3), "az": np.array(100, np.uint8), "bz": np.array(7, np.uint8)}
    return [node(op, "a b az bz", "y")], {"a": integers(first, np.uint8)}, constants


_FLOATS = values((2, 5, 7), 1) * 3
_EXACT: dict[str, Callable[[], tuple[Any, ...]]] = {
    "to uint8": lambda: ([node("QuantizeLinear", "x xs xz", "y")], {"x": _FLOATS}, _SCALES),
    "to numbers": lambda: ([node("DequantizeLinear", "x xs xz", "y")], {"x": integers((3, 70), np.uint8)}, _SCALES),
    "uint8 by int8 of channels": lambda: convolution(np.uint8, np.int8, 12, 0, True),
    "uint8 by uint8": lambda: convolution(np.uint8, np.uint8, 1, 110, True),
    "uint8 by int8 without bias": lambda: convolution(np.uint8, np.int8, 1, 3, False),
    "int8 by int8 of channels": lambda: convolution(np.int8, np.int8, 12, 0, False),
    "int8 by int8": lambda: convolution(np.int8, np.int8, 1, 5, True),
    "groups": lambda: convolution(np.uint8, np.int8, 12, 0, True, 2),
    "depthwise": lambda: convolution(np.uint8, np.int8, 12, 0, True, 6),
    "product of uint8 by int8": lambda: product(np.uint8, np.int8, 12, False),
    "product of int8 by int8": lambda: product(np.int8, np.int8, 12, True),
    "product of uint8 by uint8": lambda: product(np.uint8, np.uint8, 12, True),
    "product with one scale": lambda: product(np.uint8, np.uint8, 1, False),
    "QLinearAdd": lambda: of_two("QLinearAdd"),
    "QLinearMul": lambda: of_two("QLinearMul"),
    "QLinearLeakyRelu": lambda: of_one("QLinearLeakyRelu", alpha=0.1),
    "QLinearSigmoid": lambda: of_one("QLinearSigmoid"),
    "ConvInteger": lambda: sums("ConvInteger", (2, 4, 9, 9), (6, 4, 3, 3)),
    "MatMulInteger": lambda: sums("MatMulInteger", (5, 400), (400, 8)),
}


@pytest.mark.parametrize("machine", ["edge", "nvdla-64"])
@pytest.mark.parametrize("name", _EXACT)
def test_bits_of_integer_kernels(name: str, machine: str) -> None:
    """These operators have the bits of ONNX Runtime's kernels, on machines of float32 and of int8."""
    nodes, inputs, constants = _EXACT[name]()
    used = {name: array for name, array in constants.items() if any(name in one.input for one in nodes)}
    proto = network(nodes, inputs, used)
    compiled, found = on_npu(proto, inputs, machine)
    assert len(compiled.graph.layers) == 1
    expected = by_runtime(proto, inputs)["y"]
    assert found["y"].dtype == expected.dtype
    np.testing.assert_array_equal(found["y"], expected)


def test_product_of_computed_tensors() -> None:
    """A QLinearMatMul of two computed batches of matrices has the bits of ONNX Runtime's kernel."""
    nodes, inputs, constants = product(np.uint8, np.uint8, 1, False)
    inputs = {"a": integers((2, 3, 7, 40), np.uint8), "b": integers((2, 3, 40, 12), np.uint8, 2)}
    del constants["b"]
    proto = network(nodes, inputs, constants)
    np.testing.assert_array_equal(on_npu(proto, inputs, "nvdla-64")[1]["y"], by_runtime(proto, inputs)["y"])


@pytest.mark.parametrize(
    "case",
    [of_one("QLinearAveragePool", kernel_shape=[2, 2]), of_one("QLinearGlobalAveragePool")],
    ids=["pool", "global"],
)
def test_averages_within_one_step(case: tuple[list[NodeProto], dict[str, Array], dict[str, Array]]) -> None:
    """Averages differ by one at most, because ONNX Runtime rounds halves in another place."""
    nodes, inputs, constants = case
    used = {name: array for name, array in constants.items() if name in nodes[0].input}
    proto = network(nodes, inputs, used)
    found, expected = on_npu(proto, inputs)[1]["y"], by_runtime(proto, inputs)["y"]
    assert np.abs(found.astype(int) - expected).max() <= 1


def _between(tensors: str, *inner: NodeProto, **more: Any) -> tuple[ModelProto, dict[str, Array]]:
    """Return nodes between conversions of `tensors`, each a name in `more` or of an input, and of their result r."""
    inputs = {name: integers((1, 6, 20, 20), np.uint8, ord(name)) for name in tensors}
    constants = {name: _SCALES[name] for name in ("xs", "xz", "ys", "yz")} | more
    nodes = [node("DequantizeLinear", f"{name} xs xz", f"{name}1") for name in tensors]
    for name in ("w", "b"):
        nodes.append(node("DequantizeLinear", f"{name} {name}s {name}z", f"{name}1", axis=1 - (name == "b")))
    return network([*nodes, *inner, node("QuantizeLinear", "r ys yz", "y")], inputs, constants), inputs


@pytest.mark.parametrize("machine", ["edge", "nvdla-64"])
@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "HardSwish", "Sigmoid", "residual", "transposed"])
def test_epilogues_of_integer_products(op: str, machine: str) -> None:
    """Behind exact sums, activations, residual sums and phases of a transposed convolution are within a step."""
    rng = np.random.default_rng(3)
    scale = np.float32(0.01)
    more = {
        "w": integers((6, 6, 3, 3), np.int8, 2),
        "ws": scale,
        "wz": np.array(4, np.int8),
        "b": rng.integers(-5000, 5000, 6).astype(np.int32),
        "bs": np.float32(_SCALES["xs"] * scale),
        "bz": np.array(0, np.int32),
    }
    transposed = op == "transposed"
    kind, extra = ("ConvTranspose", {"strides": [2, 2]}) if transposed else ("Conv", {})
    inner = [node(kind, "x1 w1 b1", "c", pads=[1, 1, 1, 1], **extra)]
    if op == "residual":
        inner += [node("Add", "c z1", "s"), node("Relu", "s", "r")]
    else:
        inner.append(node("Identity" if transposed else op, "c", "r"))
    proto, inputs = _between("xz" if op == "residual" else "x", *inner, **more)
    compiled, found = on_npu(proto, inputs, machine)
    assert transposed or [layer.function for layer in compiled.graph.layers] == [Function.CONVOLVE]
    assert_accounted(compiled.graph)
    expected = by_runtime(proto, inputs)["y"].astype(int)
    assert np.abs(found["y"] - expected).max() <= 1
    assert len(np.unique(expected)) > 1


@cache
def forms(
    form: QuantFormat, activations: QuantType, weights: QuantType, per_channel: bool, symmetric: bool
) -> ModelProto:
    """Return the small network as ONNX Runtime quantises it."""
    proto, shape = small_network()
    return quantised(proto, shape, form, activations, weights, per_channel, ActivationSymmetric=symmetric)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel", "symmetric"),
    [
        (QuantType.QUInt8, QuantType.QInt8, True, False),
        (QuantType.QUInt8, QuantType.QUInt8, False, False),
        (QuantType.QInt8, QuantType.QInt8, True, False),
        (QuantType.QInt8, QuantType.QInt8, False, True),
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
    timed = time_program(compile_model(proto.SerializeToString(), edge).program, edge)
    moved = moved_by_memory(timed.steps, timed.costs)[Space.DDR]
    return moved.read_bytes + moved.written_bytes


def test_sums_stay_whole() -> None:
    """Where weights do not fit, quantised layers take fewer channels at a time and keep their bits, or are refused."""
    rng = np.random.default_rng(2)
    constants = {
        **_SCALES,
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
    used = {name: _SCALES[name] for name in ("xs", "xz", "ys", "yz")}
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
    proto = network(nodes, inputs, {name: _SCALES[name] for name in ("xs", "xz")})
    compiled, found = on_npu(proto, inputs)
    assert [layer.function for layer in compiled.graph.layers] == [Function.MAP, Function.MAP]
    assert_accounted(compiled.graph)
    np.testing.assert_array_equal(found["y"], by_runtime(proto, inputs)["y"])


def test_numbers_that_others_read_stay_numbers() -> None:
    """A layer whose numbers are read as they are, beside their quantisation, does not write integers."""
    nodes = [node("Sigmoid", "x", "s"), node("QuantizeLinear", "s xs xz", "y"), node("Neg", "s", "z")]
    inputs = {"x": values((2, 3, 4))}
    proto = network(nodes, inputs, {name: _SCALES[name] for name in ("xs", "xz")}, ("y", "z"))
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
