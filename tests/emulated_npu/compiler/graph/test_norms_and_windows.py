"""Norms, pooling by norms, shrinking, and normalisation over odd axes and with broadcast factors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import NetworkCase, execute, relative_error, small_machine
from onnx import helper
from small_models import by_runtime, imported, model, node, values

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.numpy_types import Array


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data(), st.integers(1, 2))
@settings(max_examples=24)
def test_norms(shape: list[int], data: st.DataObject, p: int) -> None:
    """Both norms along any axis; where all elements are zero, the result is zero and not undefined."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(shape)
    if data.draw(st.booleans()):
        np.moveaxis(x, axis, 0)[:, ...] *= np.random.default_rng(0).integers(0, 2, x.sum(axis).shape)
    imported(model([node("LpNormalization", "x", "y", axis=axis, p=p)], {"x": x}, opset=22), {"x": x})


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=36)
def test_pooling_by_norms(data: st.DataObject, count: int, p: int) -> None:
    """Windows of any size, stride and padding; padding adds nothing."""
    kernel, strides = ([data.draw(st.integers(1, 3)) for _ in range(count)] for _ in range(2))
    sizes = [data.draw(st.integers(size, 7)) for size in kernel]
    pads = [data.draw(st.integers(0, size - 1)) for _ in range(2) for size in kernel]
    x = values((2, 3, *sizes))
    made = node("LpPool", "x", "y", kernel_shape=kernel, strides=strides, pads=pads, p=p)
    imported(model([made], {"x": x}), {"x": x})
    imported(model([node("GlobalLpPool", "x", "y", p=p)], {"x": x}), {"x": x})


@pytest.mark.parametrize("attributes", [{}, {"bias": 0.4}, {"lambd": 1.0, "bias": -0.5}, {"lambd": 0.0}], ids=str)
def test_shrinking(attributes: dict[str, float]) -> None:
    """Numbers near zero become zero, others move by the bias; the bounds themselves become zero."""
    x = np.concatenate([values((40,)), np.array([0.5, -0.5, 1.0, -1.0, 0.0], np.float32)])
    imported(model([node("Shrink", "x", "y", **attributes)], {"x": x}), {"x": x})


def test_binarizer() -> None:
    """The operator of ONNX's other domain: one above the threshold, else zero."""
    x = values((3, 5))
    made = node("Binarizer", "x", "y", threshold=0.25)
    made.domain = "ai.onnx.ml"
    proto = model([made], {"x": x})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    imported(proto, {"x": x})


@given(st.data())
@settings(max_examples=36)
def test_layer_normalisation_over_any_axes(data: st.DataObject) -> None:
    """Layer normalisation from any axis on, with factors of fewer axes, and without a bias."""
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    own = shape[axis:]
    factor = tuple(size if data.draw(st.booleans()) else 1 for size in own)
    constants = {"s": values(factor, 1), "b": values(factor, 2)}
    inputs = "x s b" if data.draw(st.booleans()) else "x s"
    x = values(shape)
    assume(np.prod(own) > 1)
    imported(model([node("LayerNormalization", inputs, "y", axis=axis)], {"x": x}, constants), {"x": x}, 1e-4)


def test_layer_normalisation_before_opset_17() -> None:
    """ONNX Runtime's optimizers write a LayerNormalization into files whose opset does not define it."""
    x, constants = values((2, 3, 7)), {"s": values((7,), 1), "b": values((7,), 2)}
    nodes = [node("LayerNormalization", "x s b", "n", axis=-1), node("Abs", "n", "y")]
    imported(model(nodes, {"x": x}, constants, opset=12), {"x": x}, 1e-4)


NORMALISATIONS: dict[str, tuple[int, dict[str, Any], str]] = {
    "InstanceNormalization": (17, {"epsilon": 1e-3}, "x c d"),
    "GroupNormalization": (21, {"num_groups": 3, "epsilon": 1e-3}, "x c d"),
    "LayerNormalization": (17, {"axis": 1}, "x last"),
    "RMSNormalization": (23, {"axis": -1}, "x last"),
    "SimplifiedLayerNormalization": (13, {"axis": -1}, "x last"),
    "MeanVarianceNormalization": (13, {"axes": [0, 2]}, "x"),
    "LpNormalization": (22, {"axis": 1, "p": 1}, "x"),
}


@pytest.mark.parametrize("op", NORMALISATIONS)
@pytest.mark.parametrize("spatial", [(5,), (7, 3), (3, 5, 2)])
def test_normalisations_in_little_memory(op: str, spatial: tuple[int, ...]) -> None:
    """Normalisations of odd sizes, which are no multiples of the lanes, run on a small machine."""
    opset, attributes, inputs = NORMALISATIONS[op]
    x = values((3, 9, *spatial))
    constants: dict[str, Array] = {"c": values((9,), 1), "d": values((9,), 2), "last": values(spatial[-1:], 3)}
    used = {name: array for name, array in constants.items() if name in inputs.split()}
    proto = model([node(op, inputs, "y", **attributes)], {"x": x}, used, opset=opset)
    imported(proto, {"x": x}, 1e-4)
    network = NetworkCase(proto.SerializeToString(), used, {"x": x}, {"y": by_runtime(proto, {"x": x})[0]})
    compiled = compile_model(network.model, small_machine())
    assert relative_error(execute(compiled, network), network.expected) <= 1e-4
