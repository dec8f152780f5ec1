"""The slow-down that tests plant into the emulated NPU, and the in-process session that runs it."""

import pytest
from in_process import InProcessSession
from nullbench import build_network

from device_agents.backends import Refused
from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness.device.inventory import BUILT_IN
from harness.device.session import Visit, open_session
from harness.measure.device_requests import load_request
from harness.network.model_references import load_network
from harness.probe.probe import Probe, network_probe

QUIET = {"preset": "edge", "noise": 0}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """Return a probe with two layers of equal shape."""
    path = build_network(tmp_path_factory.mktemp("model") / "chain.onnx", widths=(8, 32, 32, 32))
    return network_probe(load_network(str(path)))


@pytest.fixture(scope="module")
def usual(probe: Probe) -> EmulatedNpuBackend:
    """Return the device with the probe loaded."""
    backend = EmulatedNpuBackend(dict(QUIET))
    InProcessSession(backend).put(load_request(probe))
    return backend


def slowed(usual: EmulatedNpuBackend, slow: str, probe: Probe) -> EmulatedNpuBackend:
    """Return the device with a planted slow-down and the probe loaded."""
    backend = usual.restarted(0, slow)
    InProcessSession(backend).put(load_request(probe))
    return backend


def test_every_layer_of_the_signature_takes_longer(usual: EmulatedNpuBackend, probe: Probe) -> None:
    """Both layers of the shape take 10 % longer, other layers are unchanged, and the total grows by the sum."""
    layers = dict(enumerate(usual.signatures(probe.id)))
    signatures = [signature for signature, _ in layers.values()]
    (twice,) = {signature for signature in signatures if signatures.count(signature) == 2}
    slow = slowed(usual, f"{twice}:1.1", probe)
    added_s = 0.0
    for at, (signature, layer) in enumerate(slow.signatures(probe.id)):
        before_s = layers[at][1].latency_s
        assert layer.latency_s == pytest.approx(before_s * (1.1 if signature == twice else 1.0))
        added_s += layer.latency_s - before_s
    assert added_s > 0
    assert slow.oracle(probe.id).makespan_s == pytest.approx(usual.oracle(probe.id).makespan_s + added_s)
    ran_ns = [(backend.run(probe.id).device_ns or 0) for backend in (usual, slow)]
    assert ran_ns[1] - ran_ns[0] == pytest.approx(added_s * 1e9, abs=1)


def test_slow_device_says_nothing_of_it(usual: EmulatedNpuBackend) -> None:
    """A planted slow-down and a restart leave the fingerprint unchanged."""
    slow = EmulatedNpuBackend({**QUIET, "slow": "CONVOLVE anything:1.5"})
    assert slow.fingerprint() == usual.fingerprint() == usual.restarted(7, "POOL:2").fingerprint()


def test_slow_device_goes_over_the_wire(usual: EmulatedNpuBackend, probe: Probe) -> None:
    """The option reaches the backend through the agent."""
    signature = usual.signatures(probe.id)[0][0]
    device = BUILT_IN["npu01"].model_copy(update={"options": {**QUIET, "slow": f"{signature}:2"}})
    with open_session(device) as session:
        session.acquire("the test")
        session.put(load_request(probe))
        taken = [one for part, _ in session.run([Visit(probe.id, 0, 1)]) for one in part]
    expected = slowed(usual, f"{signature}:2", probe).run(probe.id)
    assert taken[0].samples[0].device_ns == expected.device_ns


@pytest.mark.parametrize(
    "slow", [2, "CONVOLVE", "CONVOLVE:", ":1.1", "CONVOLVE:-1", "CONVOLVE:1e9", "A:1.1;B", "A:nan"]
)
def test_wrong_slow_downs_are_refused(slow: object) -> None:
    """An option that is not a signature with a factor is refused."""
    with pytest.raises(Refused, match="SIGNATURE:FACTOR"):
        EmulatedNpuBackend({**QUIET, "slow": slow})


def test_session_in_process_measures_what_the_agent_does(probe: Probe) -> None:
    """With the same seed, the in-process session gives the samples and fusion that the agent gives."""
    options = {"preset": "edge", "seed": 5}
    visits = [Visit(probe.id, 1, 3), Visit(probe.id, 0, 2)]
    device = BUILT_IN["npu01"].model_copy(update={"options": options})
    seen = []
    here = InProcessSession(EmulatedNpuBackend(dict(options)))
    with open_session(device) as there:
        for session in (here, there):
            session.acquire("the test")
            revealed = session.put(load_request(probe, reveal=True))
            series = [one for part, _ in session.run(visits) for one in part]
            taken = [(one.visit, one.probe, [sample.device_ns for sample in one.samples]) for one in series]
            seen.append((revealed, taken, session.hello.clock, session.hello.reveals))
    (revealed, taken, clock, reveals), through_agent = seen
    assert through_agent[:3] == (revealed, taken, clock)
    assert {*through_agent[3]} - {"prepare"} == {*reveals}  # in one process, nothing is compiled ahead
