"""Transposes that cancel: harness leaves out those that ONNX Runtime leaves out, and the numbers stay the same."""

import threading
from collections.abc import Callable

import numpy as np
import onnxruntime
from hypothesis import given, settings, strategies as st
from number_formats import executed, operators
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import prepared

from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.measure.fusion.cutting import cut_as_reported
from harness.network.assemble import assemble_network
from harness.network.fusion.fusion_rules import MOVED_TRANSPOSES, FusionRule
from harness.network.fusion.moved_transposes import with_moved_transposes
from harness.network.layers import cut
from harness.network.network import Network

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
BLOCKS = ("convolution", "unary", "scale", "scalar", "residual", "pad", "concat", "squeeze", "softmax", "quantised")
Feature = tuple[str, tuple[int, int, int]]


class ChannelsLast:
    """An export with channels last: convolutions between Transposes, everything else as the exporter found it."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(5)

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Add an operator and return its result."""
        result = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [result], result, **attributes))
        return result

    def weight(self, *shape: int) -> str:
        """Add a constant of random values."""
        return self.constant(self.random.normal(size=shape).astype(np.float32))

    def constant(self, values: np.ndarray) -> str:
        """Add a constant."""
        self.weights.append(numpy_helper.from_array(values, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, edge: int, channels: int, results: list[tuple[str, int]]) -> ModelProto:
        """Return the network of all operators."""
        value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, edge, edge, channels])
        unknown = ["n", "h", "w", "c"]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, unknown[:rank]) for name, rank in results]
        graph = helper.make_graph(self.nodes, "last", [value], outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def extended(net: ChannelsLast, kind: str, feature: Feature, other: Feature) -> Feature:
    """Return the result of one block of an export."""
    name, (height, width, channels) = feature
    if kind == "convolution":
        moved = net.node("Transpose", [name], perm=FIRST)
        result = net.node("Conv", [moved, net.weight(6, channels, 3, 3)], kernel_shape=[3, 3], pads=[1] * 4)
        return net.node("Transpose", [result], perm=LAST), (height, width, 6)
    if kind == "unary":
        return net.node("Relu", [name]), feature[1]
    if kind == "scale":
        return net.node("Mul", [name, net.weight(channels)]), feature[1]
    if kind == "scalar":
        return net.node("Add", [net.constant(np.float32(0.5)), name]), feature[1]
    if kind == "residual" and other[1] == feature[1]:
        return net.node("Add", [name, other[0]]), feature[1]
    if kind == "pad":
        pads = net.constant(np.array([0, 0, 1, 0, 0, 1, 0, 0], np.int64))
        return net.node("Pad", [name, pads]), (height + 1, width + 1, channels)
    if kind == "concat" and other[1][:2] == feature[1][:2]:
        return net.node("Concat", [name, other[0]], axis=-1), (height, width, channels + other[1][2])
    if kind == "squeeze":
        mean = net.node("ReduceMean", [name], axes=[1, 2], keepdims=1)
        return net.node("Mul", [name, net.node("Sigmoid", [mean])]), feature[1]
    if kind == "softmax":
        return net.node("Softmax", [name], axis=-1), feature[1]
    if kind == "quantised":
        scale, zero = net.constant(np.float32(0.125)), net.constant(np.uint8(128))
        return net.node("DequantizeLinear", [net.node("QuantizeLinear", [name, scale, zero]), scale, zero]), feature[1]
    return feature


@st.composite
def exports(draw: Callable[[st.SearchStrategy[object]], object]) -> ModelProto:
    """Networks of random blocks, one after the other, some of which also read an earlier result."""
    net = ChannelsLast()
    features: list[Feature] = [("x", (5, 5, 3))]
    for kind in draw(st.lists(st.sampled_from(BLOCKS), min_size=3, max_size=14)):
        other = features[draw(st.integers(max(0, len(features) - 4), len(features) - 1))]
        features.append(extended(net, kind, features[-1], other))
    features.append(extended(net, "convolution", features[-1], features[-1]))
    keeps = draw(st.sampled_from([0, 1]))
    last = net.node("ReduceMean", [features[-1][0]], axes=[1, 2], keepdims=keeps)
    return net.model(5, 3, [(last, 4 if keeps else 2)])


def run(network: Network, model: ModelProto) -> np.ndarray:
    """Return the result of a network with the file's weights, executed as it is written."""
    nodes = []
    for node in network.nodes:
        if node.inputs:
            nodes.append(helper.make_node(node.op, node.inputs, node.outputs))
            nodes[-1].attribute.extend(node.proto.attribute)
    known = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    known |= {name: one.value for name, one in network.constants.items() if name not in known}
    weights = [
        numpy_helper.from_array(np.array(known[name]), name) for name in sorted(known) if known[name] is not None
    ]
    graph = helper.make_graph(nodes, "written", model.graph.input, model.graph.output, weights)
    written = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(written.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(1).normal(size=network.types["x"].shape).astype(np.float32)
    return session.run(None, {"x": values})[0]


def transposes(network: Network) -> int:
    """Return how many Transposes a network executes."""
    return sum(node.op == "Transpose" and bool(node.inputs) for node in network.nodes)


@settings(max_examples=75)
@given(exports())
def test_a_rewritten_export_computes_the_same(model: ModelProto) -> None:
    """Whatever is left out, the numbers stay, all types fit, and a second rewrite finds nothing."""
    network = prepared(model)
    rewritten = with_moved_transposes(network)
    np.testing.assert_allclose(run(rewritten, model), run(network, model), rtol=1e-4, atol=1e-5)
    assert transposes(with_moved_transposes(rewritten)) == transposes(rewritten) <= transposes(network)
    assert [node.index for node in rewritten.nodes] == [node.index for node in network.nodes]


@settings(max_examples=60)
@given(exports())
def test_the_runtime_executes_the_same_of_both(model: ModelProto) -> None:
    """ONNX Runtime makes the same operators of the file and of the rewritten network."""
    network = prepared(model)
    rewritten = with_moved_transposes(network)
    assert operators(executed(assemble_network(rewritten))) == operators(executed(assemble_network(network)))


def test_a_device_that_moves_transposes_says_so() -> None:
    """The table of such a device has the rule, and every network is cut without the Transposes that cancel."""
    net = ChannelsLast()
    feature: Feature = ("x", (8, 8, 3))
    for kind in ("convolution", "scale", "unary", "pad", "convolution"):
        feature = extended(net, kind, feature, feature)
    network = prepared(net.model(8, 3, [(net.node("ReduceMean", [feature[0]], axes=[1, 2], keepdims=1), 4)]))
    with open_session(BUILT_IN["cpu01"]) as session:
        session.acquire("the test")
        (reported,), rules = cut_as_reported(session, [network], lambda _progress: None, threading.Event())
    moved = [rule for rule in rules if rule.pattern == MOVED_TRANSPOSES]
    assert moved == [FusionRule(MOVED_TRANSPOSES, 1, 1, "onnxruntime")]
    count = sum("Transpose" in layer.op for layer in reported.layers)
    assert (count, transposes(network)) == (2, 4)
    assert sum("Transpose" in layer.op for layer in cut(network, moved)) == 2
