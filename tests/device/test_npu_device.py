"""The emulated NPU as a device: an agent process, its virtual clock, what it reveals, and its oracle."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from nullbench import build_network
from onnx import TensorProto, helper, numpy_helper

from device_agents.backends import Backend, Refused, create
from device_agents.messages import TrueOverhead
from harness import build_lut, profile, validate
from harness.device.diagnose import check_device
from harness.device.inventory import BUILT_IN, Device
from harness.device.replies import read_truth
from harness.device.session import AgentSession, Truth, Visit, open_session
from harness.errors import BackendError, ProtocolError
from harness.measure.device_requests import load_request
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import load_network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.probe import Probe, network_probe
from harness.workspace import Workspace

NPU = BUILT_IN["npu01"]


def _device(**options: Any) -> Device:
    return NPU.model_copy(update={"options": {"preset": "edge", **options}})


QUIET = _device(noise=0)


def _backend(**options: Any) -> Backend:
    return create(NPU.backend, {"preset": "edge", **options})


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """A small network as a probe."""
    return network_probe(load_network(str(build_network(tmp_path_factory.mktemp("model") / "chain.onnx"))))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentSession]:
    """A session for validation with a device without noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_RUNTIME_FOLDER", str(tmp_path_factory.mktemp("leases")))
        opened = open_session(QUIET, "validation")
    with opened:
        opened.acquire("the test")
        yield opened


def device_s(session: AgentSession, probe: Probe, runs: int) -> list[float]:
    """Times of a loaded probe on the device's clock."""
    taken = [sample for part, _ in session.run([Visit(probe.id, 0, runs)]) for one in part for sample in one.samples]
    return [(sample.device_ns or 0) / 1e9 for sample in taken]


def truth_of(session: AgentSession, probe: Probe) -> Truth:
    """The truth about a probe, which is loaded for it."""
    session.put(load_request(probe))
    return session.oracle(probe.id)


def test_what_is_revealed_depends_on_device_and_purpose() -> None:
    """npu01 reveals fusion and chains, npu01-blind nothing, and only validation sees an oracle."""
    revealed = {}
    for name in ("npu01", "npu01-blind"):
        for purpose in ("measurement", "validation"):
            with open_session(BUILT_IN[name], purpose) as opened:
                revealed[name, purpose] = opened.hello.reveals
                assert opened.hello.clock == "device"
    assert revealed == {
        ("npu01", "measurement"): ("fusion", "chains", "kept", "prepare"),
        ("npu01", "validation"): ("fusion", "chains", "kept", "prepare", "oracle"),
        ("npu01-blind", "measurement"): ("kept", "prepare"),
        ("npu01-blind", "validation"): ("kept", "prepare", "oracle"),
    }


def test_a_pushed_agent_compiles_and_times_as_the_local_one(
    sshd: Any, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to a device is all that it needs to compile and time a model, and it is of the same version."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", "")
    sshd.allow_commands()
    pushed = sshd.device(backend="emulated-npu", agent="push").model_copy(update={"options": QUIET.options})
    found = []
    for device in (pushed, QUIET):
        with open_session(device, "validation") as opened:
            opened.acquire("the test")
            truth = truth_of(opened, probe)
            found.append((opened.hello.fingerprint, truth.makespan_s, truth.layers, device_s(opened, probe, 3)))
    assert found[0] == found[1]


def test_fingerprint_names_machine_and_noise() -> None:
    """Another machine, seed or noise makes another device; another choice of what is revealed does not."""
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "preset": {"preset": "nvdla-64"},
        "seed": {"seed": 1},
        "noise": {"noise": 0},
        "reveals": {"reveals": ""},
    }
    facts = {name: str(_backend(**options).fingerprint()) for name, options in changes.items()}
    assert facts["reveals"] == facts["plain"]
    assert len(set(facts.values())) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "edgy"},
        {"preset": "../edge"},
        {"preset": "edge.toml"},
        {"preset": ""},
        {"preset": 3},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": "1"},
        {"noise": 2},
        {"noise": 0.5},
        {"noise": "1"},
        {"reveals": "chains"},
        {"reveals": "everything"},
        {"reveals": 1},
        {"colour": "red"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """Each mistake is the backend's refusal, and no path of the device is looked at."""
    with pytest.raises(Refused, match=r"emulated-npu|edgy"):
        _backend(**options)


def test_the_refusal_of_an_option_ends_the_session() -> None:
    """A session with a wrong option does not open, and its error has the backend's refusal."""
    with pytest.raises(BackendError) as refused, open_session(_device(colour="red")):
        pass
    assert "emulated-npu" in refused.value.why


def test_total_latency_is_the_truth(session: AgentSession, probe: Probe) -> None:
    """Without noise every run takes a, b, c at the probe's own sizes, and the device's own time, once."""
    truth = truth_of(session, probe)
    host = truth.overhead
    assert host is not None
    moved_s = host.a_s_per_byte * probe.model.input_bytes + host.b_s_per_byte * probe.model.output_bytes
    assert device_s(session, probe, 3) == pytest.approx([moved_s + host.c_s + truth.makespan_s] * 3, abs=2e-9)


def test_layers_make_up_the_whole(session: AgentSession, probe: Probe) -> None:
    """True latencies of layers add up to the device's own time, and every node of the network is known."""
    truth = truth_of(session, probe)
    assert sum(layer.latency_s for layer in truth.layers) == pytest.approx(truth.makespan_s)
    assert {node for layer in truth.layers for node in layer.nodes} <= set(probe.model.names.nodes)
    assert sum(layer.latency_s > 0 for layer in truth.layers) >= 4


def test_noise_is_seeded(probe: Probe) -> None:
    """Two sessions with one seed see the same times, two seeds different ones."""
    seen = []
    for seed in (0, 0, 1):
        with open_session(_device(seed=seed)) as opened:
            opened.acquire("the test")
            opened.put(load_request(probe))
            seen.append(device_s(opened, probe, 20))
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) > 10


def test_measuring_sessions_have_no_oracle(probe: Probe) -> None:
    """A session that measures is refused, and goes on measuring."""
    with open_session(QUIET) as opened:
        opened.acquire("the test")
        opened.put(load_request(probe))
        with pytest.raises(ProtocolError, match="forbidden"):
            opened.oracle(probe.id)
        assert device_s(opened, probe, 1)


def test_oracle_of_a_probe_that_is_not_loaded_is_refused(session: AgentSession) -> None:
    """The oracle refuses an unknown probe, and the session goes on."""
    with pytest.raises(ProtocolError, match="bad-request"):
        session.oracle("nothing")
    assert session.status()["busy"] is False


def test_fusion_and_chains_are_revealed(session: AgentSession, probe: Probe, tmp_path: Path) -> None:
    """Convolution and activation are one layer, the flattening costs nothing, and the silent device says nothing."""
    network = load_network(str(build_network(tmp_path / "chain.onnx")))
    revealed = session.put(load_request(probe, reveal=True))
    assert revealed is not None
    graph = read_runtime_graph(network, probe.model.names, revealed.format, revealed.content)
    ops = {"+".join(node.op for node in network.nodes if node.index in group) for group in graph.groups}
    assert ops == {"Conv+Relu", "GlobalAveragePool", "Flatten+Gemm"}
    content = json.loads(revealed.content)
    assert sorted(index for chain in content["chains"] for index in chain) == list(range(len(content["layers"])))
    with open_session(_device(reveals="")) as blind:
        blind.acquire("the test")
        assert blind.put(load_request(probe, reveal=True)) is None


def test_unknown_operator_is_refused_by_name(session: AgentSession, probe: Probe) -> None:
    """A model that the compiler does not know is refused with the operator's name, and the session goes on."""
    import onnx
    from onnx import helper

    kind = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 2))
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 2))
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"], "n0")], "probe", [kind], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session.put(load_request(probe))
    payload = dataclasses.replace(load_request(probe), probe="unknown", model=model.SerializeToString())
    with pytest.raises(BackendError, match="Det"):
        session.put(payload)
    assert device_s(session, probe, 1)


def test_devices_are_fit() -> None:
    """`harness devices check` finds nothing that hinders on the built-in emulated devices."""
    for name in ("npu01", "npu01-blind"):
        checks = {check.name: check for check in check_device(BUILT_IN[name])}
        assert checks["backend"].ok is True and "emulated-npu" in checks["backend"].found
        assert not [check for check in checks.values() if check.ok is False]


def test_profile_measures_and_validate_alone_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main job on the device: only `validate` opens a session for validation, and reports the truth."""
    purposes: list[str] = []
    greet = AgentSession.greet

    def spy(self: AgentSession, with_backend: bool = True, purpose: Any = "measurement") -> Any:
        purposes.append(purpose)
        return greet(self, with_backend, purpose)

    monkeypatch.setattr(AgentSession, "greet", spy)
    place = Workspace(tmp_path)
    place.devices.write_text('[devices.still]\nbackend = "emulated-npu"\n[devices.still.options]\nnoise = 0\n')
    models = [str(build_network(tmp_path / "chain.onnx", widths=(8, 32), edge=16))]
    profile(models, device="still", workspace=place, policy=RepeatPolicy(runs=3))
    assert purposes == ["measurement"]
    table = build_lut("still", workspace=place)
    result = validate(models, device="still", workspace=place, processes=2)
    assert purposes[0] == "measurement" and set(purposes[1:]) == {"validation"}
    assert result.oracle is not None
    (network,) = result.oracle.networks
    assert network.estimated_s == pytest.approx(sum(layer.estimated_s for layer in network.layers))
    assert network.true_s < result.networks[0].measured_s
    for name, one in result.oracle.overhead.items():
        assert one.fitted == getattr(table.overhead, name[0]).value
        assert one.true > 0


GOOD: dict[str, Any] = {
    "probe": "p",
    "overhead": {"a_s_per_byte": 1e-10, "b_s_per_byte": 0.0, "c_s": 1e-4},
    "makespan_s": 3e-3,
    "layers": [
        {"name": "a\x1b", "nodes": ["n0"], "latency_s": 1e-3},
        {"name": "b", "nodes": [], "latency_s": 2e-3},
    ],
}


def test_proper_truth_is_believed() -> None:
    """The values arrive unchanged, names without control characters."""
    truth = read_truth(json.dumps(GOOD).encode(), "p", "npu01")
    assert (truth.overhead, truth.makespan_s) == (TrueOverhead(1e-10, 0.0, 1e-4), 3e-3)
    assert [(layer.name, layer.nodes, layer.latency_s) for layer in truth.layers] == [
        ("a", ("n0",), 1e-3),
        ("b", (), 2e-3),
    ]


def test_device_that_does_not_know_its_overhead_is_believed() -> None:
    """A runtime reports its layers and no a, b, c."""
    reply = {**GOOD, "overhead": None}
    truth = read_truth(json.dumps(reply).encode(), "p", "cpu01")
    assert (truth.overhead, truth.makespan_s, len(truth.layers)) == (None, 3e-3, 2)


def _with_layer(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "layers": [{**GOOD["layers"][0], **fields}, GOOD["layers"][1]]}


@pytest.mark.parametrize(
    "reply",
    [
        {**GOOD, "probe": "q"},
        {**GOOD, "probe": 3},
        {**GOOD, "makespan_s": 0.0},
        {**GOOD, "makespan_s": -3e-3},
        {**GOOD, "makespan_s": 3.001e-3},
        {**GOOD, "makespan_s": "3e-3"},
        {**GOOD, "layers": []},
        {**GOOD, "layers": GOOD["layers"][:1]},
        {**GOOD, "more": 1},
        {**GOOD, "overhead": {**GOOD["overhead"], "c_s": -1e-4}},
        {**GOOD, "overhead": {**GOOD["overhead"], "c_s": float("nan")}},
        {**GOOD, "overhead": {**GOOD["overhead"], "a_s_per_byte": float("inf")}},
        {**GOOD, "overhead": {"a_s_per_byte": 1e-10, "c_s": 1e-4}},
        _with_layer(latency_s=-1e-3),
        _with_layer(latency_s=True),
        _with_layer(latency_s=1e9),
        _with_layer(nodes="n0"),
        _with_layer(nodes=[0]),
        _with_layer(name=None),
        _with_layer(extra=1),
    ],
)
def test_truths_that_cannot_be_are_refused(reply: dict[str, Any]) -> None:
    """Impossible numbers, layers that are not the whole, and another probe's answer are refused."""
    with pytest.raises(ProtocolError):
        read_truth(json.dumps(reply).encode(), "p", "npu01")


@pytest.mark.parametrize("payload", [b"", b"null", b"\xff", json.dumps(GOOD).encode()[:-1], b"[" * 100_000])
def test_truths_that_are_no_answer_are_refused(payload: bytes) -> None:
    """Bytes that are no such object are refused."""
    with pytest.raises(ProtocolError):
        read_truth(payload, "p", "npu01")


def test_all_layers_that_a_node_became_are_its_own(session: AgentSession, tmp_path: Path) -> None:
    """The layers of a recurrent node add up to nearly all of the time, and are compared with it as a whole."""
    steps, inputs, hidden = 4, 8, 16
    shapes = {"w": (1, 3 * hidden, inputs), "r": (1, 3 * hidden, hidden), "v": (hidden, 10)}
    constants = [numpy_helper.from_array(np.full(shape, 0.1, np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("GRU", ["x", "w", "r"], ["", "h"], "gru", hidden_size=hidden),
        helper.make_node("MatMul", ["h", "v"], ["y"], "product"),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [steps, 1, inputs]), ("y", [1, 1, 10]))
    ]
    graph = helper.make_graph(nodes, "gru", tensors[:1], tensors[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    probe = network_probe(load_network(str(tmp_path / "g.onnx")))
    truth = truth_of(session, probe)
    recurrent = [layer for layer in truth.layers if layer.nodes == ("n0",)]
    assert len(recurrent) > steps
    unassigned_s = sum(layer.latency_s for layer in truth.layers if not layer.nodes)
    assert unassigned_s < 0.05 * truth.makespan_s < sum(layer.latency_s for layer in recurrent)
