"""Operators of ONNX Runtime's optimizers are compiled as those that they fuse, and have the runtime's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from quantised_networks import by_runtime, network, on_npu
from small_models import node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.numpy_types import Array

_RUNTIME = {"domain": "com.microsoft"}
_MAP = {"x": values((1, 4, 6, 6)), "w": values((4, 4, 3, 3), 1), "b": values((4,), 2), "z": values((1, 4, 6, 6), 3)}
_ROWS = {
    "x": values((2, 5, 8)),
    "s": values((2, 5, 8), 1),
    "g": values((8,), 2),
    "h": values((8,), 3),
    "b": values((8,), 4),
}
_MATRIX = {"x": values((3, 8)), "w": values((8, 5), 1), "c": values((5,), 2)}


def check_values(op: str, inputs: str, tensors: dict[str, Array], outputs: str = "y", **attributes: Any) -> None:
    """Assert that the network of one node on x has the runtime's values on the emulated NPU."""
    made = node(op, inputs, "y", **_RUNTIME, **attributes)
    made.output[:] = ["" if name == "-" else name for name in outputs.split()]
    given = {name: tensor for name, tensor in tensors.items() if name in ("x", "k")}
    constants = {name: tensor for name, tensor in tensors.items() if name in inputs.split() and name not in given}
    given = {name: tensor for name, tensor in given.items() if name in inputs.split()}
    proto = network([made], given, constants, [name for name in made.output if name])
    expected, (_, found) = by_runtime(proto, given), on_npu(proto, given)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 1.5])],
)
@pytest.mark.parametrize("inputs", ["x w", "x w b", "x w b z"])
def test_convolutions(activation: str, parameters: list[float], inputs: str) -> None:
    """A convolution with bias, sum and activation."""
    given: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    check_values("FusedConv", inputs, _MAP, activation=activation, pads=[1] * 4, **given)


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("transposed", [(), ("transA",), ("transB",), ("transBatchA",), ("transBatchA", "transA")])
def test_products(alpha: float, transposed: tuple[str, ...]) -> None:
    """A product with transposed axes of either factor, and a scale."""
    shapes = {
        (): ((2, 3, 4), (2, 4, 5)),
        ("transA",): ((2, 4, 3), (2, 4, 5)),
        ("transB",): ((2, 3, 4), (2, 5, 4)),
        ("transBatchA",): ((3, 2, 4), (2, 4, 5)),
        ("transBatchA", "transA"): ((4, 2, 3), (2, 4, 5)),
    }[transposed]
    tensors = {"x": values(shapes[0]), "k": values(shapes[1], 1)}
    flags: dict[str, Any] = dict.fromkeys(transposed, 1)
    check_values("FusedMatMul", "x k", tensors, alpha=alpha, **flags)


@pytest.mark.parametrize("activation", [{"activation": "LeakyRelu", "activation_alpha": 0.3}, {"activation": "Relu"}])
def test_gemm(activation: dict[str, Any]) -> None:
    """A Gemm with an activation."""
    check_values("FusedGemm", "x w c", _MATRIX, alpha=0.5, beta=2.0, **activation)


@pytest.mark.parametrize(
    ("op", "inputs"), [("Gelu", "x"), ("BiasGelu", "x b"), ("FastGelu", "x"), ("FastGelu", "x b"), ("QuickGelu", "x")]
)
def test_gelus(op: str, inputs: str) -> None:
    """All forms of Gelu, with and without bias."""
    check_values(op, inputs, _ROWS)


@pytest.mark.parametrize("outputs", ["y", "y - - sum"])
@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("SkipLayerNormalization", "x s g"),
        ("SkipLayerNormalization", "x s g h"),
        ("SkipLayerNormalization", "x s g h b"),
        ("SkipSimplifiedLayerNormalization", "x s g"),
        ("SkipSimplifiedLayerNormalization", "x s g b"),
    ],
)
def test_normalised_sums(op: str, inputs: str, outputs: str) -> None:
    """A sum, with bias, that is normalised; the sum may be a result, too."""
    check_values(op, inputs, _ROWS, outputs, epsilon=1e-4)


def test_others_are_refused() -> None:
    """Another operator of the runtime is refused, with what to give instead."""

    def refused(model: ModelProto) -> UnsupportedOperator:
        with pytest.raises(UnsupportedOperator) as caught:
            import_model(model)
        return caught.value

    error = refused(network([node("CDist", "x w", "y", **_RUNTIME)], {"x": _MATRIX["x"]}, {"w": values((4, 8))}))
    assert "CDist" in error.why
    assert "before ONNX Runtime optimised it" in error.next_step
    other = refused(helper.make_model(helper.make_graph([node("Det", "x", "y")], "g", [], [])))
    assert "docs/emulator.md" in other.next_step
