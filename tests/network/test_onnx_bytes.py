"""The device's own ONNX reader and writer agree with the onnx package."""

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import prepared, random_dags

from device_agents import arrays
from device_agents.backends.onnx_bytes import chain_model, read_nodes, with_weights
from harness.network.assemble import assemble_network


@given(random_dags())
def test_nodes_are_those_of_the_model(model: ModelProto) -> None:
    """Names, operators, inputs and outputs are equal to those that the onnx package reads."""
    content = assemble_network(prepared(model)).content
    expected = [
        (node.name, node.op_type, tuple(node.input), tuple(node.output))
        for node in onnx.load_model_from_string(content).graph.node
    ]
    assert [(node.name, node.op, node.inputs, node.outputs) for node in read_nodes(content)] == expected


def test_absent_inputs_keep_their_place() -> None:
    """An absent optional input has an empty name, as in the file."""
    node = helper.make_node("Clip", ["x", "", "most"], ["y"], "clip")
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    assert [one.inputs for one in read_nodes(model.SerializeToString())] == [("x", "", "most")]


@given(random_dags())
def test_weights_take_their_places(model: ModelProto) -> None:
    """Every weight is in the model with the values that the device generates; the rest is unchanged."""
    sent = assemble_network(prepared(model))
    values = {spec.name: arrays.make(spec.wire()) for spec in sent.weights}
    filled = onnx.load_model_from_string(with_weights(sent.content, values))
    onnx.checker.check_model(filled, full_check=True)
    plain = onnx.load_model_from_string(sent.content)
    assert filled.graph.node == plain.graph.node
    assert [tensor.name for tensor in filled.graph.initializer] == [tensor.name for tensor in plain.graph.initializer]
    for tensor in filled.graph.initializer:
        assert tensor.data_location == TensorProto.DEFAULT and not tensor.external_data
        if tensor.name in values:
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), values[tensor.name])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_every_type_and_shape_arrives(dtype: str, shape: tuple[int, ...]) -> None:
    """Arrays of every type and shape, including scalars and empty arrays, are written without loss."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    absent = TensorProto(name="w", data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="weights")
    model = helper.make_model(helper.make_graph([], "g", [], [], [absent]))
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    (tensor,) = onnx.load_model_from_string(with_weights(model.SerializeToString(), {"w": values})).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), values)


@pytest.mark.parametrize("length", [1, 200])
def test_chain_is_a_valid_model(length: int) -> None:
    """The generated chain passes the checker with type inference and has the requested number of operators."""
    model = onnx.load_model_from_string(chain_model(length))
    onnx.checker.check_model(model, full_check=True)
    assert [len(node.input) for node in model.graph.node] == [3] * length
    assert model.graph.output[0].name == f"t{length}"


WHOLE = chain_model(3)


@given(st.one_of(st.binary(max_size=40), st.integers(0, len(WHOLE) - 1).map(lambda end: WHOLE[:end])))
def test_what_is_no_model_is_refused(content: bytes) -> None:
    """Truncated or damaged bytes raise ValueError, or give no more nodes than the whole model."""
    try:
        nodes = read_nodes(content)
    except ValueError:
        return
    assert len(nodes) <= 3
