"""Preparation follows what ONNX Runtime does when it loads a file: control flow, constants, its own operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, IMAGE, model_of, network_of, node, prepared, run_assembled

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
