"""Functions of a network: how large it becomes when they are expanded is known before any is."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import prepared

from harness.errors import InvalidNetwork, UnsupportedNetwork
from harness.network.model_references import load_network

_IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
_CONSTANT = numpy_helper.from_array(np.ones(25_000, np.float32), "v")


def _model(
    nodes: Sequence[NodeProto], functions: Sequence[FunctionProto], initializers: Sequence[TensorProto] = ()
) -> ModelProto:
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, [1, 8]), value("y", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=initializers)
    return helper.make_model(graph, functions=functions, opset_imports=_IMPORTS, ir_version=10)


def _function(name: str, nodes: Sequence[NodeProto], attributes: Sequence[str] = ()) -> FunctionProto:
    return helper.make_function("f", name, ["i"], ["o"], nodes, _IMPORTS, attributes=attributes)


def _chain(operator: str, domain: str, calls: int, ends: tuple[str, str] = ("i", "o")) -> list[NodeProto]:
    names = [ends[0], *(f"t{index}" for index in range(calls - 1)), ends[1]]
    return [helper.make_node(operator, [a], [b], domain=domain) for a, b in itertools.pairwise(names)]


def _towers(top: int, overload: str = "") -> list[FunctionProto]:
    """Functions of which each calls the one below ten times."""
    found = [_function("F0", _chain("Relu", "", 10))]
    found += [_function(f"F{level}", _chain(f"F{level - 1}", "f", 10)) for level in range(1, top + 1)]
    for function in found:
        function.overload = overload
    return found


def _branch(nodes: Sequence[NodeProto], result: str) -> object:
    return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)])


def _calls_in_branches() -> ModelProto:
    calls = helper.make_node(
        "If", ["flag"], ["y"], then_branch=_branch(_chain("F5", "f", 1, ("x", "o")), "o"), else_branch=_branch([], "x")
    )
    return _model([calls], _towers(5), [numpy_helper.from_array(np.array(True), "flag")])


def _overloads() -> ModelProto:
    """Functions whose small overloads follow the large ones of the same names."""
    small = [_function(f"F{level}", _chain("Relu", "", 1)) for level in range(7)]
    for function in small:
        function.overload = "small"
    return _model(_chain("F6", "f", 1, ("x", "y")), [*_towers(6), *small])


def _reference(name: str, kind: int, to: str) -> AttributeProto:
    return AttributeProto(name=name, type=kind, ref_attr_name=to)


def _copied_graphs() -> ModelProto:
    """A graph that a function uses twice, and calls itself one that uses it twice, and so on."""
    lowest = helper.make_node("If", ["i"], ["o"])
    graph = AttributeProto.GRAPH
    lowest.attribute.extend([_reference("then_branch", graph, "g"), _reference("else_branch", graph, "g")])
    functions = [_function("F0", [lowest], ["g"])]
    for level in range(1, 12):
        calls = [helper.make_node(f"F{level - 1}", ["i"], [name], domain="f") for name in ("a", "b")]
        for call in calls:
            call.attribute.append(_reference("g", graph, "g"))
        functions.append(_function(f"F{level}", [*calls, helper.make_node("Add", ["a", "b"], ["o"])], ["g"]))
    body = _branch([helper.make_node("Relu", ["x"], [f"z{index}"]) for index in range(100)], "z0")
    call = helper.make_node("F11", ["flag"], ["y"], domain="f", g=body)
    return _model([call], functions, [numpy_helper.from_array(np.array(True), "flag")])


def _copied_constants() -> ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["k"], value=_CONSTANT),
        helper.make_node("ReduceSum", ["k"], ["s"]),
        helper.make_node("Add", ["i", "s"], ["o"]),
    ]
    return _model(_chain("F", "f", 2000, ("x", "y")), [_function("F", nodes)])


def _copied_attributes() -> ModelProto:
    nodes = [helper.make_node("Constant", [], [f"k{index}"]) for index in range(2000)]
    for node in nodes:
        node.attribute.append(_reference("value", AttributeProto.TENSOR, "t"))
    function = _function("F", [*nodes, *_chain("Relu", "", 1)], ["t"])
    return _model([helper.make_node("F", ["x"], ["y"], domain="f", t=_CONSTANT)], [function])


def _copied_names() -> ModelProto:
    long = "n" * 100_000
    nodes = [helper.make_node("Relu", ["i"], [f"u{index}"]) for index in range(1000)]
    function = _function("F", [*nodes, *_chain("Relu", "", 1)])
    return _model([*_chain("Relu", "", 1, ("x", long)), *_chain("F", "f", 1, (long, "y"))], [function])


@pytest.mark.parametrize(
    ("build", "unit"),
    [
        (_calls_in_branches, "nodes"),
        (_overloads, "nodes"),
        (_copied_graphs, "nodes"),
        (_copied_constants, "bytes"),
        (_copied_attributes, "bytes"),
        (_copied_names, "bytes"),
    ],
)
def test_networks_that_expand_too_much_are_refused_by_their_size(build: Callable[[], ModelProto], unit: str) -> None:
    """Calls count in branches and overloads too, as do copies of constants, attributes, graphs and names."""
    with pytest.raises(UnsupportedNetwork, match=rf"expands to [\d,]+ {unit}"):
        load_network(build())


def test_function_that_exists_twice_is_refused() -> None:
    """Which of two functions of one name a call means is not left to chance."""
    twice = [_function("F", _chain("Relu", "", 1)), _function("F", _chain("Tanh", "", 1))]
    with pytest.raises(InvalidNetwork, match="'F' is defined twice"):
        load_network(_model(_chain("F", "f", 1, ("x", "y")), twice))


def test_functions_of_another_operator_set() -> None:
    """A function of another operator set is expanded if its operators are the same in that of the network."""
    axis = helper.make_node("Constant", [], ["axis"], value_ints=[0])
    around = [helper.make_node("Unsqueeze", ["r", "axis"], ["u"]), helper.make_node("Squeeze", ["u", "axis"], ["s"])]
    body = [*_chain("Relu", "", 2, ("i", "r")), axis, *around, *_chain("Identity", "", 1, ("s", "o"))]
    nodes = _chain("F", "f", 2, ("x", "y"))
    for version in (16, 21):  # the operators after Relu only accept more types in opset 21
        same = helper.make_function("f", "F", ["i"], ["o"], body, [helper.make_opsetid("", version)])
        found = [node.op for node in prepared(_model(nodes, [same])).nodes]
        assert [op for op in found if op not in ("Unsqueeze", "Squeeze")] == ["Relu"] * 4
    newer = helper.make_function("f", "F", ["i"], ["o"], _chain("Softmax", "", 2), [helper.make_opsetid("", 12)])
    with pytest.raises(UnsupportedNetwork, match="needs other operator sets"):
        prepared(_model(nodes, [newer]))


@pytest.mark.parametrize(("network", "function"), [(17, 1 << 40), (1 << 40, 17), (17, -1)])
def test_versions_beyond_the_range_of_onnx_are_refused(network: int, function: int) -> None:
    """ONNX finds operators by versions of 32 bits: a network or function that states another version is damaged."""
    one = helper.make_function("f", "F", ["i"], ["o"], _chain("Relu", "", 2), [helper.make_opsetid("", function)])
    model = _model(_chain("F", "f", 2, ("x", "y")), [one])
    model.opset_import[0].version = network
    with pytest.raises(InvalidNetwork, match="states opset"):
        prepared(model)


def test_functions_with_attributes_are_expanded() -> None:
    """A function that takes an attribute and is called in several places becomes the operators of its body."""
    node = helper.make_node("LeakyRelu", ["i"], ["o"])
    node.attribute.append(_reference("alpha", AttributeProto.FLOAT, "slope"))
    calls = _chain("F", "f", 3, ("x", "y"))
    for index, call in enumerate(calls):
        call.attribute.append(helper.make_attribute("slope", 0.1 * (index + 1)))
    network = load_network(_model(calls, [_function("F", [node], ["slope"])]))
    assert [node.op for node in network.nodes] == ["LeakyRelu"] * 3


@pytest.mark.parametrize("group", [0, -1])
def test_channels_in_no_group_are_refused(group: int) -> None:
    """A convolution states at least one group: runtimes divide by it."""
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, [1, 4, 8, 8]), value("y", TensorProto.FLOAT, [1, 4, 6, 6])
    w = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], group=group)], "g", [x], [y], [w])
    with pytest.raises(InvalidNetwork, match=f"Its group is {group}; it must be at least 1"):
        load_network(helper.make_model(graph, opset_imports=_IMPORTS[:1], ir_version=10))
