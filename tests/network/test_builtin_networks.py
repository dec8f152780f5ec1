"""The built-in networks, cut into layers by default rules and by the fusion that ONNX Runtime reports."""

import functools
from collections import Counter
from pathlib import Path

import pytest
from load_requests import request_of

from harness.errors import InvalidNetwork, ProtocolError
from harness.network.assemble import assemble_network
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.model_references import BUILTIN_NAMES, load_network
from harness.network.network import Network
from harness.network.reading.read import read_model
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph

every_network = pytest.mark.parametrize("name", BUILTIN_NAMES)
REPORTED = ("resnet50", "mobilenetv2", "squeezenet", "resnet18", "bert_mini", "dscnn")


@functools.cache
def network_called(name: str) -> Network:
    """Return the network, read once; tests do not change it."""
    return load_network(f"builtin:{name}")


@pytest.fixture
def reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Network, RuntimeGraph]:
    """Return a network and the graph that a real ONNX Runtime reports for it."""
    from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend

    monkeypatch.chdir(tmp_path)
    network = network_called(request.param)
    model = assemble_network(network)
    revealed = OnnxRuntimeBackend({}).load(request_of(model, reveal=True))
    assert revealed is not None
    return network, read_runtime_graph(network, model.names, revealed.format, revealed.content)


@every_network
def test_every_node_is_in_one_layer_or_free(name: str) -> None:
    """Each node of the file is in one layer or is free, and free nodes have a reason."""
    network = network_called(name)
    layers = cut(network, DEFAULT_RULES)
    members = Counter(node.index for layer in layers for node in layer.graph.nodes)
    assert set(members.values()) == {1}
    assert sorted(members) == [node.index for node in network.nodes]
    assert {free.reason for free in network.free} <= {"constant", "identity", "dropout at inference", "unused"}
    names = [node.name for node in network.nodes] + [free.name for free in network.free]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [name for name in BUILTIN_NAMES if name not in ("vit_tiny", "bert_mini")])
def test_light_and_built_files_lose_no_node(name: str) -> None:
    """The timed and the free nodes are as many as the file has."""
    import onnx.backend.test

    from harness.network import zoo
    from harness.network.model_references import LIGHT_FILES

    if name in LIGHT_FILES:
        folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
        model = read_model(folder / LIGHT_FILES[name]).model
    else:
        model = zoo.build(name)
    network = network_called(name)
    assert len(network.nodes) + len(network.free) == len(model.graph.node)


@every_network
def test_layers_of_a_network_share_keys(name: str) -> None:
    """Deep networks have fewer keys than layers, which is why a lookup table pays off."""
    layers = cut(network_called(name), DEFAULT_RULES)
    assert 1 < len({layer.key for layer in layers}) <= len(layers)
    assert all(len(layer.key.text) < 4000 for layer in layers)


@every_network
def test_constants_take_no_layer(name: str) -> None:
    """No layer consists of constants: each reads a tensor that depends on the network's input."""
    assert all(layer.graph.inputs for layer in cut(network_called(name), DEFAULT_RULES))


@pytest.mark.parametrize("reported", REPORTED, indirect=True)
def test_reported_groups_cover_every_node_once(reported: tuple[Network, RuntimeGraph]) -> None:
    """The groups that ONNX Runtime reports have every node once, and some nodes are fused."""
    network, graph = reported
    members = Counter(index for group in graph.groups for index in group)
    assert set(members.values()) == {1}
    assert set(members) == {node.index for node in network.nodes}
    assert len(graph.groups) < len(network.nodes)
    assert graph.blocked <= set(network.types)


@pytest.mark.parametrize("reported", REPORTED, indirect=True)
def test_cutting_by_learnt_rules_gives_the_reported_groups(reported: tuple[Network, RuntimeGraph]) -> None:
    """Rules learnt from the graph that ONNX Runtime reports cut the network exactly as ONNX Runtime does."""
    network, graph = reported
    layers = cut(network, learn_rules([(network, graph.groups)], "onnxruntime"))
    assert {frozenset(node.index for node in layer.graph.nodes) for layer in layers} == set(graph.groups)


@pytest.mark.parametrize("reported", ["resnet50"], indirect=True)
def test_resnet_is_fused_as_known(reported: tuple[Network, RuntimeGraph]) -> None:
    """In ResNet-50 every batch norm, activation and residual add is fused into a convolution."""
    network, graph = reported
    layers = cut(network, learn_rules([(network, graph.groups)], "onnxruntime"))
    alone = {layer.op for layer in layers if len(layer.graph.nodes) == 1}
    assert not alone & {"BatchNormalization", "Relu", "Sum", "Add"}
    assert sum("Conv" in layer.op for layer in layers) == 53


def test_unknown_formats_and_garbage_are_protocol_errors() -> None:
    """A report in an unknown format or of damaged bytes raises ProtocolError."""
    network = network_called("dscnn")
    names = assemble_network(network).names
    for form, content in (("vendor", b""), ("onnxruntime", b"\xff\xff\xff")):
        with pytest.raises(ProtocolError):
            read_runtime_graph(network, names, form, content)


def test_an_empty_report_covers_every_node() -> None:
    """Every node is in one group, even if the reported graph is empty."""
    network = network_called("dscnn")
    graph = read_runtime_graph(network, assemble_network(network).names, "onnxruntime", b"")
    assert sorted(index for group in graph.groups for index in group) == [node.index for node in network.nodes]


def test_an_unknown_built_in_lists_the_known() -> None:
    """The error for an unknown built-in network lists the built-in names."""
    with pytest.raises(InvalidNetwork, match="resnet51") as caught:
        load_network("builtin:resnet51")
    assert all(name in str(caught.value) for name in BUILTIN_NAMES)
