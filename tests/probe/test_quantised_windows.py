"""On ONNX Runtime, windows of a quantised network keep the layout that it has there."""

import math
from pathlib import Path

import onnx
import pytest
from load_requests import request_of

from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from harness.network.assemble import ModelBuilder, assemble_network
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.network import Network, TensorType
from harness.network.reading.prepare import prepare
from harness.network.reading.read import ModelFile
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import AuxiliaryKind, dequantised, dequantised_weight, quantised
from harness.probe.neighbour_windows import with_neighbours
from harness.probe.probe_plan import CutNetwork


def _convolved(builder: ModelBuilder, tensors: list[str], channels: int) -> str:
    """Append a concatenation, if there are several tensors, and a quantised convolution."""
    pieces = [builder.type_of(tensor) for tensor in tensors]
    read = pieces[0].resized(1, sum(piece.shape[1] for piece in pieces))
    values = [dequantised(builder, tensor) for tensor in tensors]
    if len(values) > 1:
        joined = builder.operator("Concat", values, TensorType("float32", read.shape), axis=1)
        values = [dequantised(builder, quantised(builder, joined, "uint8"))]
    weight = builder.integers(TensorType("int8", (channels, read.shape[1], 3, 3)), -9, 9)
    written = TensorType("float32", read.resized(1, channels).shape)
    attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    values.append(dequantised_weight(builder, weight))
    return quantised(builder, builder.operator("Conv", values, written, **attributes), "uint8")


def _resized(builder: ModelBuilder, tensor: str, op: str, scale: float) -> str:
    """Append a Resize or a MaxPool between DequantizeLinear and QuantizeLinear."""
    read = builder.type_of(tensor)
    written = TensorType("float32", (*read.shape[:2], *(int(size * scale) for size in read.shape[2:])))
    value = dequantised(builder, tensor)
    if op == "Resize":
        value = builder.operator(op, [value, "", "", builder.constant(written.shape)], written, mode="linear")
    else:
        value = builder.operator(op, [value], written, kernel_shape=(2, 2), strides=(2, 2))
    return quantised(builder, value, "uint8")


def _decoders(count: int) -> Network:
    """Return a network that halves and doubles its pictures several times, and joins them."""
    builder = ModelBuilder(17)
    source = TensorType("float32", (1, 8, 24, 24))
    picture = _convolved(builder, [quantised(builder, builder.input(source), "uint8")], 16)
    for _ in range(count):
        small = _convolved(builder, [_resized(builder, picture, "MaxPool", 0.5)], 24)
        picture = _convolved(builder, [picture, _resized(builder, small, "Resize", 2)], 16)
    content = builder.build([dequantised(builder, picture)]).content
    return prepare(ModelFile("decoders", onnx.load_model_from_string(content), ""), {})


@pytest.mark.parametrize("count", [2, 3, 5])
def test_windows_keep_pictures_as_the_network_does(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a window ends, a Resize in it reads what a convolution wrote, and no Transpose is between them."""
    monkeypatch.chdir(tmp_path)
    backend = OnnxRuntimeBackend({})
    network = _decoders(count)
    model = assemble_network(network)
    revealed = backend.load(request_of(model, "network", reveal=True))
    assert revealed is not None
    graph = read_runtime_graph(network, model.names, revealed.format, revealed.content)
    layers = cut(network, learn_rules([(network, graph.groups)], "onnxruntime"))
    planned = with_neighbours(
        CutNetwork(network, layers, graph.blocked, graph), AuxiliaryKind.AVGPOOL, 1 << 20, math.inf
    )
    before: list[str] = []
    for window in planned.windows:
        revealed = backend.load(request_of(window.model, window.id, reveal=True))
        assert revealed is not None
        nodes = onnx.load_model_from_string(revealed.content).graph.node
        writers = {name: node for node in nodes for name in node.output}
        values = [writers[node.input[0]] for node in nodes if node.op_type == "Resize"]
        before += [writers[value.input[0]].op_type for value in values]
    assert len(before) >= count and set(before) == {"QLinearConv"}
