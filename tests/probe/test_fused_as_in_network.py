"""On a real runtime, the layer of a context probe is fused, separate from producer and auxiliary layer."""

import os
from pathlib import Path

import onnx
import pytest
from load_requests import request_of

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from device_agents.messages import Revealed
from harness.network.assemble import AssembledModel, EmittedNames, assemble_network
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import Layer, cut
from harness.network.model_references import BUILTIN_NAMES, load_network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import ModelFile
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.probe import layer_probe
from harness.probe.producer import producers_of

LARGEST_WEIGHT_BYTES = 64 << 20


def _reveal(backend: OnnxRuntimeBackend, model: AssembledModel) -> Revealed:
    revealed = backend.load(request_of(model, "probe", reveal=True))
    backend.unload("probe")
    assert revealed is not None
    return revealed


def _executed_apart(backend: OnnxRuntimeBackend, model: AssembledModel, layer: Layer) -> bool:
    """Return whether the layer's nodes form one group of the probe.

    The runtime may merge views, such as a reshape and the auxiliary layer's unsqueeze; that takes no time.
    """
    probe = prepare(ModelFile("probe", onnx.load_model_from_string(model.content), ""), {})
    names = EmittedNames(
        {tensor: tensor for node in probe.nodes for tensor in node.outputs},
        {node.name: node.index for node in probe.nodes},
    )
    revealed = _reveal(backend, model)
    groups = read_runtime_graph(probe, names, revealed.format, revealed.content).groups
    ours = {node.index for node in probe.nodes if node.name in model.names.nodes}
    views = {node.index for node in probe.nodes if node.op == "Unsqueeze"} - ours
    return frozenset(ours) in {group - views for group in groups} and len(ours) == len(layer.graph.nodes)


@pytest.mark.long
@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_probe_runs_the_layer_as_the_network_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime fuses the layer of every context probe as in the network, and fuses nothing else into it."""
    monkeypatch.chdir(tmp_path)
    backend = OnnxRuntimeBackend({})
    network = load_network(f"builtin:{name}")
    model = assemble_network(network)
    revealed = _reveal(backend, model)
    graph = read_runtime_graph(network, model.names, revealed.format, revealed.content)
    layers = {layer.key: layer for layer in cut(network, learn_rules([(network, graph.groups)], "onnxruntime"))}
    wrong = []
    for layer in layers.values():
        producers = producers_of(network, layer.graph.inputs, layer.graph.nodes, graph.blocked)
        plain = layer.graph.outputs[0] not in graph.blocked
        probe = layer_probe(network, layer, producers, DEFAULT_AUXILIARY, "context", plain, network.outputs)
        if probe.model.weight_bytes <= LARGEST_WEIGHT_BYTES and not _executed_apart(backend, probe.model, layer):
            wrong.append(layer.op)
    assert not wrong, f"{len(wrong)} of {len(layers)} layers: {sorted(set(wrong))}"
