"""Networks in half precision and on integers: what is sent is what the file is, and layers are what is executed."""

import json
from pathlib import Path

import numpy as np
import pytest
from number_formats import FORMATS, NETWORKS, executed, network_in, operators
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import prepared

from harness.network.assemble import AssembledModel, assemble_network
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import Layer, cut
from harness.network.model_references import ModelContent
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.validation.file_comparison import compare_with_file

OTHER_RELEASE = Path(__file__).parent / "optimised_by_onnxruntime_1_18_1.json"
"""Graphs that ONNX Runtime 1.18.1 made of what is sent for these networks: domain, operator, name, inputs, outputs and
attributes of each node. That release cannot run ConvInteger here."""
CASES = [(network, number_format) for network in NETWORKS for number_format in FORMATS]
CONVERSIONS = {"Cast", "Transpose", "Reshape", "ReorderInput", "ReorderOutput"}


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_the_runtime_executes_what_is_sent_as_it_executes_the_file(name: str, number_format: str) -> None:
    """ONNX Runtime makes the same operators of the model that is sent as of the file."""
    model = network_in(name, number_format)
    assert operators(executed(assemble_network(prepared(model)))) == operators(executed(model))


@pytest.mark.parametrize("number_format", FORMATS)
def test_sent_network_and_file_take_the_same_time(number_format: str) -> None:
    """Run in turn, what is sent takes the time of the file; only a difference of a third is beyond any noise."""
    model = network_in("residual", number_format)
    network = prepared(model)
    reference = ModelContent("file", model.SerializeToString())
    compared = compare_with_file(reference, network, assemble_network(network))
    assert compared.ratio is not None, compared.reason
    assert 0.75 < compared.ratio < 1.33


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_each_executed_operator_is_one_layer(name: str, number_format: str) -> None:
    """No layer holds two operators that the runtime executes, but for conversions and what prepares constants."""
    network = prepared(network_in(name, number_format))
    sent = assemble_network(network)
    graph = executed(sent)
    assert len(layers_of(network, sent, graph)) >= len(working(graph))


@pytest.mark.parametrize("case", sorted(json.loads(OTHER_RELEASE.read_text())))
def test_the_graph_of_another_release_is_read_as_well(case: str) -> None:
    """Layers are found in the graph of a release that gives other names and makes other operators."""
    name, _, number_format = case.partition("_")
    network = prepared(network_in(name, number_format))
    sent = assemble_network(network)
    recorded = json.loads(OTHER_RELEASE.read_text())[case]
    nodes = [
        helper.make_node(op, inputs, outputs, label, domain=domain, **attributes)
        for domain, op, label, inputs, outputs, attributes in recorded
    ]
    values = [helper.make_empty_tensor_value_info(spec.name) for spec in sent.inputs]
    graph = helper.make_graph(nodes, "recorded", values, [])
    assert len(layers_of(network, sent, graph)) >= len(working(graph))


def layers_of(network: Network, sent: AssembledModel, graph: GraphProto) -> tuple[Layer, ...]:
    """Return the layers into which a network is cut after the runtime has reported this graph."""
    content = helper.make_model(graph).SerializeToString()
    reported = read_runtime_graph(network, sent.names, "onnxruntime", content)
    return cut(network, learn_rules([(network, reported.groups)], "onnxruntime"))


def working(graph: GraphProto) -> list[NodeProto]:
    """Return the nodes that do more than convert a tensor or prepare constants."""
    varying = {value.name for value in graph.input}
    found = []
    for node in graph.node:
        if varying.isdisjoint(node.input):
            continue
        varying.update(node.output)
        if node.op_type not in CONVERSIONS:
            found.append(node)
    return found


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_the_cut_is_the_reported_one(name: str, number_format: str) -> None:
    """A network whose graph was reported is cut into the reported groups, whatever its patterns suggest."""
    network = prepared(network_in(name, number_format))
    sent = assemble_network(network)
    content = helper.make_model(executed(sent)).SerializeToString()
    reported = read_runtime_graph(network, sent.names, "onnxruntime", content)
    fixed = {node.index for node in network.nodes if network.is_fixed(node)}
    found = {
        frozenset(node.index for node in layer.graph.nodes) - fixed
        for layer in cut(network, learn_rules([(network, reported.groups)], "onnxruntime"))
    }
    assert found == {group - fixed for group in reported.groups} - {frozenset()}


def test_integers_behind_dequantize_stay_integers() -> None:
    """The weights of a QDQ network are sent as the integers that they are in the file."""
    sent = assemble_network(prepared(network_in("residual", "qdq-u8")))
    assert {spec.dtype for spec in sent.weights} == {"int8"}


def test_a_map_that_is_reshaped_in_the_layout_of_the_runtime_is_moved_once() -> None:
    """A Transpose behind a Reshape of a quantised map also restores the usual layout, so both are one layer."""
    constants = {
        "scale": np.array(0.1, "float32"),
        "zero": np.array(0, "uint8"),
        "weights": np.ones((16, 16, 3, 3), "int8"),
        "apart": np.array([1, 2, 8, 7, 7]),
        "joined": np.array([1, 16, 7, 7]),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["wd"]),
    ]
    read = "xd"
    for op, operands, attributes in [
        ("Conv", ["wd"], {}),
        ("Reshape", ["apart"], {}),
        ("Transpose", [], {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["joined"], {}),
    ]:
        name = f"{len(nodes)}"
        nodes += [
            helper.make_node(op, [read, *operands], [name], **attributes),
            helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"q{name}"]),
            helper.make_node("DequantizeLinear", [f"q{name}", "scale", "zero"], [f"d{name}"]),
        ]
        read = f"d{name}"
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 9, 9]),
        helper.make_tensor_value_info(read, TensorProto.FLOAT, [1, 16, 7, 7]),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "shuffle", values[:1], values[1:], initializers)
    network = prepared(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    sent = assemble_network(network)
    moved = [layer.op for layer in layers_of(network, sent, executed(sent)) if "Transpose" in layer.op]
    assert moved == ["DequantizeLinear+Reshape+QuantizeLinear+DequantizeLinear+Transpose+QuantizeLinear"]
