"""Operators of ONNX Runtime's optimizers are compiled as those that they fuse, and have the runtime's values."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from quantised_networks import OPSET, by_runtime, network, on_npu
from small_models import node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel
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


def check_values(
    op: str, inputs: str, tensors: dict[str, Array], outputs: str = "y", opset: int = OPSET, **attributes: Any
) -> None:
    """Assert that the network of one node on x has the runtime's values on the emulated NPU."""
    made = node(op, inputs, "y", **_RUNTIME, **attributes)
    made.output[:] = ["" if name == "-" else name for name in outputs.split()]
    given = {name: tensor for name, tensor in tensors.items() if name in ("x", "k")}
    constants = {name: tensor for name, tensor in tensors.items() if name in inputs.split() and name not in given}
    given = {name: tensor for name, tensor in given.items() if name in inputs.split()}
    proto = network([made], given, constants, [name for name in made.output if name], opset)
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


@pytest.mark.parametrize("opset", [7, 10, 11])
def test_bounds_in_all_opsets(opset: int) -> None:
    """The bounds of a fused Clip hold in opsets in which those of Clip are attributes, and in later ones."""
    check_values("FusedConv", "x w", _MAP, opset=opset, activation="Clip", activation_params=[-0.5, 1.5])


def test_bounds_of_float16() -> None:
    """A fused Clip bounds numbers of float16, which the kernel of the runtime does not compute, as those of float32."""
    made = node("FusedConv", "x w", "y", activation="Clip", activation_params=[-0.5, 1.5], **_RUNTIME)
    halves, wide = ({name: _MAP[name].astype(kind) for name in "xw"} for kind in (np.float16, np.float32))
    found = on_npu(network([made], {"x": halves["x"]}, {"w": halves["w"]}), {"x": halves["x"]})[1]["y"]
    expected = by_runtime(network([made], {"x": wide["x"]}, {"w": wide["w"]}), {"x": wide["x"]})["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, atol=0.02)


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


@pytest.mark.parametrize("opset", [7, 13])
def test_gemm_without_a_sum(opset: int) -> None:
    """A Gemm without its third input, which Gemm itself needs below opset 11."""
    check_values("FusedGemm", "x w", _MATRIX, opset=opset, activation="Relu", beta=2.0)


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


def test_results_that_nothing_reads() -> None:
    """Exporters name means and variances that no node reads: the compiler leaves them out."""
    inputs, rows = {"x": _ROWS["x"]}, {name: _ROWS[name] for name in "sg"}
    proto = network(
        [node("SkipLayerNormalization", "x s g", "n m v", **_RUNTIME), node("Relu", "n", "y")], inputs, rows
    )
    np.testing.assert_allclose(on_npu(proto, inputs)[1]["y"], by_runtime(proto, inputs)["y"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_small_sums_without_epsilon(op: str) -> None:
    """Sums whose variance is near 1e-6 are normalised with the runtime's own epsilon."""
    check_values(op, "x s g", {**_ROWS, **{name: _ROWS[name] * np.float32(1e-3) for name in "xs"}})


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Gelu", "s"),
        ("BiasGelu", "s b"),
        ("FastGelu", "s"),
        ("QuickGelu", "s"),
        ("FusedMatMul", "s w"),
        ("SkipLayerNormalization", "s s g"),
    ],
)
def test_constant_operands(op: str, inputs: str) -> None:
    """Operators of constants alone are constants."""
    constants = {name: ({"w": values((8, 8), 5)} | _ROWS)[name] for name in inputs.split()}
    proto = network([node(op, inputs, "m", **_RUNTIME), node("Add", "x m", "y")], {"x": _ROWS["x"]}, constants)
    compiled, found = on_npu(proto, {"x": _ROWS["x"]})
    assert len(compiled.graph.layers) == 1
    np.testing.assert_allclose(found["y"], by_runtime(proto, {"x": _ROWS["x"]})["y"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ["Gelu", "Swish", "LayerNormalization"])
def test_functions_of_these_names(op: str) -> None:
    """A function of the model is compiled as it is written, even if ONNX Runtime has an operator of its name."""
    halves = [node("Split", "a", "p", axis=1), node("Mul", "p q", "b")]
    halves[0].output.append("q")
    function = helper.make_function("own", op, ["a"], ["b"], halves, [helper.make_opsetid("", OPSET)])
    proto = network([node(op, "x", "t", domain="own"), node("Neg", "t", "y")], {"x": _MATRIX["x"]}, {})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    found = on_npu(proto, {"x": _MATRIX["x"]})[1]["y"]
    np.testing.assert_array_equal(found, -_MATRIX["x"][:, :4] * _MATRIX["x"][:, 4:])


def refused(model: ModelProto) -> EmulatorError:
    """Return the error for a model."""
    with pytest.raises(EmulatorError) as caught:
        import_model(model)
    return caught.value


@pytest.mark.parametrize(
    ("op", "attributes", "why"),
    [
        ("FusedConv", {"activation": ["Relu", "Relu"]}, "activation is not of type string"),
        ("FusedConv", {"activation": "LeakyRelu", "activation_params": 3.0}, "activation_params is not of type floats"),
        ("FusedConv", {"activation": "Clip", "activation_params": ["a"]}, "activation_params is not of type floats"),
        ("FusedConv", {"activation": "Clip", "activation_params": [1.0]}, "Clip has 1 of 2 parameters"),
        ("FusedGemm", {"activation": "LeakyRelu"}, "LeakyRelu has 0 of 1 parameters"),
        ("FusedMatMul", {"alpha": "a"}, "alpha is not of type float"),
        ("FusedMatMul", {"transBatchA": 1}, "factors have 2 and 2 axes"),
    ],
)
def test_wrong_attributes(op: str, attributes: dict[str, Any], why: str) -> None:
    """Attributes that the operator cannot have are an error of the model, which names them."""
    tensors = _MAP if op == "FusedConv" else _MATRIX
    error = refused(network([node(op, "x w", "y", **attributes, **_RUNTIME)], {"x": tensors["x"]}, {"w": tensors["w"]}))
    assert isinstance(error, InvalidModel)
    assert why in error.why


def test_reasons_of_refusals() -> None:
    """A supported operator with a result or activation that the compiler has not is refused with that reason."""
    read = [node("SkipLayerNormalization", "x s g", "n m", **_RUNTIME), node("Mul", "n m", "y")]
    rows = {name: _ROWS[name] for name in "sg"}
    assert "mean" in refused(network(read, {"x": _ROWS["x"]}, rows)).why
    made = node("FusedConv", "x w", "y", activation="Unknown", **_RUNTIME)
    assert "'Unknown'" in refused(network([made], {"x": _MAP["x"]}, {"w": _MAP["w"]})).why


def test_others_are_refused() -> None:
    """Another operator of the runtime is refused, with what to give instead."""
    error = refused(network([node("CDist", "x w", "y", **_RUNTIME)], {"x": _MATRIX["x"]}, {"w": values((4, 8))}))
    assert "CDist" in error.why
    assert error.next_step.startswith("If ONNX Runtime optimised this file, ")
    other = refused(helper.make_model(helper.make_graph([node("Det", "x", "y")], "g", [], [])))
    assert "docs/emulator.md" in other.next_step
