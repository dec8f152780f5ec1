"""Networks in half precision and on integers: what is sent is what the file is, and layers are what is executed."""

from __future__ import annotations

import onnx
import pytest
from number_formats import FORMATS, NETWORKS, executed, network_in, operators
from onnx_models import prepared

from harness.network.assemble import assemble_network
from harness.network.fusion_rules import learn_rules
from harness.network.layers import cut
from harness.network.model_references import ModelContent
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.validation.file_comparison import compare_with_file

CASES = [(network, number_format) for network in NETWORKS for number_format in FORMATS]
CONVERSIONS = {"Cast", "Transpose", "ReorderInput", "ReorderOutput"}


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_the_runtime_executes_what_is_sent_as_it_executes_the_file(name: str, number_format: str) -> None:
    """ONNX Runtime makes the same operators of the model that is sent as of the file."""
    model = network_in(name, number_format)
    assert operators(executed(assemble_network(prepared(model)))) == operators(executed(model))


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_sent_network_and_file_take_the_same_time(name: str, number_format: str) -> None:
    """Run in turn, what is sent takes the time of the file; only a difference of a third is beyond any noise."""
    model = network_in(name, number_format)
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
    content = onnx.helper.make_model(graph).SerializeToString()
    reported = read_runtime_graph(network, sent.names, "onnxruntime", content)
    layers = cut(network, learn_rules([(network, reported.groups)], "onnxruntime"))
    constant = {tensor.name for tensor in graph.initializer}
    working = [
        node
        for node in graph.node
        if node.op_type not in CONVERSIONS | {"Reshape"} and not constant.issuperset(filter(None, node.input))
    ]
    assert len(layers) >= len(working)


@pytest.mark.parametrize(("name", "number_format"), CASES)
def test_the_cut_is_the_reported_one(name: str, number_format: str) -> None:
    """A network whose graph was reported is cut into the reported groups, whatever its patterns suggest."""
    network = prepared(network_in(name, number_format))
    sent = assemble_network(network)
    content = onnx.helper.make_model(executed(sent)).SerializeToString()
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
