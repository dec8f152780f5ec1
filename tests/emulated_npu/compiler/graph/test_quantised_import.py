"""Networks with quantised operators that cannot be compiled, or only in float32."""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from quantised_networks import SCALES, by_runtime, integers, network, on_npu
from small_models import node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import EmulatorError, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType

_RUNTIME = {"domain": "com.microsoft"}
_INPUTS = {"x": integers((2, 4, 5), np.uint8)}


def refused(one: NodeProto, **constants: Array) -> EmulatorError:
    """Return the error for a network of one node on x."""
    with pytest.raises(EmulatorError) as caught:
        import_model(network([one], _INPUTS, {**SCALES, **constants}))
    return caught.value


@pytest.mark.parametrize(
    "one",
    [
        node("QLinearAdd", "x xs xz", "y", **_RUNTIME),
        node("QLinearAdd", "x - - x xs xz ys yz", "y", **_RUNTIME),
        node("QLinearConcat", "ys yz x", "y", axis=1, **_RUNTIME),
        node("QLinearSigmoid", "x xs xz - -", "y", **_RUNTIME),
        node("QGemm", "x xs xz", "y", **_RUNTIME),
    ],
    ids=lambda one: f"{one.op_type} {len(one.input)}",
)
def test_missing_operands(one: NodeProto) -> None:
    """Operators of ONNX Runtime without scales or operands are refused, with the node or the tensor."""
    assert "y" in refused(one).what


@pytest.mark.parametrize(
    ("constants", "why"),
    [
        ({"xs": np.array(0, np.float32)}, "scale is 0"),
        ({"xs": np.array(-1, np.float32)}, "scale is -1"),
        ({"xs": np.array(np.nan, np.float32)}, "scale is nan"),
        ({"xs": np.ones(3, np.float32), "xz": np.zeros(3, np.uint8)}, "Scales of shape [3]"),
    ],
)
def test_scales_that_are_none(constants: dict[str, Any], why: str) -> None:
    """Scales that are not positive numbers, or not those of an axis, are refused."""
    error = refused(node("DequantizeLinear", "x xs xz", "y"), **constants)
    assert isinstance(error, UnsupportedOperator)
    assert why in error.why


def test_channels_last_are_refused() -> None:
    """Pools of ONNX Runtime with channels last are refused by name."""
    one = node("QLinearGlobalAveragePool", "x xs xz ys yz", "y", channels_last=1, **_RUNTIME)
    assert "QLinearGlobalAveragePool" in refused(one).why


@pytest.mark.parametrize(("rows", "second", "zeros"), [((3,), (4, 5), (3,)), ((), (4,), (1,)), ((), (2, 4, 5), ())])
def test_computed_zero_points_of_rows_are_refused(
    rows: tuple[int, ...], second: tuple[int, ...], zeros: tuple[int, ...]
) -> None:
    """A product of integers with computed zero points of rows, or with more of them than results, is refused."""
    inputs = {"a": integers((*rows, 4), np.uint8), "z": integers(zeros, np.uint8)}
    columns = {"c": integers((*second[:-2], 1, second[-1]), np.uint8)} if len(second) > 2 else {}
    one = node("MatMulInteger", "a b z c" if columns else "a b z", "y")
    proto = network([one], inputs, {"b": integers(second, np.uint8), **columns})
    with pytest.raises(UnsupportedOperator) as caught:
        import_model(proto)
    assert "zero point" in caught.value.why


def test_weights_with_scales_of_inputs_stay_numbers() -> None:
    """Weights whose scales belong to input channels are multiplied as numbers of float32."""
    constants = {
        **{name: SCALES[name] for name in ("xs", "xz")},
        "w": integers((6, 4, 1), np.int8),
        "ws": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        "wz": np.zeros(4, np.int8),
    }
    nodes = [
        node("DequantizeLinear", "x xs xz", "a"),
        node("DequantizeLinear", "w ws wz", "b", axis=1),
        node("Conv", "a b", "y"),
    ]
    compiled, found = on_npu(network(nodes, _INPUTS, constants), _INPUTS)
    assert [layer.factor_type for layer in compiled.graph.layers] == [DataType.FLOAT32]
    x = (_INPUTS["x"].astype(np.float64) - 117) * np.float32(0.031)
    w = constants["w"][:, :, 0] * constants["ws"]
    np.testing.assert_allclose(found["y"], np.einsum("nci,mc->nmi", x, w), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("zero", [np.uint16(41000), np.uint16(0), np.int16(-700)])
def test_integers_of_16_bits(zero: Any) -> None:
    """Maps of 16 bits have the runtime's values; conversions are settings of layers, as those of bytes."""
    runtime = {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", "x s z", "q", **runtime),
        node("DequantizeLinear", "q s z", "d", **runtime),
        node("DequantizeLinear", "w ws wz", "e", axis=0),
        node("Conv", "d e", "c", pads=[1] * 4),
        node("QuantizeLinear", "c s z", "r", **runtime),
        node("DequantizeLinear", "r s z", "y", **runtime),
    ]
    fed = {"x": values((1, 4, 6, 6))}
    constants = {
        "s": np.float32(3e-4),
        "z": zero,
        "w": integers((5, 4, 3, 3), np.int8),
        "ws": values((5,), 1, 0.001, 0.01),
        "wz": np.zeros(5, np.int8),
    }
    proto = network(nodes, fed, constants)
    compiled, found = on_npu(proto, fed)
    assert len(compiled.graph.layers) == 3
    np.testing.assert_allclose(found["y"], by_runtime(proto, fed)["y"], rtol=0, atol=3.1e-4)
