"""Operators on quantised tensors on the emulated NPU beside the integer kernels of ONNX Runtime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto
from quantised_networks import (
    SCALES,
    by_runtime,
    convolution,
    integers,
    network,
    on_npu,
)
from small_models import assert_accounted, node, values

from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function

_RUNTIME = {"domain": "com.microsoft"}


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
    return [node(op, "x xs xz z zs zz ys yz", "y", **_RUNTIME)], inputs, SCALES


def all_pairs(op: str) -> tuple[Any, ...]:
    """Return an operator of ONNX Runtime on all pairs of bytes, with scales that make many results halves."""
    first, second = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    scales = {"xs": np.float32(0.06), "zs": np.float32(0.03), "ys": np.float32(0.03)}
    constants = {**scales, **dict.fromkeys(("xz", "zz", "yz"), np.array(128, np.uint8))}
    return of_two(op)[0], {"x": first, "z": second}, constants


def of_one(op: str, **attributes: Any) -> tuple[Any, ...]:
    """Return an operator of ONNX Runtime on one quantised tensor."""
    constants = SCALES | {"ys": np.float32(0.01)}
    return (
        [node(op, "x xs xz ys yz", "y", **_RUNTIME, **attributes)],
        {"x": integers((1, 6, 8, 9), np.uint8)},
        constants,
    )


def of_constants() -> tuple[Any, ...]:
    """Return a sum with the result of an operator of ONNX Runtime that reads constants alone."""
    nodes = [
        node("QLinearSigmoid", "c xs xz zs zz", "s", **_RUNTIME),
        node("QLinearAdd", "x xs xz s zs zz ys yz", "y", **_RUNTIME),
    ]
    return nodes, {"x": integers((1, 6, 11, 9), np.uint8)}, {**SCALES, "c": integers((1, 6, 11, 9), np.uint8, 4)}


def sums(op: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an operator whose outputs are sums of 32 bits."""
    constants = {"b": integers(second, np.uint8, 3), "az": np.array(100, np.uint8), "bz": np.array(7, np.uint8)}
    return [node(op, "a b az bz", "y")], {"a": integers(first, np.uint8)}, constants


_FLOATS = values((2, 5, 7), 1) * 3
_EXACT: dict[str, Callable[[], tuple[Any, ...]]] = {
    "to uint8": lambda: ([node("QuantizeLinear", "x xs xz", "y")], {"x": _FLOATS}, SCALES),
    "to numbers": lambda: ([node("DequantizeLinear", "x xs xz", "y")], {"x": integers((3, 70), np.uint8)}, SCALES),
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
    "QLinearMul of all pairs": lambda: all_pairs("QLinearMul"),
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


@pytest.mark.parametrize("machine", ["edge", "nvdla-64"])
@pytest.mark.parametrize(
    ("op", "first", "second", "attributes"),
    [
        ("MatMulInteger", (2, 5, 400), (400, 8), {}),
        ("ConvInteger", (2, 4, 9, 9), (6, 2, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": 2}),
    ],
)
def test_computed_zero_points(
    op: str, first: tuple[int, ...], second: tuple[int, ...], attributes: dict[str, Any], machine: str
) -> None:
    """Products whose first zero point the network computes, padded ones too, have the bits of ONNX Runtime's kernel."""
    inputs = {"a": integers(first, np.uint8), "az": np.array(100, np.uint8)}
    constants = {"b": integers(second, np.int8, 3), "bz": np.array(7, np.int8)}
    for zeros in (constants["bz"], integers(second[1:], np.int8, 5)) if op == "MatMulInteger" else (constants["bz"],):
        proto = network([node(op, "a b az bz", "y", **attributes)], inputs, constants | {"bz": zeros})
        np.testing.assert_array_equal(on_npu(proto, inputs, machine)[1]["y"], by_runtime(proto, inputs)["y"])


@pytest.mark.parametrize(
    ("first", "second", "zeros"),
    [
        ((4, 4, 8), (4, 8, 5), ()),
        ((4, 3, 8), (4, 8, 5), ()),
        ((4, 1, 8), (4, 8, 5), ()),
        ((4, 8), (4, 8, 5), ()),
        ((4, 3, 8), (4, 8, 5), (4, 1, 5)),
        ((8,), (8, 5), (5,)),
        ((8,), (4, 8, 5), ()),
        ((3, 8), (8,), ()),
    ],
)
def test_zero_points_of_batches(first: tuple[int, ...], second: tuple[int, ...], zeros: tuple[int, ...]) -> None:
    """Batches of weights, and vectors, have the runtime's sums, too."""
    inputs = {"a": integers(first, np.uint8), "az": np.array(100, np.uint8)}
    constants = {"b": integers(second, np.int8, 3), "bz": integers(zeros, np.int8, 5)}
    proto = network([node("MatMulInteger", "a b az bz", "y")], inputs, constants)
    found, expected = on_npu(proto, inputs)[1]["y"], by_runtime(proto, inputs)["y"]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_product_of_computed_tensors() -> None:
    """A QLinearMatMul of two computed batches of matrices has the bits of ONNX Runtime's kernel."""
    nodes, inputs, constants = product(np.uint8, np.uint8, 1, False)
    inputs = {"a": integers((2, 3, 7, 40), np.uint8), "b": integers((2, 3, 40, 12), np.uint8, 2)}
    del constants["b"]
    proto = network(nodes, inputs, constants)
    np.testing.assert_array_equal(on_npu(proto, inputs, "nvdla-64")[1]["y"], by_runtime(proto, inputs)["y"])


@pytest.mark.parametrize(
    "case",
    [of_one("QLinearAveragePool", kernel_shape=[2, 2]), of_one("QLinearGlobalAveragePool"), of_constants()],
    ids=["pool", "global", "constants"],
)
def test_results_within_one_step(case: tuple[list[NodeProto], dict[str, Array], dict[str, Array]]) -> None:
    """Averages, and sums with constants, differ by one at most: ONNX Runtime rounds halves in another place."""
    nodes, inputs, constants = case
    used = {name: array for name, array in constants.items() if any(name in one.input for one in nodes)}
    proto = network(nodes, inputs, used)
    found, expected = on_npu(proto, inputs)[1]["y"], by_runtime(proto, inputs)["y"]
    assert np.abs(found.astype(int) - expected).max() <= 1


def _between(tensors: str, *inner: NodeProto, **more: Any) -> tuple[ModelProto, dict[str, Array]]:
    """Return nodes between conversions of `tensors`, each a name in `more` or of an input, and of their result r."""
    inputs = {name: integers((1, 6, 20, 20), np.uint8, ord(name)) for name in tensors}
    constants = {name: SCALES[name] for name in ("xs", "xz", "ys", "yz")} | more
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
        "bs": np.float32(SCALES["xs"] * scale),
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
