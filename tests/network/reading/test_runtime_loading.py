"""Preparation follows what ONNX Runtime does when it loads a file: control flow, constants, its own operators."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, IMAGE, model_of, network_of, node, prepared, random_dags, run_assembled, run_plain

from harness.errors import UnresolvedDimension, UnsupportedNetwork
from harness.network.assemble import assemble_network
from harness.network.network import Network


def branches(condition: bool, *, inner: Sequence[NodeProto] = ()) -> ModelProto:
    """Return a model whose If of constant condition applies Relu or Abs, in branches that use one name."""

    def branch(op: str) -> GraphProto:
        nodes = [helper.make_node(op, ["h"], ["r"], "same"), *inner]
        value = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, IMAGE)
        return helper.make_graph(nodes, op, [], [value])

    nodes = [
        helper.make_node("Neg", ["x"], ["h"], "before"),
        helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("Relu"), else_branch=branch("Abs")),
    ]
    return model_of(nodes, {"x": IMAGE}, constants={"c": np.array(condition)})


@pytest.mark.parametrize(("condition", "chosen"), [(True, "Relu"), (False, "Abs")])
def test_an_if_of_known_condition_is_its_branch(condition: bool, chosen: str) -> None:
    """The nodes of the chosen branch are measured in place of the If, which takes no time."""
    network = prepared(branches(condition))
    assert [node.op for node in network.nodes] == ["Neg", chosen]
    assert [(node.op, node.reason) for node in network.free] == [("If", "constant")]


def test_branches_may_hold_branches() -> None:
    """Names of a branch stay apart from those of branches around and inside it."""
    inner = helper.make_graph(
        [helper.make_node("Abs", ["r"], ["r2"], "same")],
        "deep",
        [],
        [helper.make_tensor_value_info("r2", FLOAT, IMAGE)],
    )
    nested = helper.make_node("If", ["c"], ["deeper"], "inner", then_branch=inner, else_branch=inner)
    network = prepared(branches(True, inner=[nested]))
    assert [node.op for node in network.nodes] == ["Neg", "Relu", "Abs"]
    assert len({node.name for node in network.nodes}) == 3


def test_a_loop_over_constants_folds() -> None:
    """A Loop that reads constants alone is computed, also with constants that its body reads from outside."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "two"], ["w"]), helper.make_node("Identity", ["go"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("v", TensorProto.INT64, (1,)),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("w", TensorProto.INT64, (1,)),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["n", "yes", "zero"], ["shape"], body=body),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    constants = {"n": np.array(3), "yes": np.array(True), "zero": np.array([0]), "two": np.array([2])}
    network = network_of(nodes, {"x": (1,)}, constants=constants)
    assert network.types["y"].shape == (6,)


def test_control_flow_on_data_is_refused() -> None:
    """An If whose condition depends on the inputs has no latency of its own."""
    model = branches(True)
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    with pytest.raises(UnsupportedNetwork, match="choice"):
        prepared(model)


def detector(*tail: NodeProto) -> Network:
    """Return a network whose boxes go through a non-maximum suppression, whose result the `tail` reads as `kept`."""
    nodes = [
        node("Relu", "x", "boxes"),
        node("Sigmoid", "s", "scores"),
        node("NonMaxSuppression", "boxes scores most", "kept"),
        *tail,
    ]
    return network_of(
        nodes,
        {"x": (1, 8, 4), "s": (1, 2, 8)},
        ["kept" if not tail else tail[-1].output[0], "scores"],
        {"most": np.array([5]), "matrix": np.ones((3, 3), np.float32)},
        types={"kept": TensorProto.INT64},
    )


def test_post_processing_that_depends_on_data_is_set_apart() -> None:
    """What follows a non-maximum suppression is named as not measured, and what it reads becomes an output."""
    network = detector(node("Cast", "kept", "y", to=FLOAT))
    assert [node.op for node in network.nodes] == ["Relu", "Sigmoid"]
    assert [node.op for node in network.unmeasured] == ["NonMaxSuppression", "Cast"]
    assert set(network.outputs) == {"scores", "boxes"}


def test_a_network_that_goes_on_behind_it_is_refused() -> None:
    """If weights follow the part that depends on the data, too much would be left out."""
    with pytest.raises(UnresolvedDimension, match="NonMaxSuppression"):
        detector(node("Cast", "kept", "f", to=FLOAT), node("MatMul", "f matrix", "y"))


def test_the_shape_of_a_large_constant_is_known() -> None:
    """The shape of a constant whose values are not kept is folded like any other."""
    nodes = [node("Shape", "w", "shape"), node("Reshape", "x shape", "y")]
    network = network_of(nodes, {"x": (300 * 300,)}, constants={"w": np.zeros((300, 300), np.float32)})
    assert network.types["y"].shape == (300, 300)


def test_constants_without_elements_are_constants() -> None:
    """An empty constant, such as the unused region of a Resize, may be computed."""
    nodes = [
        node("Slice", "values start end", "none"),
        node("Concat", "none sizes", "scales", axis=0),
        node("Resize", "x none scales", "y"),
    ]
    constants = {
        "values": np.ones(4, np.float32),
        "start": np.array([0]),
        "end": np.array([0]),
        "sizes": np.array([1, 1, 2, 2], np.float32),
    }
    assert network_of(nodes, {"x": IMAGE}, constants=constants).types["y"].shape == (1, 4, 12, 12)


def test_operators_of_onnx_runtime_are_typed() -> None:
    """Operators that only ONNX Runtime knows get the types that a run of it shows."""
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("QLinearAdd", "q scale zero q scale zero scale zero", "r", domain="com.microsoft"),
        node("DequantizeLinear", "r scale zero", "y"),
    ]
    constants = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8)}
    model = model_of(nodes, {"x": IMAGE}, constants=constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = prepared(model)
    assert str(network.types["r"]) == "uint8[1,4,6,6]"
    assert network.domains == {"com.microsoft": 1}
    _, (result,) = run_assembled(assemble_network(network))
    assert result.shape == IMAGE


def test_quantised_convolutions_may_have_channels_last() -> None:
    """Files that ONNX Runtime has optimised hold convolutions over maps with channels last."""
    operands = "x scale zero w scale zero scale zero"
    conv = node("QLinearConv", operands, "y", domain="com.microsoft", channels_last=1, kernel_shape=[3, 3])
    weights = np.ones((5, 4, 3, 3), np.uint8)
    constants = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8), "w": weights}
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    model = model_of([conv], {"x": (1, 6, 7, 4)}, constants=constants, types=types)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert prepared(model).types["y"].shape == (1, 4, 5, 5)


def test_a_dequantised_tensor_with_two_readers_is_dequantised_for_each() -> None:
    """Each reader of a dequantised tensor has a DequantizeLinear of its own, which can be merged into it."""
    nodes = [node("DequantizeLinear", "q scale", "d"), node("Relu", "d", "a"), node("Abs", "d", "b")]
    network = network_of(
        nodes, {"q": IMAGE}, ["a", "b"], {"scale": np.array(0.1, np.float32)}, types={"q": TensorProto.INT8}
    )
    assert [one.op for one in network.nodes] == ["DequantizeLinear", "Relu", "DequantizeLinear", "Abs"]
    assert [one.index for one in network.nodes] == [0, 1, 2, 3]
    assert all(len(network.readers(one.outputs[0])) == 1 for one in network.nodes[::2])


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.STRING, TensorProto.INT4, TensorProto.COMPLEX64])
def test_types_that_cannot_be_measured_are_named(kind: int) -> None:
    """A tensor of a type that devices cannot make is refused by the name of the type."""
    name = TensorProto.DataType.Name(kind).lower()
    with pytest.raises(UnsupportedNetwork) as caught:
        network_of([node("Identity", "x", "h"), node("Relu", "h", "y")], {"x": IMAGE}, types={"x": kind, "y": kind})
    assert name in caught.value.why or {"string": "object"}.get(name, name) in caught.value.why


@pytest.mark.parametrize("opset", [11, 16, 21])
def test_normalisations_of_onnx_runtime_belong_to_every_opset(opset: int) -> None:
    """Its optimizers write two operators into ONNX's domain: such files are read, and run as they are."""
    nodes = [
        node("LayerNormalization", "x s b", "n", axis=-1),
        node("SimplifiedLayerNormalization", "n s", "y", axis=-1),
    ]
    constants = {"s": np.linspace(1, 2, 6, dtype=np.float32), "b": np.ones(6, np.float32)}
    model = model_of(nodes, {"x": IMAGE}, constants=constants, opset=opset)
    network = prepared(model)
    assert network.types["y"].shape == IMAGE
    (x,), (ours,) = run_assembled(assemble_network(network))
    np.testing.assert_array_equal(ours, run_plain(model, {"x": x}, ["y"])["y"])
    assert {one.domain for one in model.graph.node} == {""}


def runtime_model(*args: Any, **options: Any) -> ModelProto:
    """Return the model of `model_of` with the domain of ONNX Runtime."""
    model = model_of(*args, **options)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def test_words_of_an_embedding_are_no_sizes() -> None:
    """An operator of ONNX Runtime whose results have one size for several integers has that size."""
    tables = {name: np.ones((5, 8), np.float32) for name in ("words", "places")}
    factors = {name: np.ones(8, np.float32) for name in ("scale", "bias")}
    embed = node("EmbedLayerNormalization", "ids _ words places _ scale bias", "y counts", domain="com.microsoft")
    constants, types = {**tables, **factors}, {"ids": TensorProto.INT32}
    network = prepared(runtime_model([embed], {"ids": (1, 4)}, constants=constants, types=types))
    assert network.types["y"].shape == (1, 4, 8)


def test_sizes_of_operators_of_onnx_runtime_are_not_guessed() -> None:
    """An integer input that decides the size of a result is seen, because another value gives another size."""
    nodes = [node("Relu", "x", "r"), node("ExpandDims", "r axis", "e", domain="com.microsoft"), node("Abs", "e", "y")]
    network = prepared(runtime_model(nodes, {"x": (2, 3), "axis": ()}, ("y", "r"), types={"axis": TensorProto.INT32}))
    assert [one.op for one in network.nodes] == ["Relu"]
    assert [one.op for one in network.unmeasured] == ["ExpandDims", "Abs"]


def test_three_values_show_that_an_axis_decides_a_shape() -> None:
    """An axis decides the shape also where the first two axes give the same one."""
    nodes = [node("Relu", "x", "r"), node("ExpandDims", "r axis", "e", domain="com.microsoft"), node("Abs", "e", "y")]
    network = prepared(runtime_model(nodes, {"x": (1, 3), "axis": ()}, ("y", "r"), types={"axis": TensorProto.INT32}))
    assert [one.op for one in network.unmeasured] == ["ExpandDims", "Abs"]


def test_a_table_of_two_rows_has_no_row_for_a_two() -> None:
    """Indices that lie within no table of two rows leave the shape known, as of the segments of a text."""
    tables = {"words": np.ones((5, 8), np.float32), "segments": np.ones((2, 8), np.float32)}
    factors = {name: np.ones(8, np.float32) for name in ("scale", "bias")}
    operands = "ids parts words words segments scale bias"
    embed = node("EmbedLayerNormalization", operands, "y counts", domain="com.microsoft")
    shapes = {"ids": (1, 4), "parts": (1, 4)}
    types = dict.fromkeys(shapes, TensorProto.INT32)
    network = prepared(runtime_model([embed], shapes, constants={**tables, **factors}, types=types))
    assert network.types["y"].shape == (1, 4, 8)


def test_an_operator_that_fails_for_its_values_depends_on_data() -> None:
    """An operator that ONNX Runtime has, and that refuses the values of every run, is not said to be absent."""
    crop = node("CropAndResize", "x boxes which size", "y", domain="com.microsoft")
    shapes = {"x": (1, 2, 4, 4), "boxes": (1, 4), "which": (1,), "size": (2,)}
    types = dict.fromkeys(("which", "size"), TensorProto.INT32)
    with pytest.raises(UnresolvedDimension, match="depends on the values of the network's inputs"):
        prepared(runtime_model([crop], shapes, types=types))


def test_an_operator_without_kernel_is_named() -> None:
    """A network with an operator that ONNX Runtime cannot run here is refused for that reason, not measured in part."""
    for op, why in (("NoSuchOperator", ".*not a registered"), ("MoE", "Node with schema.* has input size 1 ")):
        nodes = [node("Relu", "x", "r"), node(op, "r", "y", domain="com.microsoft")]
        with pytest.raises(UnsupportedNetwork, match=f"{op}.*cannot run it on this machine: {why}"):
            prepared(runtime_model(nodes, {"x": (2, 3)}))


def test_the_default_of_a_transform_is_that_of_the_operator() -> None:
    """A short-time Fourier transform returns half of the frequencies unless the file states otherwise."""
    constants = {"step": np.array(4), "length": np.array(8)}
    model = model_of([node("STFT", "x step _ length", "y")], {"x": (1, 32, 1)}, constants=constants)
    network = prepared(model)
    _, (ours,) = run_assembled(assemble_network(network))
    assert network.types["y"].shape == ours.shape == (1, 7, 5, 2)


@pytest.mark.parametrize("has_type", [False, True])
def test_outputs_need_no_shape(has_type: bool) -> None:
    """A file whose outputs have no type, or one without a shape, is read: types are inferred."""
    model = model_of([node("Relu", "x", "y")], {"x": (2, 3)})
    model.graph.output[0].ClearField("type")
    if has_type:
        model.graph.output[0].type.tensor_type.elem_type = FLOAT
    assert prepared(model).types["y"].shape == (2, 3)


@given(random_dags(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_in_a_file_does_not_matter(model: ModelProto, order: random.Random) -> None:
    """Nodes in any order, which a runtime puts in order, have the values of the sorted file."""
    _, expected = run_assembled(assemble_network(prepared(model)))
    nodes = list(model.graph.node)
    order.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    _, values = run_assembled(assemble_network(prepared(model)))
    for ours, theirs in zip(values, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_product_with_dequantised_weights_is_not_left_out() -> None:
    """A network is refused if the size of what a product reads is unknown, also where its weights are integers."""
    nodes = [
        node("Relu", "x", "r"),
        node("Compress", "r chosen", "c", axis=0),
        node("DequantizeLinear", "w scale", "d"),
        node("MatMul", "c d", "y"),
    ]
    constants = {"w": np.ones((3, 3), np.int8), "scale": np.array(0.5, np.float32)}
    inputs, types = {"x": (2, 3), "chosen": (2,)}, {"chosen": TensorProto.BOOL}
    with pytest.raises(UnresolvedDimension, match="Compress"):
        network_of(nodes, inputs, constants=constants, types=types)


def test_tables_of_four_bits_are_typed() -> None:
    """An operator of ONNX Runtime that looks up packed integers has the shape that the runtime gives it."""
    attributes = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    look = node("GatherBlockQuantized", "table ids scale", "y", domain="com.microsoft", **attributes)
    constants, types = {"scale": np.ones((5, 2), np.float32)}, {"ids": TensorProto.INT64}
    model = runtime_model([look], {"ids": (1, 4)}, constants=constants, types=types, opset=21, ir_version=10)
    model.graph.initializer.append(helper.make_tensor("table", TensorProto.UINT4, (5, 32), [1] * 160))
    assert prepared(model).types["y"].shape == (1, 4, 32)


@pytest.mark.parametrize(("opset", "attributes"), [(10, {}), (13, {}), (18, {"axes": [2, 3]})])
def test_scaled_maps_have_the_sizes_of_the_runtime(opset: int, attributes: dict[str, Any]) -> None:
    """A Resize returns as many rows as ONNX Runtime's, which rounds size times scale to float32."""
    sizes = [(20, 13), (20, 17), (49, 50), (7, 10), (30, 19)]
    for size, target in sizes:
        scale = np.array([*([] if attributes else [1, 1]), target / size, 1.5], np.float32)
        read = "x scale" if opset == 10 else "x _ scale"
        resize = node("Resize", read, "r", mode="nearest", **attributes)
        file = model_of(
            [resize, node("Relu", "r", "y")], {"x": (1, 2, size, 4)}, constants={"scale": scale}, opset=opset
        )
        network = prepared(file)
        found = run_plain(file, {"x": np.ones((1, 2, size, 4), np.float32)}, ["y"])
        assert network.types["y"].shape == found["y"].shape
        assert run_assembled(assemble_network(network))[1][0].shape == found["y"].shape


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_stored_weights_that_a_cast_converts_are_constants(kind: int) -> None:
    """Weights of a type that no layer reads become float32 as in a runtime; another reader of them is refused."""
    weights = helper.make_tensor("w", kind, [4, 2], [0.5, 1, 2, -4, 8, -0.25, 1.5, 3])
    cast, product = node("Cast", "w", "f", to=FLOAT), node("MatMul", "x f", "y")
    file = model_of([cast, product], {"x": (3, 4)}, opset=21, ir_version=10)
    file.graph.initializer.append(weights)
    network = prepared(file)
    assert [each.op for each in network.nodes] == ["MatMul"]
    np.testing.assert_array_equal(network.constants["f"].value, [[0.5, 1], [2, -4], [8, -0.25], [1.5, 3]])
    file.graph.node[0].CopyFrom(node("Identity", "w", "f"))
    with pytest.raises(UnsupportedNetwork, match="element type"):
        prepared(file)


@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_a_pool_has_no_window_that_starts_behind_the_map(op: str) -> None:
    """With ceil_mode, a pool returns as many rows as ONNX Runtime's, and the same values."""
    cases = [(8, 3, 3, 1, 1), (22, 2, 2, 0, 1), (7, 3, 2, 1, 1), (9, 2, 2, 0, 0), (13, 2, 2, 1, 1), (14, 1, 3, 0, 0)]
    for size, kernel, step, before, behind in cases:
        attributes = {"kernel_shape": [kernel, 1], "strides": [step, 1], "pads": [before, 0, behind, 0]}
        counts = {"count_include_pad": 1} if op == "AveragePool" else {}
        pool = node(op, "x", "r", ceil_mode=1, **attributes, **counts)
        file = model_of([pool, node("Relu", "r", "y")], {"x": (1, 2, size, 4)}, opset=19)
        assembled = assemble_network(prepared(file))
        (x,), (y,) = run_assembled(assembled)
        np.testing.assert_array_equal(y, run_plain(file, {"x": x}, ["y"])["y"])
        assert assembled.outputs[0].shape == y.shape
