"""Operators that functions define, and branches with a constant condition: values, accounting and names in errors."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import InvalidModel, UnsupportedOperator


def test_a_function_of_onnx_stands_for_its_node() -> None:
    """An Attention between two layers becomes many layers; the last of them has the name of the node."""
    feeds = {name: values((1, 2, 4, 8), seed) for seed, name in enumerate(("q0", "k", "v"))}
    nodes = [node("Relu", "q0", "q"), node("Attention", "q k v", "t", is_causal=1), node("Sigmoid", "t", "y")]
    graph = imported(model(nodes, feeds, opset=23), feeds)
    named = [layer.nodes for layer in graph.layers if layer.nodes]
    assert [name for names in named for name in names] == ["q", "t", "y"]
    assert len(graph.layers) > 5 and graph.free_nodes == ()


def test_a_handler_takes_its_operator_although_a_function_defines_it() -> None:
    """LayerNormalization is one layer, unless its mean is wanted too."""
    x, factors = values((3, 8)), {"s": values((8,), 1)}
    assert functions(imported(model([node("LayerNormalization", "x s", "y")], {"x": x}, factors), {"x": x})) == [
        "NORMALIZE"
    ]
    proto = model([node("LayerNormalization", "x s", "y mean")], {"x": x}, factors, ("y", "mean"))
    assert len(imported(proto, {"x": x}).layers) > 1


def test_functions_of_the_model() -> None:
    """Functions in the file become their nodes, also inside each other and with tensors of equal names."""
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { a = own.Twice (x)  y = own.Twice (a) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]>
        Twice (x) => (y) { t = own.Half (x)  s = own.Half (x)  y = Add (t, s) }
        <domain: "own", opset_import: ["" : 17]>
        Half (x) => (y) { two = Constant <value = float {2}> ()  t = Sigmoid (x)  y = Div (t, two) }
        """
    )
    imported(proto, {"x": values((2, 3))})


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_selects_a_branch(condition: bool) -> None:
    """An If whose condition follows from shapes becomes the nodes of the branch that it takes."""
    taken, other = (
        helper.make_graph([node(op, "x", name)], name, [], [helper.make_empty_tensor_value_info(name)])
        for op, name in (("Relu", "a"), ("Sigmoid", "b"))
    )
    x = values((2, 3))
    nodes = [
        node("Shape", "x", "shape"),
        node("ReduceProd", "shape", "count", keepdims=0),
        node("Equal", "count wanted", "c"),
        node("If", "c", "y", then_branch=taken, else_branch=other),
    ]
    proto = model(nodes, {"x": x}, {"wanted": np.array(6 if condition else 7, np.int64)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]))
    graph = imported(proto, {"x": x})
    assert [layer.settings.activation.name for layer in graph.layers] == ["RELU" if condition else "SIGMOID"]


def test_refusals_inside_functions_name_the_operator_of_the_file() -> None:
    """An error in a function names its node, and the operator that the function defines."""
    x = values((1, 4, 6))
    proto = model([node("Bernoulli", "x", "y")], {"x": x}, opset=15)
    with pytest.raises(UnsupportedOperator, match="part of Bernoulli"):
        import_model(proto)


def test_a_shape_that_depends_on_values_is_refused() -> None:
    """A shape that the network computes is refused, and the error names the node."""
    feeds = {"x": values((2, 3)), "k": np.array([3, 2], np.int64)}
    proto = model([node("Reshape", "x k", "t"), node("Shape", "t", "y")], feeds)
    with pytest.raises(InvalidModel, match=r"'t'.*Shape"):
        import_model(proto)


def _calling(own: dict[str, list[str]]) -> onnx.ModelProto:
    """Return a model that calls the first function; each one calls the functions that it lists, and adds nothing."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = model([node(next(iter(own)), "x", "y", domain="own")], {"x": values((2, 3))})
    proto.opset_import.append(imports[1])
    for name, called in own.items():
        body = [node(each, "x", f"t{place}", domain="own") for place, each in enumerate(called)]
        body.append(node("Relu", "t0" if called else "x", "y"))
        proto.functions.append(helper.make_function("own", name, ["x"], ["y"], body, imports))
    return proto


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"again": ["again"]}, "does not fit the function"),
        ({f"f{place}": [f"f{place + 1}"] for place in range(20)} | {"f20": []}, "functions are more than"),
        ({f"f{place}": [f"f{place + 1}"] * 60 for place in range(5)} | {"f5": []}, "functions are more than"),
    ],
    ids=["recursive", "deep", "wide"],
)
def test_functions_without_end_are_refused(own: dict[str, list[str]], words: str) -> None:
    """Functions that call themselves, or others too deeply or too often, end with an error and not with the memory."""
    with pytest.raises(InvalidModel) as caught:
        import_model(_calling(own))
    assert words in f"{caught.value.what} {caught.value.why}"
