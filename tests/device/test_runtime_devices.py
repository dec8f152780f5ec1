"""The runtimes on this machine's CPU as devices: what they reveal, and the main job with OpenVINO."""

from pathlib import Path

import pytest
from nullbench import build_network

from harness import build_lut, profile, validate
from harness.device.diagnose import check_device
from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.measure.device_requests import load_request
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import load_network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.probe import network_probe
from harness.workspace import Workspace

OPS = {"Conv+Relu", "GlobalAveragePool", "Flatten", "Gemm"}


@pytest.mark.parametrize(("name", "words"), [("cpu01", ("fusion", "kept")), ("cpu-openvino", ("fusion",))])
def test_only_validation_gets_true_layers(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """Every session reveals fusion; only a session for validation reveals the runtime's profile, without a, b, c."""
    network = load_network(str(build_network(tmp_path / "chain.onnx")))
    probe = network_probe(network)
    with open_session(BUILT_IN[name]) as measuring:
        assert measuring.hello.reveals == words
    with open_session(BUILT_IN[name], "validation") as session:
        assert (session.hello.reveals, session.hello.clock) == ((*words, "oracle"), "cpu")
        session.acquire("the test")
        revealed = session.put(load_request(probe, reveal=True))
        assert revealed is not None
        graph = read_runtime_graph(network, probe.model.names, revealed.format, revealed.content)
        assert {"+".join(node.op for node in network.nodes if node.index in one) for one in graph.groups} == OPS
        truth = session.oracle(probe.id)
    assert truth.overhead is None
    assert {node for layer in truth.layers for node in layer.nodes} <= set(probe.model.names.nodes)


@pytest.mark.usefixtures("any_speed")
def test_openvino_does_the_main_job(tmp_path: Path) -> None:
    """A table measured by OpenVINO estimates a network, and each of its layers stands beside the runtime's profile."""
    checks = {check.name: check for check in check_device(BUILT_IN["cpu-openvino"])}
    assert checks["backend"].ok is True and "openvino" in checks["backend"].found
    place = Workspace(tmp_path)
    models = [str(build_network(tmp_path / "chain.onnx", widths=(8, 64), edge=28))]
    profile(models, device="cpu-openvino", workspace=place, policy=RepeatPolicy(runs=15))
    build_lut("cpu-openvino", workspace=place)
    policy = RepeatPolicy(runs=5)
    result = validate(models, device="cpu-openvino", workspace=place, policy=policy, processes=1, layers=True)
    assert result.clock == "cpu" and result.oracle is not None
    (network,) = result.oracle.networks
    assert result.oracle.overhead == {}
    assert {layer.op for layer in network.layers} == OPS
    assert result.oracle.time_weighted_error is not None
    assert sum(layer.true_s for layer in network.layers) + network.unassigned_s == pytest.approx(network.true_s)
