"""TopK selects by repeated maxima, or by ranks."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import execute, network_of, relative_error
from onnx import ModelProto, TensorProto, helper
from reference_graph import run_graph
from small_models import by_runtime, functions, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.operators import selection
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array


@st.composite
def _tensors(draw: st.DrawFn) -> tuple[Array, int]:
    """Return a tensor with equal elements, and an axis."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([np.float32, np.int32, np.int64, np.float64]))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 4, shape).astype(dtype)
    if array.dtype.kind == "f" and draw(st.booleans()):
        array[array > 2] = np.inf
        array[array < -2] = -np.inf
    return array, draw(st.integers(-len(shape), len(shape) - 1))


@given(_tensors(), st.data())
@settings(max_examples=75)
def test_top_k(case: tuple[Array, int], data: st.DataObject) -> None:
    """Any count, axis, order and type gives the runtime's results, also in parts, of equal and infinite elements."""
    x, axis = case
    count = data.draw(st.integers(1, x.shape[axis]))
    outputs = data.draw(st.sampled_from(["y i", "y", "i"]))
    made = node("TopK", "x k", "y i", axis=axis, largest=data.draw(st.integers(0, 1)))
    with patch.object(selection, "_SELECTED_TOGETHER", data.draw(st.sampled_from((4, 1 << 19)))):
        _compared(model([made], {"x": x}, {"k": np.array([count])}, outputs.split()), x)


def _compared(proto: ModelProto, x: Array) -> None:
    """Compare elements, which may be infinite, with those of ONNX Runtime."""
    found = run_graph(import_model(proto), {"x": x}, {})
    for output, wanted in zip(proto.graph.output, by_runtime(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(found[output.name], wanted)


@pytest.mark.parametrize("largest", [0, 1])
def test_few_of_many_are_selected_one_by_one(largest: int) -> None:
    """Five of a thousand classes take a few layers each; negative infinity among them keeps its place."""
    x = values((2, 1000))
    x[0, 10:996] = -np.inf if largest else np.inf
    proto = model([node("TopK", "x k", "y i", largest=largest)], {"x": x}, {"k": np.array([8])}, ["y", "i"])
    assert functions(import_model(proto)).count("REDUCE") == 8
    _compared(proto, x)


def test_selection_at_the_end_of_a_network() -> None:
    """The five best of 1000 classes and their scores, computed on the emulated NPU."""
    constants = {"w": values((64, 1000), 1), "k": np.array([5])}
    nodes = [node("MatMul", "x w", "logits"), node("Softmax", "logits", "p"), node("TopK", "p k", "y i")]
    network = network_of(nodes, {"x": values((3, 64))}, constants, ["y", "i"])
    found = execute(compile_model(network.model, find_machine("edge")), network)
    np.testing.assert_array_equal(found["i"], network.expected["i"])
    assert relative_error(found, network.expected) <= 1e-5


def test_a_count_that_the_network_computes_is_refused() -> None:
    """The count decides the shape of the results."""
    feeds = {"x": values((2, 5)), "k": np.array([2])}
    proto = model([node("TopK", "x k", "y i")], feeds, {}, ["i"])
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("i", TensorProto.INT64, [2, 2]))
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(proto)
    assert "k is not a constant" in refusal.value.why
