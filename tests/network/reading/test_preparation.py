"""Preparation of files: which nodes are timed, which are free, and which files are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, IMAGE, WEIGHT, model_of, network_of, node, prepared, random_dags

from harness.errors import InvalidNetwork, UnresolvedDimension, UnsupportedNetwork, UsageError
from harness.host_runtime import open_session, session_options
from harness.network.layers import cut
from harness.network.network import Network, TensorType
from harness.network.network_list import load_networks


def ops(network: Network) -> list[str]:
    """Return the operators that are timed."""
    return [each.op for each in network.nodes]


def reasons(network: Network) -> dict[str, str]:
    """Return the operators that are free, with the reason."""
    return {each.op: each.reason for each in network.free}


@given(random_dags())
def test_every_node_is_timed_or_named_as_free(model: ModelProto) -> None:
    """Each node of the file is in exactly one layer or in the list of free nodes, with a reason."""
    network = prepared(model)
    layers = [each.name for layer in cut(network, ()) for each in layer.graph.nodes]
    free = [each.name for each in network.free]
    assert sorted(layers + free) == sorted(each.name for each in model.graph.node)
    assert all(each.reason for each in network.free)


@given(random_dags())
def test_every_tensor_has_a_type_and_a_writer(model: ModelProto) -> None:
    """Every tensor that a node reads has a type and is an input, a constant or written by an earlier node."""
    network = prepared(model)
    known = {*network.inputs, *network.constants}
    for each in network.nodes:
        assert known.issuperset(each.inputs)
        known.update(each.outputs)
        assert {network.types[name].shape for name in each.outputs} <= {IMAGE, (1, 2, 6, 6)}
        assert {network.types[name].dtype for name in each.outputs} == {"float32"}
    assert known.issuperset(network.outputs)


def shape_subgraph() -> list[NodeProto]:
    """Return nodes that flatten `x` as exporters write it: batch size looked up, the rest -1."""
    return [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch", axis=0),
        node("Unsqueeze", "batch zeros", "batch1"),
        node("Concat", "batch1 minus", "target", axis=0),
        node("Relu", "x", "a"),
        node("Reshape", "a target", "y"),
    ]


SHAPE_CONSTANTS = {"zero": np.array(0), "zeros": np.array([0]), "minus": np.array([-1])}


def test_shape_subgraphs_fold() -> None:
    """Shape, Gather, Unsqueeze and Concat become a constant; the reshape that reads it stays."""
    network = network_of(shape_subgraph(), {"x": ("batch", 3, 4)}, constants=SHAPE_CONSTANTS, dims={"batch": 2})
    assert ops(network) == ["Relu", "Reshape"]
    assert reasons(network) == dict.fromkeys(("Shape", "Gather", "Unsqueeze", "Concat"), "constant")
    assert network.types["y"] == TensorType("float32", (2, 12))
    target = network.constants["target"].value
    assert target is not None
    assert target.tolist() == [2, -1]


def test_empty_constants_join_nothing() -> None:
    """A Concat ignores constants without elements."""
    constants = {"none": np.zeros((0, 4), np.float32)}
    network = network_of([node("Concat", "x none z", "y", axis=0)], {"x": (2, 4), "z": (3, 4)}, constants=constants)
    assert [each.inputs for each in network.nodes] == [("x", "z")]
    assert network.types["y"] == TensorType("float32", (5, 4))


@pytest.mark.parametrize("index", [[1, 2], [0, 0]])
def test_one_picked_element_has_no_axes(index: list[int]) -> None:
    """A GatherND by one whole index returns a scalar."""
    network = network_of([node("GatherND", "x at", "y")], {"x": (2, 4)}, constants={"at": np.array(index)})
    assert network.types["y"] == TensorType("float32", ())


@pytest.mark.parametrize(("start", "end", "wanted"), [(0, None, [2, 3, 4]), (1, None, [3, 4]), (-2, -1, [3])])
def test_parts_of_shapes_fold(start: int, end: int | None, wanted: list[int]) -> None:
    """Shape with start and end, and Size, have the values that ONNX defines."""
    span = {"start": start} | ({} if end is None else {"end": end})
    nodes = [
        node("Shape", "x", "part", **span),
        node("Size", "x", "size"),
        node("Cast", "size", "float", to=FLOAT),
        node("Mul", "x float", "y"),
    ]
    network = network_of(nodes, {"x": (2, 3, 4)})
    part, size = network.constants["part"].value, network.constants["float"].value
    assert part is not None
    assert size is not None
    assert (part.tolist(), size.item()) == (wanted, 24.0)


def test_constants_whose_shape_depends_on_their_value_fold() -> None:
    """NonZero of a constant is a constant, because its shape follows from known values."""
    nodes = [node("NonZero", "c", "i"), node("Cast", "i", "f", to=FLOAT), node("Add", "x f", "y")]
    network = network_of(nodes, {"x": (1, 3)}, constants={"c": np.array([1, 0, 1, 1], np.float32)})
    assert ops(network) == ["Add"]
    assert network.types["i"] == TensorType("int64", (1, 3))


def test_large_constants_keep_their_type_alone() -> None:
    """A folded constant above the limit keeps only its type."""
    nodes = [
        node("ConstantOfShape", "s", "w"),
        node("MatMul", "x w", "y"),
    ]
    network = network_of(nodes, {"x": (1, 1000)}, constants={"s": np.array([1000, 100])})
    assert network.constants["w"].value is None
    assert network.types["y"] == TensorType("float32", (1, 100))


@pytest.mark.parametrize("dims", [{"batch": 4}, {"x.0": 4}])
def test_dimensions_bind_by_name_and_by_place(dims: dict[str, int]) -> None:
    """A dimension can be bound by its name and by input and axis."""
    network = network_of([node("Relu", "x", "y")], {"x": ("batch", 3)}, dims=dims)
    assert network.types["y"].shape == (4, 3)


def test_a_size_of_minus_one_is_not_known() -> None:
    """Some exporters write -1 for a size that may vary; it is bound like a dimension without a name."""
    with pytest.raises(UnresolvedDimension, match="axis 0") as caught:
        network_of([node("Relu", "x", "y")], {"x": (-1, 3)})
    assert "dims={'x.0': 1}" in str(caught.value)
    assert network_of([node("Relu", "x", "y")], {"x": (-1, 3)}, dims={"x.0": 4}).types["y"].shape == (4, 3)


def test_one_name_binds_in_every_input() -> None:
    """A symbolic dimension that two inputs share is given once."""
    network = network_of([node("Add", "x z", "y")], {"x": ("n", 3), "z": ("n", 1)}, dims={"n": 5})
    assert network.types["y"].shape == (5, 3)


def test_an_unbound_dimension_is_named() -> None:
    """The error names the dimension and how Python binds it."""
    with pytest.raises(UnresolvedDimension, match="batch") as caught:
        network_of([node("Relu", "x", "y")], {"x": ("batch", 3)})
    assert "dims={'batch': 1}" in str(caught.value)


def test_a_dimension_that_no_network_has_is_a_usage_error(tmp_path: Path) -> None:
    """A --dim that no network has is refused with the existing names; one that another network has is accepted."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "symbolic",
        [helper.make_tensor_value_info("x", 1, ["batch", 3])],
        [helper.make_tensor_value_info("y", 1, ["batch", 3])],
    )
    path = tmp_path / "symbolic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert len(load_networks([str(path), "builtin:dscnn"], {"batch": 2})) == 2
    with pytest.raises(UsageError, match="batch"):
        load_networks([str(path), "builtin:dscnn"], {"batch": 1, "bacth": 1})


@pytest.mark.parametrize(("shape", "dims"), [((0, 3), {}), (("n", 3), {"n": 0}), (("n", 3), {"n": -1}), ((-1, 3), {})])
def test_dimensions_that_are_not_positive_are_refused(shape: tuple[int | str, ...], dims: dict[str, int]) -> None:
    """A dimension of zero is refused, whether it is in the file or given by an option."""
    with pytest.raises((InvalidNetwork, UnsupportedNetwork, UsageError, UnresolvedDimension)):
        network_of([node("Relu", "x", "y")], {"x": shape}, dims=dims)


@pytest.mark.parametrize("like", ["x", "i"])
def test_a_cast_to_the_type_of_another_tensor_is_a_cast(like: str) -> None:
    """As runtimes do, CastLike is folded for a constant, free for the same type, and otherwise a Cast."""
    nodes = [node("CastLike", f"two {like}", "q"), node("Mul", f"{like} q", "m"), node("CastLike", "m x", "y")]
    inputs, types = {"x": (1, 3), "i": (1, 3)}, {"i": TensorProto.INT32}
    network = network_of(nodes, inputs, constants={"two": np.float64(2)}, types=types)
    assert ops(network) == (["Mul"] if like == "x" else ["Mul", "Cast"])
    assert network.types[network.outputs[0]] == TensorType("float32", (1, 3))


def test_enormous_dimensions_are_refused() -> None:
    """A tensor of 2^40 elements is refused before it is allocated."""
    with pytest.raises(UnsupportedNetwork, match="limit"):
        network_of([node("Relu", "x", "y")], {"x": (1 << 40, 3)})


ALIASES = {
    "identity": (node("Identity", "a", "b"), "identity"),
    "dropout": (node("Dropout", "a", "b"), "dropout at inference"),
    "dropout with unread mask": (node("Dropout", "a", "b mask"), "dropout at inference"),
    "dropout with ratio": (node("Dropout", "a ratio", "b"), "dropout at inference"),
    "dropout not training": (node("Dropout", "a ratio off", "b"), "dropout at inference"),
    "cast to the same": (node("Cast", "a", "b", to=FLOAT), "cast to the same type"),
}
ALIAS_CONSTANTS = {"ratio": np.float32(0.5), "off": np.bool_(False)}


@pytest.mark.parametrize("case", ALIASES)
def test_nodes_that_only_rename_are_free(case: str) -> None:
    """Without a renaming node between two layers, the second reads the result of the first."""
    alias, reason = ALIASES[case]
    network = network_of(
        [node("Abs", "x", "a"), alias, node("Relu", "b", "y")], {"x": IMAGE}, constants=ALIAS_CONSTANTS
    )
    assert ops(network) == ["Abs", "Relu"]
    assert network.nodes[1].inputs == ("a",)
    assert reasons(network) == {alias.op_type: reason}


@pytest.mark.parametrize("case", ALIASES)
def test_outputs_may_be_renamed_results(case: str) -> None:
    """If the output is a renamed result, it belongs to the layer that writes the result."""
    alias, _ = ALIASES[case]
    network = network_of([node("Abs", "x", "a"), alias], {"x": IMAGE}, ["b"], ALIAS_CONSTANTS)
    assert (ops(network), network.outputs) == (["Abs"], ("a",))
    assert network.output_bytes == 4 * 4 * 36
    assert [layer.graph.outputs for layer in cut(network, ())] == [("a",)]


def test_aliases_of_inputs_and_of_aliases() -> None:
    """Renaming nodes in front of the first layer are removed, so that it reads the input."""
    nodes = [node("Identity", "x", "a"), node("Dropout", "a", "b"), node("Identity", "b", "c"), node("Relu", "c", "y")]
    network = network_of(nodes, {"x": IMAGE})
    assert network.nodes[0].inputs == ("x",)
    assert len(network.free) == 3


def test_an_output_may_be_an_input() -> None:
    """An input that is also an output takes no time; the rest of the network is timed."""
    nodes = [node("Relu", "x", "y"), node("Identity", "x", "same")]
    network = network_of(nodes, {"x": IMAGE}, ["y", "same"])
    assert ops(network) == ["Relu"]
    assert network.outputs == ("y", "x")


@pytest.mark.parametrize("nodes", [[node("Identity", "x", "y")], [node("Abs", "c", "y")]])
def test_a_network_without_work_is_refused(nodes: list[NodeProto]) -> None:
    """A network with no node to time is an error, not a latency of zero."""
    with pytest.raises(UnsupportedNetwork, match="nothing to measure"):
        network_of(nodes, {"x": IMAGE}, constants={"c": np.ones(3, np.float32)})


def test_a_dropout_whose_mask_is_read_is_timed() -> None:
    """A dropout whose mask is read is timed."""
    nodes = [node("Dropout", "x", "a mask"), node("Cast", "mask", "m", to=FLOAT), node("Mul", "a m", "y")]
    network = network_of(nodes, {"x": IMAGE})
    assert ops(network) == ["Dropout", "Cast", "Mul"]
    assert network.types["mask"].dtype == "bool"


def test_a_training_dropout_is_timed() -> None:
    """A dropout in training mode is timed."""
    network = network_of(
        [node("Dropout", "x ratio on", "y")], {"x": IMAGE}, constants={"ratio": np.float32(0.5), "on": np.bool_(True)}
    )
    assert ops(network) == ["Dropout"]


def test_a_cast_to_another_type_is_timed() -> None:
    """A cast to another type is timed."""
    types = {"y": TensorProto.DOUBLE}
    network = network_of([node("Cast", "x", "y", to=TensorProto.DOUBLE)], {"x": IMAGE}, types=types)
    assert ops(network) == ["Cast"]


def test_unused_nodes_are_free() -> None:
    """Nodes that no output depends on are listed as unused."""
    nodes = [node("Relu", "x", "y"), node("Abs", "x", "a"), node("Neg", "a", "b")]
    network = network_of(nodes, {"x": IMAGE})
    assert ops(network) == ["Relu"]
    assert reasons(network) == {"Abs": "unused", "Neg": "unused"}


def test_unused_nodes_with_absent_results_are_free() -> None:
    """An absent result and an absent operand of another node do not connect the two nodes."""
    nodes = [node("LSTM", "s w r", "_ h", hidden_size=3), node("Clip", "x _ top", "y")]
    constants = {"w": np.ones((1, 12, 2), np.float32), "r": np.ones((1, 12, 3), np.float32), "top": np.float32(1)}
    network = network_of(nodes, {"x": IMAGE, "s": (5, 1, 2)}, constants=constants)
    assert reasons(network) == {"LSTM": "unused"}
    assert [layer.op for layer in cut(network, ())] == ["Clip"]


def test_absent_operands_stay_absent() -> None:
    """An optional input that is left out is neither a constant nor an activation."""
    network = network_of([node("Clip", "x _ top", "y")], {"x": IMAGE}, constants={"top": np.float32(1)})
    (layer,) = cut(network, ())
    assert network.nodes[0].inputs == ("x", "", "top")
    assert layer.graph.inputs == ("x",)


def test_a_node_may_read_a_tensor_twice() -> None:
    """A node that reads a tensor twice has one input and is one reader."""
    network = network_of([node("Abs", "x", "a"), node("Mul", "a a", "y")], {"x": IMAGE})
    assert [each.op for each in network.consumers["a"]] == ["Mul"]
    assert [layer.graph.inputs for layer in cut(network, ())] == [("x",), ("a",)]


def test_a_split_may_have_unused_results() -> None:
    """Only results that are read are outputs of the layer."""
    nodes = [node("Split", "x n", "a b c", axis=1), node("Relu", "b", "y")]
    network = network_of(nodes, {"x": IMAGE}, constants={"n": np.array([1, 2, 1])})
    assert [layer.graph.outputs for layer in cut(network, ())] == [("b",), ("y",)]
    assert network.types["b"].shape == (1, 2, 6, 6)


def test_results_that_are_outputs_and_read_on_count_once() -> None:
    """A tensor may be an output twice and be read by the next layer."""
    model = model_of([node("Abs", "x", "a"), node("Relu", "a", "y")], {"x": IMAGE}, ["a", "y"])
    network = prepared(model)
    assert network.outputs == ("a", "y")
    assert [layer.graph.outputs for layer in cut(network, ())] == [("a",), ("y",)]


def test_outputs_that_are_the_same_tensor_are_one() -> None:
    """Two names of one result are one output of the layer that writes it."""
    nodes = [node("Abs", "x", "y"), node("Identity", "y", "again")]
    assert network_of(nodes, {"x": IMAGE}, ["y", "again"]).outputs == ("y",)


@pytest.mark.parametrize(("ir_version", "listed"), [(3, ["w"]), (3, []), (8, ["w"])])
def test_initializers_listed_as_inputs_are_constants(ir_version: int, listed: list[str]) -> None:
    """Weights that a file of IR version 3 lists as inputs are not inputs of the network."""
    model = model_of(
        [node("Conv", "x w", "y")], {"x": IMAGE}, constants={"w": WEIGHT}, ir_version=ir_version, listed=listed, opset=8
    )
    network = prepared(model)
    assert network.inputs == ("x",)
    assert "w" in network.constants


def test_sparse_initializers_are_constants() -> None:
    """A runtime makes a sparse tensor dense when it loads the file, so it is a constant like any other."""
    model = model_of([node("MatMul", "x w", "y")], {"x": (1, 4)})
    elements, places = helper.make_tensor("w", FLOAT, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [0, 9])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(elements, places, [4, 3]))
    network = prepared(model)
    assert network.types["y"].shape == (1, 3) and network.constants["w"].type.bytes == 48


def test_sparse_values_of_constant_nodes_are_constants() -> None:
    """A sparse tensor that a node holds is a constant of its full shape."""
    elements, places = helper.make_tensor("v", FLOAT, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [0, 9])
    held = helper.make_node("Constant", [], ["w"], sparse_value=helper.make_sparse_tensor(elements, places, [4, 3]))
    network = network_of([held, node("MatMul", "x w", "y")], {"x": (1, 4)})
    assert network.types["y"].shape == (1, 3) and network.constants["w"].type.bytes == 48


def test_both_names_of_the_domain_of_onnx_are_one() -> None:
    """Operators may name the domain that the import leaves out, or the other way round."""
    model = model_of([node("Relu", "x", "h", domain="ai.onnx"), node("Abs", "h", "y")], {"x": (1, 4)})
    assert [one.op for one in prepared(model).nodes] == ["Relu", "Abs"]
    model.opset_import[0].domain = "ai.onnx"
    assert [one.op for one in prepared(model).nodes] == ["Relu", "Abs"]


@pytest.mark.parametrize(
    ("op", "domain", "attributes"),
    [("Gelu", "com.microsoft", {}), ("Scaler", "ai.onnx.ml", {"offset": [0.0] * 3, "scale": [1.0] * 3})],
)
def test_files_need_not_state_the_domains_of_runtimes(op: str, domain: str, attributes: dict[str, Any]) -> None:
    """ONNX Runtime loads operators of its own domains without an import, which converters leave out in loops."""
    model = model_of([node(op, "x", "y", domain=domain, **attributes)], {"x": (2, 3)})
    open_session(model.SerializeToString(), session_options(threads=1))
    assert ops(prepared(model)) == [op]


@pytest.mark.parametrize(
    ("op", "advice"), [("HardSwish", "Export it with opset 14 or newer"), ("Erfc", "exporters keep what they cannot")]
)
def test_an_operator_that_an_opset_lacks_is_refused_with_what_to_do(op: str, advice: str) -> None:
    """Either a newer opset has it, or the exporter could not translate it."""
    with pytest.raises(UnsupportedNetwork, match=f"Opset 13 has no such operator.*{advice}"):
        network_of([node(op, "x", "y")], {"x": (2, 3)}, opset=13)


def test_local_functions_are_inlined() -> None:
    """A function of the model is replaced by its nodes, even if it is called twice."""
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function(
        "mine", "Square", ["v"], ["out"], [node("Abs", "v", "p"), node("Mul", "p v", "out")], domains[:1]
    )
    model = model_of(
        [
            helper.make_node("Square", ["x"], ["a"], domain="mine"),
            helper.make_node("Square", ["a"], ["y"], domain="mine"),
        ],
        {"x": IMAGE},
    )
    model.functions.append(function)
    model.opset_import.append(domains[1])
    network = prepared(model)
    assert ops(network) == ["Abs", "Mul", "Abs", "Mul"]
    assert len({layer.key for layer in cut(network, ())}) == 2


FUNCTION_OPERATORS = [
    ("MeanVarianceNormalization", 17, 0, {}),
    ("GroupNormalization", 21, 2, {"num_groups": 2}),
    ("HardSwish", 17, 0, {}),
    ("Mish", 18, 0, {}),
    ("Gelu", 20, 0, {}),
    ("Celu", 17, 0, {}),
]


@pytest.mark.parametrize(("op", "opset", "weights", "attributes"), FUNCTION_OPERATORS, ids=lambda value: str(value))
def test_operators_defined_as_functions_are_typed(
    op: str, opset: int, weights: int, attributes: dict[str, Any]
) -> None:
    """Operators that the standard defines as functions get the shapes of their results."""
    constants = {f"c{index}": np.ones(4, np.float32) for index in range(weights)}
    proto = helper.make_node(op, ["x", *constants], ["y"], **attributes)
    network = network_of([proto], {"x": IMAGE}, constants=constants, opset=opset)
    assert network.types["y"] == TensorType("float32", IMAGE)


@pytest.mark.parametrize("names", [("a", "a", "a"), ("", "", ""), ("a#2", "a", "a"), ("Relu_1", "", "Relu_2")])
def test_node_names_become_unique(names: tuple[str, ...]) -> None:
    """Nodes with equal, missing or colliding names get unique names, which reports need."""
    links = ["x", "t0", "t1", "y"]
    nodes = [helper.make_node("Relu", [links[at]], [links[at + 1]], name) for at, name in enumerate(names)]
    network = network_of(nodes, {"x": IMAGE})
    assert len({each.name for each in network.nodes}) == 3


def test_shapes_that_depend_on_data_are_refused() -> None:
    """A node whose result has no fixed shape is named, with the next step."""
    nodes = [node("NonZero", "x", "i"), node("Cast", "i", "y", to=FLOAT)]
    with pytest.raises(UnresolvedDimension, match="NonZero"):
        network_of(nodes, {"x": IMAGE})


def test_impossible_shapes_are_refused() -> None:
    """Operands of impossible shapes raise InvalidNetwork, and the node is named."""
    with pytest.raises(InvalidNetwork, match="Add of x z"):
        network_of([node("Add", "x z", "y")], {"x": (1, 3), "z": (1, 4)})
    with pytest.raises(InvalidNetwork, match=r"Add of x z.*sizes of the export"):
        network_of([node("Add", "x z", "y")], {"x": (1, "n"), "z": (1, 4)}, dims={"n": 3})
