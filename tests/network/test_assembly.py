"""Assembled networks have the structure of the file, and its values if all weights are sent."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import ModelProto, TensorProto, helper
from onnx_models import IMAGE, WEIGHT, model_of, network_of, node, prepared, random_dags, run_assembled, run_plain

from harness.network.assemble import MAX_TRAVELLING_ELEMENTS, AssembledModel, assemble_network
from harness.network.input_integers import integer_range
from harness.network.model_references import BUILTIN_NAMES, load_network
from harness.network.network import Network

LARGE = ("vgg19", "zfnet512", "alexnet", "densenet121", "inception_v2", "resnet50")
"""Networks of operators that smaller ones have as well, whose weights take seconds to draw."""


def structure(network: Network, nodes: Iterable[Any], inputs: Iterable[str], fixed: Iterable[str]) -> list[Any]:
    """Return operators with the positions of the operators that they read from; constants are one letter."""
    labels = {"": "absent", **dict.fromkeys(fixed, "c")}
    labels.update((name, f"in{index}") for index, name in enumerate(inputs))
    found = []
    for position, (op, reads, writes) in enumerate(nodes):
        found.append((op, [labels[name] for name in reads]))
        labels.update((name, f"{position}.{slot}") for slot, name in enumerate(writes) if name)
    assert found or not network.nodes
    return found


def same_structure(network: Network, model: AssembledModel) -> bool:
    """Return whether the assembled model has the network's nodes, in order and with the same connections."""
    graph = onnx.load_model_from_string(model.content).graph
    copied = [(node.op_type, node.input, node.output) for node in graph.node]
    original = [(node.op, node.inputs, node.outputs) for node in network.nodes]
    constants = [tensor.name for tensor in graph.initializer]
    return structure(network, copied, [value.name for value in graph.input], constants) == structure(
        network, original, network.inputs, network.constants
    )


def assert_same_values(model: ModelProto) -> None:
    """Assert that the assembled network computes bit for bit what the file computes."""
    network = prepared(model)
    assembled = assemble_network(network)
    assert assembled.weights == ()
    inputs, outputs = run_assembled(assembled)
    wanted = [name for name in network.outputs if name not in network.inputs and name not in network.constants]
    expected = run_plain(model, dict(zip(network.inputs, inputs, strict=True)), wanted)
    assert len(outputs) == len(wanted)
    for name, value in zip(wanted, outputs, strict=True):
        np.testing.assert_array_equal(value, expected[name])


@given(random_dags())
@settings(max_examples=60)
def test_values_are_those_of_the_file(model: ModelProto) -> None:
    """If all weights are sent, ONNX Runtime computes the same from the assembled network as from the file."""
    assert_same_values(model)


@given(random_dags())
def test_structure_is_that_of_the_network(model: ModelProto) -> None:
    """The model has every node, in order and with the network's connections."""
    network = prepared(model)
    assert same_structure(network, assemble_network(network))


def test_values_with_shape_subgraphs_absent_operands_and_functions() -> None:
    """Folded constants, absent operands and inputs of old IR versions do not change the values."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Concat", ["s", "minus"], ["target"], axis=0),
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Clip", ["a", "", "top"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "target"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["z"]),
    ]
    constants = {"w": WEIGHT, "minus": np.array([-1]), "top": np.float32(0.3)}
    assert_same_values(model_of(nodes, {"x": IMAGE}, ["z", "c"], constants, ir_version=3, listed=list(constants)))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in BUILTIN_NAMES]
)
def test_built_in_networks_run_without_their_weights(name: str) -> None:
    """Each built-in network keeps its structure and gives finite numbers with weights generated on the device."""
    network = load_network(f"builtin:{name}")
    model = assemble_network(network)
    assert same_structure(network, model)
    _, outputs = run_assembled(model, "ENABLE_BASIC")
    assert [value.nbytes for value in outputs] == [kind.bytes for kind in model.outputs]
    assert all(np.isfinite(value).all() for value in outputs)


def test_weights_above_the_limit_stay_behind() -> None:
    """A kernel above the limit is only described (name, type, shape, seed, distribution); one at the limit is sent."""
    for elements in (MAX_TRAVELLING_ELEMENTS, MAX_TRAVELLING_ELEMENTS + 1):
        kernel = np.full((elements, 4, 1, 1), 0.125, np.float32)[: elements // 4 + elements % 4]
        network = network_of([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": IMAGE}, constants={"w": kernel})
        model = assemble_network(network)
        assert (kernel.tobytes() in model.content) == (kernel.size <= MAX_TRAVELLING_ELEMENTS)
        assert sum(spec.bytes for spec in model.weights) == (0 if kernel.tobytes() in model.content else kernel.nbytes)


def test_batch_norm_travels_at_any_size() -> None:
    """Scales and variances are sent at any size, because random ones could make values infinite or zero."""
    constants = {name: np.linspace(1, 2, 2048, dtype=np.float32) for name in "sbmv"}
    network = network_of(
        [helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"])], {"x": (1, 2048, 1, 1)}, constants=constants
    )
    model = assemble_network(network)
    assert model.weights == ()
    assert constants["s"].tobytes() in model.content


def test_every_weight_has_a_seed_of_its_own() -> None:
    """No two weights of a model are generated from the same seed."""
    weights = assemble_network(load_network("builtin:dscnn")).weights
    assert weights
    assert len({spec.seed for spec in weights}) == len(weights)


def embedding(rows: list[int]) -> ModelProto:
    """Return a model that looks the same indices up in several tables and adds the results."""
    nodes, previous = [], ""
    for index, _ in enumerate(rows):
        nodes.append(helper.make_node("Gather", [f"table{index}", "ids"], [f"row{index}"]))
        if previous:
            nodes.append(helper.make_node("Add", [previous, f"row{index}"], [f"sum{index}"]))
        previous = nodes[-1].output[0]
    tables = {f"table{index}": np.ones((size, 4), np.float32) for index, size in enumerate(rows)}
    return model_of(nodes, {"ids": (1, 64)}, [previous], tables, types={"ids": TensorProto.INT64})


@pytest.mark.parametrize("rows", [[50], [50, 3], [3, 50]])
def test_indices_lie_within_every_table_they_are_used_for(rows: list[int]) -> None:
    """Inputs used as indices are below the size of the smallest table, so that the network runs."""
    model = assemble_network(prepared(embedding(rows)))
    inputs, outputs = run_assembled(model)
    assert 0 < inputs[0].max() < min(rows)
    assert outputs[0].shape == (1, 64, 4)


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8])
def test_bytes_that_become_indices_are_those_of_a_mask(kind: int) -> None:
    """Places that a network counts from a mask of bytes lie within their table."""
    nodes = [node("Cast", "mask", "m", to=7), node("CumSum", "m axis", "places"), node("Gather", "table places", "y")]
    constants = {"axis": np.array(0), "table": np.ones((9, 2), np.float32)}
    network = prepared(model_of(nodes, {"mask": (8,)}, constants=constants, types={"mask": kind}))
    (mask,), _ = run_assembled(assemble_network(network))
    assert {*mask.tolist()} == {0, 1}


@pytest.mark.parametrize(("op", "opset"), [("ScatterND", 16), ("ScatterElements", 11), ("Scatter", 10)])
def test_places_lie_within_the_whole_tensor_that_is_written_to(op: str, opset: int) -> None:
    """Places that an input gives are anywhere in the tensor, so that the writes are as far apart as in a network."""
    node = helper.make_node(op, ["x", "places", "added"], ["y"])
    shape = (32, 1) if op.endswith("ND") else (32, 8)
    shapes = {"x": (50, 8), "places": shape, "added": (32, 8)}
    model = model_of([node], shapes, opset=opset, types={"places": TensorProto.INT64})
    inputs, _ = run_assembled(assemble_network(prepared(model)))
    assert 25 < inputs[1].max() < 50


def test_sequences_are_as_long_as_the_data() -> None:
    """A mask whose ones are the length of each sequence has only ones, and a probe gets the lengths themselves."""
    attend = node("GroupQueryAttention", "x _ _ k v last total", "y ko vo", num_heads=2, kv_num_heads=1)
    attend.domain = "com.microsoft"
    nodes = [node("ReduceSum", "mask axes", "n"), node("Sub", "n one", "m"), node("Cast", "m", "last", to=6), attend]
    sizes = {"x": (1, 1, 64), "k": (1, 1, 8, 16), "v": (1, 1, 8, 16), "mask": (1, 9)}
    constants = {"axes": np.array([1]), "one": np.array([1]), "total": np.array(9, np.int32)}
    model = model_of(nodes, sizes, ("y", "ko", "vo"), constants, types={"mask": TensorProto.INT64})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = prepared(model)
    inputs, _ = run_assembled(assemble_network(network))
    assert (inputs[network.inputs.index("mask")] == 1).all()
    assert integer_range(network, "last") == (8, 9)


def test_many_ways_from_a_tensor_to_its_readers_take_no_time() -> None:
    """Subs in a row, each of the two results before it, have more ways than could be followed, and are deep."""
    results = ["x", "x", *(f"y{at}" for at in range(1500))]
    nodes = [node("Sub", f"{results[at]} {results[at + 1]}", results[at + 2]) for at in range(1500)]
    network = prepared(model_of(nodes, {"x": (1, 8)}, (results[-1],)))
    assert integer_range(network, "x") is None


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_execute_all_steps(op: str) -> None:
    """The lengths of sequences that an exporter makes an input are the number of steps: others would take less time."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    nodes = [node("Cast", "lengths", "l", to=6), node(op, "x w r _ l", "y", hidden_size=4)]
    weights = {name: np.ones((1, 4 * gates, 4), np.float32) for name in "wr"}
    model = model_of(nodes, {"x": (7, 2, 4), "lengths": (2,)}, constants=weights, types={"lengths": TensorProto.INT64})
    inputs, _ = run_assembled(assemble_network(prepared(model)))
    assert (inputs[1] == 7).all()


def test_no_name_of_the_file_reaches_the_model() -> None:
    """Names of tensors, nodes, dimensions, the graph and its documentation stay on the host."""
    nodes = [
        helper.make_node("Conv", ["SECRETx", "SECRETw"], ["SECRETa"], "SECRETnode", doc_string="SECRETdoc"),
        helper.make_node("Shape", ["SECRETa"], ["SECRETshape"], "SECRETnode2"),
        helper.make_node("Reshape", ["SECRETa", "SECRETshape"], ["SECRETy"], "SECRETnode3"),
    ]
    model = model_of(nodes, {"SECRETx": ("SECRETdim", 4, 6, 6)}, ["SECRETy"], {"SECRETw": WEIGHT})
    model.graph.name = model.producer_name = model.doc_string = "SECRET"
    assembled = assemble_network(prepared(model, {"SECRETdim": 1}))
    assert b"SECRET" not in assembled.content
    assert "SECRET" not in str(assembled.weights) + str(assembled.inputs)


def test_no_documentation_of_attributes_reaches_the_model() -> None:
    """The documentation text of attributes stays on the host as well."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    node.attribute[0].doc_string = "SECRET"
    assembled = assemble_network(network_of([node], {"x": IMAGE}, constants={"w": WEIGHT}))
    assert b"SECRET" not in assembled.content


def test_emitted_names_lead_back_to_the_network() -> None:
    """Every node and result of the model maps to the network's own, from which fusion is read."""
    network = load_network("builtin:dscnn")
    model = assemble_network(network)
    graph = onnx.load_model_from_string(model.content).graph
    nodes = {node.index: node for node in network.nodes}
    assert [nodes[model.names.nodes[node.name]].op for node in graph.node] == [node.op for node in network.nodes]
    written = [model.names.tensors[name] for node in graph.node for name in node.output]
    assert written == [name for node in network.nodes for name in node.outputs]
