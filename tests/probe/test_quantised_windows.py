"""On ONNX Runtime, windows of a quantised network keep the layout that it has there."""

import math
from collections import Counter
from pathlib import Path

import onnx
import pytest
from load_requests import request_of

from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from device_agents.messages import Revealed
from harness.network.assemble import AssembledModel, ModelBuilder, assemble_network
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.network import Network, TensorType
from harness.network.reading.prepare import prepare
from harness.network.reading.read import ModelFile
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import AuxiliaryKind, dequantised, dequantised_weight, quantised
from harness.probe.neighbour_windows import with_neighbours
from harness.probe.probe_plan import CutNetwork


def _convolved(builder: ModelBuilder, tensors: list[str], channels: int, dtype: str = "uint8") -> str:
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
    return quantised(builder, builder.operator("Conv", values, written, **attributes), dtype)


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
    return _network(builder, picture)


def _residuals(count: int) -> Network:
    """Return residual blocks on pictures that stay signed, as several operators read them, and a convolution."""
    builder = ModelBuilder(17)
    source = TensorType("float32", (1, 16, 24, 24))
    picture = _convolved(builder, [quantised(builder, builder.input(source), "int8")], 16, "int8")
    for _ in range(count):
        inner = picture
        for _ in range(3):
            inner = _convolved(builder, [inner], 16, "int8")
        values = [dequantised(builder, inner), dequantised(builder, picture)]
        picture = quantised(builder, builder.operator("Add", values, source), "int8")
    return _network(builder, _convolved(builder, [picture], 16, "int8"))


def _network(builder: ModelBuilder, picture: str) -> Network:
    content = builder.build([dequantised(builder, picture)]).content
    return prepare(ModelFile("quantised", onnx.load_model_from_string(content), ""), {})


Operators = list[onnx.NodeProto]


def _executed(network: Network) -> tuple[Operators, list[tuple[Operators, Operators]]]:
    """Return what ONNX Runtime executes of a network, and of each of its windows and of what is in front of it."""
    backend = OnnxRuntimeBackend({})

    def revealed(model: AssembledModel, name: str) -> Revealed:
        found = backend.load(request_of(model, name, reveal=True))
        assert found is not None
        return found

    model = assemble_network(network)
    whole = revealed(model, "network")
    graph = read_runtime_graph(network, model.names, whole.format, whole.content)
    layers = cut(network, learn_rules([(network, graph.groups)], "onnxruntime"))
    planned = with_neighbours(
        CutNetwork(network, layers, graph.blocked, graph), AuxiliaryKind.AVGPOOL, 1 << 20, math.inf
    )
    probes = {probe.id: _nodes(revealed(probe.model, probe.id)) for probe in planned.windows}
    return _nodes(whole), [(probes[one.alone], probes[one.alone_null]) for one in planned.chains]


def _nodes(revealed: Revealed) -> Operators:
    return [*onnx.load_model_from_string(revealed.content).graph.node]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_windows_keep_pictures_as_the_network_does(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a window ends, a Resize in it reads what a convolution wrote, and no Transpose is between them."""
    monkeypatch.chdir(tmp_path)
    before: list[str] = []
    for window, _ in _executed(_decoders(count))[1]:
        writers = {name: node for node in window for name in node.output}
        values = [writers[node.input[0]] for node in window if node.op_type == "Resize"]
        before += [writers[value.input[0]].op_type for value in values]
    assert len(before) >= count and set(before) == {"QLinearConv"}


@pytest.mark.parametrize(("count", "missing"), [(4, 1), (6, 0), (8, 2)])
def test_windows_hold_the_conversions_of_their_network(
    count: int, missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime moves a Transpose past a DequantizeLinear, and adds conversions, if another Transpose follows.

    One does behind windows, too. Conversions are only missing where a window begins between a convolution and its Add.
    """
    monkeypatch.chdir(tmp_path)
    whole, windows = _executed(_residuals(count))
    counted = Counter(node.op_type for node in whole)
    for window, null in windows:
        counted.subtract(node.op_type for node in window)
        counted.update(node.op_type for node in null)
    assert counted["QuantizeLinear"] == missing and counted["Add"] == 0
