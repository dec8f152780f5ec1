"""Networks as graphs of hardware layers: results, accounting of nodes, parts written in place, outputs and orders."""

import functools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import load_model_from_string
from reference_graph import run_graph
from small_models import assert_accounted, functions, imported, model, node, values

from device_agents.arrays import make
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import InvalidModel
from device_agents.emulated_npu.unit_commands import Function
from harness.network import zoo
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import BUILTIN_NAMES, load_network

LAYERS = {
    "alexnet": 15,
    "densenet121": 188,
    "inception_v1": 75,
    "inception_v2": 84,
    "resnet50": 57,
    "shufflenet": 75,
    "squeezenet": 31,
    "vgg19": 26,
    "zfnet512": 15,
    "mobilenetv2": 54,
    "resnet18": 23,
    "efficientnet_b0": 115,
    "dscnn": 12,
    "vit_tiny": 138,
    "bert_mini": 60,
}
QUICK = ("dscnn", "bert_mini")
"""The values of other networks are compared in programs that are compiled from their graphs."""


@functools.cache
def assembled(name: str) -> AssembledModel:
    """Return the built-in network as it goes to a device."""
    return assemble_network(load_network(f"builtin:{name}"))


@functools.cache
def graph_of(name: str) -> Graph:
    """Return the graph of a built-in network."""
    return import_model(assembled(name).content)


def arrays(specs: Any) -> dict[str, Any]:
    """Return the arrays that specs describe, by name."""
    return {spec.name: make(spec.wire()) for spec in specs}


def assert_as_runtime(name: str) -> None:
    """Check that the graph's outputs are ONNX Runtime's within 1e-5 of the largest element."""
    network = assembled(name)
    inputs, weights = arrays(network.inputs), arrays(network.weights)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    pairs = [(key, onnxruntime.OrtValue.ortvalue_from_numpy(array)) for key, array in weights.items()]
    options.add_external_initializers([key for key, _ in pairs], [array for _, array in pairs])
    session = onnxruntime.InferenceSession(network.content, options, providers=["CPUExecutionProvider"])
    found = run_graph(graph_of(name), inputs, weights)
    for output, wanted in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        assert np.abs(found[output.name] - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in BUILTIN_NAMES]
)
def test_networks_compute_what_onnx_runtime_does(name: str) -> None:
    """Graphs of networks compute what ONNX Runtime computes, with varied weights."""
    assert_as_runtime(name)


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_every_node_is_in_one_layer_or_free(name: str) -> None:
    """Every node is in one layer or free, and the number of hardware layers is as documented."""
    graph = graph_of(name)
    assert_accounted(graph)
    assert graph.node_count == len(load_model_from_string(assembled(name).content).graph.node)
    assert len(graph.layers) == LAYERS[name]
    assert [layer.index for layer in graph.layers] == list(range(len(graph.layers)))
    assert len({layer.name for layer in graph.layers}) == len(graph.layers)


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_views_stay_within_their_values_and_follow_their_writers(name: str) -> None:
    """Every view refers to a value of the graph with as many axes, and is read after something wrote the value."""
    graph = graph_of(name)
    written = {value.name for value in graph.values.values() if value.kind != "activation"}
    for layer in graph.layers:
        for view in (*layer.reads, layer.output):
            assert len(view.start) == len(graph.values[view.value].shape)
        assert {view.value for view in layer.reads} <= written
        written.add(layer.output.value)


@pytest.mark.parametrize("name", ["densenet121", "squeezenet", "inception_v1"])
def test_concatenations_cost_nothing(name: str) -> None:
    """The parts of the concatenations of these networks are written in place."""
    assert "COPY" not in functions(graph_of(name))


def test_nested_concatenations_are_parts_of_one_value() -> None:
    """DenseNet-121 has as many values with several writers as dense blocks."""
    graph = graph_of("densenet121")
    writers: dict[str, int] = {}
    for layer in graph.layers:
        writers[layer.output.value] = writers.get(layer.output.value, 0) + 1
    assert sorted(count for count in writers.values() if count > 1) == [7, 13, 17, 25]


def test_feature_maps_have_channels_innermost_and_ports_keep_the_order_of_the_host() -> None:
    """All maps of ResNet-18 are NHWC in memory, except the input and the output."""
    graph = graph_of("resnet18")
    for layer in graph.layers:
        value = graph.values[layer.output.value]
        if len(value.shape) == 4:
            assert value.order == (0, 2, 3, 1)
    for name in (*graph.inputs, *graph.outputs):
        value = graph.values[name]
        assert value.order == tuple(range(len(value.shape)))


def test_channels_last_networks_keep_their_layout() -> None:
    """A network that works on (N, H, W, C) with transpositions around its convolution needs no copy."""
    x = values((1, 6, 5, 4))
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        node("Conv", "t w", "c"),
        node("Relu", "c", "r"),
        node("Transpose", "r", "u", perm=[0, 2, 3, 1]),
        node("Sigmoid", "u", "y"),
    ]
    assert functions(imported(model(nodes, {"x": x}, {"w": values((4, 4, 3, 3))}), {"x": x})) == ["CONVOLVE", "MAP"]


@pytest.mark.parametrize(
    ("operands", "copies"),
    [
        ("a b", 0),
        ("a a", 1),
        ("a x", 1),
        ("x x", 2),
        ("a k", 1),
        ("a y2", 1),
        ("part b", 1),
        ("a turned", 0),
    ],
)
def test_only_whole_activations_without_another_place_are_written_in_place(operands: str, copies: int) -> None:
    """Operands that occur twice, inputs, constants, outputs and parts of values are copied into a concatenation."""
    x = values((1, 3, 4, 4))
    nodes = [
        node("Relu", "x", "a"),
        node("Sigmoid", "x", "b"),
        node("Tanh", "x", "y2"),
        node("Elu", "x", "long"),
        node("Split", "long", "part rest", axis=3),
        node("Transpose", "b", "turned", perm=[0, 1, 3, 2]),
        node("Concat", operands, "joined", axis=1),
        node("Neg", "joined", "y"),
    ]
    if "part" in operands:
        nodes[6] = node("Concat", "part rest", "joined", axis=2)
        copies = 2
    graph = imported(model(nodes, {"x": x}, {"k": x}, ("y", "y2")), {"x": x})
    assert functions(graph).count("COPY") == copies


@pytest.mark.parametrize("op", ["Identity", "Transpose", "Flatten", "Slice"])
def test_outputs_that_are_views(op: str) -> None:
    """A whole value is written directly into the output; a part, or a view with merged axes, is copied there."""
    x = values((1, 3, 4, 4))
    inputs = "r one" if op == "Flatten" else "r s e"
    nodes = [node("Relu", "x", "r"), node(op, inputs if op == "Slice" else "r", "y")]
    constants = {"s": np.array([0, 1], np.int64), "e": np.array([1, 3], np.int64)} if op == "Slice" else {}
    graph = imported(model(nodes, {"x": x}, constants), {"x": x})
    assert functions(graph) == (["MAP"] if op in ("Identity", "Transpose") else ["MAP", "COPY"])
    assert graph.layers[-1].nodes == (("r",) if len(graph.layers) == 1 else ("y",))


def test_outputs_that_nothing_computes() -> None:
    """Outputs that are an input, a constant, or a second name of a value are copies."""
    x = values((2, 3))
    nodes = [node("Identity", "x", "y"), node("Identity", "k", "z"), node("Relu", "x", "r"), node("Identity", "r", "s")]
    graph = imported(model(nodes, {"x": x}, {"k": x}, ("y", "z", "r", "s")), {"x": x})
    assert sorted(functions(graph)) == ["COPY", "COPY", "COPY", "MAP"]


def test_nodes_that_nothing_reads_are_free() -> None:
    """Unused nodes become no layers."""
    x = values((2, 3))
    graph = imported(model([node("Relu", "x", "y"), node("Exp", "x", "unused")], {"x": x}), {"x": x})
    assert graph.free_nodes == ("unused",)


@pytest.mark.parametrize("name", ["mobilenetv2", "vit_tiny"])
def test_files_give_the_same_layers_as_assembled_models(name: str) -> None:
    """Models that contain their weights and unfolded constants are imported."""
    ours, theirs = import_model(zoo.build(name)), graph_of(name)
    assert functions(ours) == functions(theirs)
    assert all(not constant.sources for constant in (layer.weights for layer in ours.layers) if constant is not None)


def test_weights_without_data_are_named_as_sources() -> None:
    """The constants of an assembled model have exactly its external weights as sources."""
    names = {spec.name for spec in assembled("resnet18").weights}
    graph = graph_of("resnet18")
    used = {source for layer in graph.layers if layer.weights is not None for source in layer.weights.sources}
    assert used
    assert used <= names
    assert all(layer.weights is not None for layer in graph.layers if layer.function == Function.CONVOLVE)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 100])
def test_bytes_that_are_no_model(content: bytes) -> None:
    """Bytes that are no model raise a clear error."""
    with pytest.raises(InvalidModel):
        import_model(content)


def test_shapes_that_are_not_known_before_running() -> None:
    """A free dimension of an input is an error that names it."""
    x = values((2, 3))
    proto = model([node("Relu", "x", "y")], {"x": x})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(InvalidModel, match="'x'"):
        import_model(proto)


def test_a_node_that_reads_what_nothing_wrote() -> None:
    """A model whose nodes are not in topological order is refused."""
    x = values((2, 3))
    with pytest.raises(InvalidModel):
        import_model(model([node("Relu", "t", "y"), node("Relu", "x", "t")], {"x": x}))
