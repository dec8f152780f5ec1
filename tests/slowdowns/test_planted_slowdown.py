"""The slow-down that tests plant into the emulated NPU, and the in-process session that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import InProcessSession
from nullbench import build_network

from device_agents.backends import Refused
from device_agents.backends.emulated_npu import EmulatedNpuBackend
from device_agents.backends.null import NullBackend
from harness.device.inventory import BUILT_IN
from harness.device.session import Visit, open_session
from harness.errors import BackendError
from harness.measure.campaign import CampaignRun
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Progress
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import CutNetwork, plan_probes

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


def test_session_in_process_tells_the_truth(usual: EmulatedNpuBackend, probe: Probe) -> None:
    """The oracle answers as through the agent; a backend without oracle is refused; there is no lease holder."""
    session = InProcessSession(usual)
    assert session.greet() is session.hello and session.status()["holder"] is None
    assert session.oracle(probe.id).makespan_s == usual.oracle(probe.id).makespan_s
    with pytest.raises(BackendError, match="oracle"):
        InProcessSession(NullBackend({})).oracle(probe.id)


def test_session_in_process_refuses_and_stops(probe: Probe) -> None:
    """A refusal is a BackendError, a dropped probe is removed, tokens increase, and a cancelled run ends."""
    session = InProcessSession(EmulatedNpuBackend(dict(QUIET)))
    first = session.acquire("one")
    assert session.acquire("another") > first
    payload = load_request(probe)
    with pytest.raises(BackendError):
        session.put(type(payload)("broken", b"no model", (), (), 4))
    session.put(payload)
    run = session.run([Visit(probe.id, 0, 1)] * 5000)
    taken = [len(next(run)[0])]
    session.cancel()
    taken += [len(part) for part, _ in run]
    assert 0 < sum(taken) < 5000
    session.drop([probe.id])
    with pytest.raises(KeyError):
        list(session.run([Visit(probe.id, 0, 1)]))


def test_campaign_in_process_is_a_campaign(tmp_path: Path) -> None:
    """An in-process campaign is complete, measures every probe and reports progress, as on a device."""
    network = load_network(str(build_network(tmp_path / "chain.onnx")))
    plan = plan_probes(
        [CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())], DEFAULT_RULES, AuxiliaryKind.ROWPOOL
    )
    session, policy = InProcessSession(EmulatedNpuBackend(dict(QUIET))), RepeatPolicy(runs=3)
    seen: list[Progress] = []
    with Journal(tmp_path / "journal.sqlite") as journal:
        run = DeviceRun(session, journal, "npu", seen.append)
        campaign = run.begin(plan, policy.settings("profile", 0))
        CampaignRun(run, campaign, plan, policy).run()
        assert journal.campaign(campaign.id).complete
        counts = {probe: len(taken) for probe, taken in journal.samples(campaign.id).items() if probe != plan.reference}
    assert set(counts.values()) == {3} and seen
