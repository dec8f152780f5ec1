"""Watch campaigns on the in-process emulated NPU: planned, run, read and compared as on a real device."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_process import InProcessSession
from nullbench import build_network

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness.errors import JournalError
from harness.measure.campaign import CampaignRun
from harness.measure.device_requests import MOST_UNTIMED, load_request
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.cutting import cut_as_reported
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import probe_of
from harness.probe.probe_plan import ProbePlan, plan_probes
from harness.samples import Sample
from harness.slowdowns.detection_power import level_of_each
from harness.slowdowns.night_comparison import compare_nights
from harness.slowdowns.watch_choices import ROUNDS
from harness.slowdowns.watch_plan import WatchPlan, plan_watch
from harness.slowdowns.watch_series import WatchSeries, read_watch

PROFILE = RepeatPolicy(runs=12)


@dataclass(frozen=True)
class Ready:
    """A device, a network and its profile campaign."""

    backend: EmulatedNpuBackend
    network: Network
    plan: ProbePlan
    journal: Journal
    campaign: Campaign

    @property
    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """The profile's samples by probe."""
        return self.journal.samples(self.campaign.id)

    def night(self, watch: WatchPlan, number: int, slow: str = "") -> WatchSeries:
        """Run the watch on another day and read it."""
        session = InProcessSession(self.backend.restarted(100 + number, slow))
        taken = measured(self.journal, session, watch.plan, watch.policy, "watch", number)
        series = read_watch(self.journal, taken.id)
        return dataclasses.replace(series, date=f"2026-11-{1 + number:02d}T01:00:00+00:00")


def measured(
    journal: Journal, session: InProcessSession, plan: ProbePlan, policy: RepeatPolicy, purpose: str, seed: int = 0
) -> Campaign:
    """Run a campaign from beginning to end."""
    run = DeviceRun(session, journal, "npu")
    campaign = run.begin(plan, policy.settings(purpose, seed))
    CampaignRun(run, campaign, plan, policy).run()
    return campaign


def profiled(folder: Path, model: Path) -> Iterator[Ready]:
    """Return a device with the profile of a network."""
    backend = EmulatedNpuBackend({"preset": "edge", "seed": 3})
    session = InProcessSession(backend)
    network = load_network(str(model))
    cuts, rules = cut_as_reported(session, [network], ignore, threading.Event())
    plan = plan_probes(cuts, rules, AuxiliaryKind.ROWPOOL)
    with Journal(folder / "journal.sqlite") as journal:
        yield Ready(backend, network, plan, journal, measured(journal, session, plan, PROFILE, "profile"))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    """Return a small network: two layers of equal shape and three others."""
    folder = tmp_path_factory.mktemp("watch")
    yield from profiled(folder, build_network(folder / "chain.onnx", widths=(8, 64, 64, 64), edge=40, classes=1000))


def squeeze_and_excite(path: Path) -> Path:
    """Return a network that scales large maps by values pooled from them, which exceed the device's memory."""
    generator = np.random.default_rng(5)
    weights = {"w": (32, 3, 3, 3), "reduce": (8, 32, 1, 1), "expand": (32, 8, 1, 1), "project": (16, 32, 1, 1)}
    tensors = [
        onnx.numpy_helper.from_array(generator.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["a"], "relu"),
        node("GlobalAveragePool", ["a"], ["p"], "pool"),
        node("Conv", ["p", "reduce"], ["r"], "reduce"),
        node("Conv", ["r", "expand"], ["e"], "expand"),
        node("Sigmoid", ["e"], ["s"], "sigmoid"),
        node("Mul", ["s", "a"], ["m"], "scale"),
        node("Conv", ["m", "project"], ["y"], "project"),
    ]
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("x", (1, 3, 224, 224)), ("y", (1, 16, 112, 112)))
    ]
    graph = onnx.helper.make_graph(nodes, "squeeze", *ends, initializer=tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    """Return a network with layers that are fast within their context and slow alone."""
    folder = tmp_path_factory.mktemp("hiding")
    yield from profiled(folder, squeeze_and_excite(folder / "squeeze.onnx"))


@pytest.fixture(scope="module")
def watch(ready: Ready) -> WatchPlan:
    """Return the plan of its watch campaign."""
    planned = plan_watch(ready.plan, [ready.network], ready.samples, "device")
    assert planned is not None
    return planned


def _detectable(watch: WatchPlan) -> dict[str, float]:
    """Return the smallest change that is detectable of each layer, within its context or alone."""
    best: dict[str, float] = {}
    for one in watch.detectable:
        best[one.subject.name] = min(one.change, best.get(one.subject.name, 1.0))
    return best


def test_watch_holds_one_probe_a_layer_and_its_baseline(ready: Ready, watch: WatchPlan) -> None:
    """Every layer has probes of the profile, within its context, alone or both, each with a baseline."""
    loads = {probe_of(load) for batch in watch.plan.batches for load in batch.loads}
    assert loads | {watch.plan.reference} == set(watch.plan.probes)
    for layer in watch.plan.layers:
        alone, within = layer.layer, [one for one in (layer.in_context, *layer.stacks) if one]
        assert bool(alone) == bool(layer.auxiliary) and len(within) == bool(layer.null) and (alone or within)
        named = {one for one in (alone, layer.auxiliary, *within, layer.null) if one}
        assert named <= loads & set(ready.plan.probes)
    roles = [probe.role for probe in watch.plan.probes.values()]
    assert roles.count("network") == 1 and roles.count("calibration") >= 6
    assert {layer.op for layer in watch.plan.layers} >= {"Conv+Relu", "Flatten+Gemm"}


def test_what_needs_more_runs_is_loaded_more_often(ready: Ready, watch: WatchPlan) -> None:
    """Each round visits every probe, noisy ones several times, so that 2 % is detectable."""
    (batch,) = watch.plan.batches
    series = ready.night(watch, 1)
    counts = {probe: len(taken) for probe, taken in series.samples[0].items()}
    loads = [probe_of(load) for load in batch.loads]
    assert {probe: ROUNDS * batch.runs * loads.count(probe) for probe in set(loads)}.items() <= counts.items()
    assert max(counts.values()) > 2 * min(counts.values())
    assert max(_detectable(watch).values()) < 0.021


def test_little_time_means_fewer_runs_and_says_so(ready: Ready, watch: WatchPlan) -> None:
    """With a small budget expensive layers get fewer runs, and their detectable changes are larger."""
    short = plan_watch(ready.plan, [ready.network], ready.samples, "device", budget_s=0.0)
    assert short is not None and short.device_s < watch.device_s
    assert max(one.change for one in short.detectable) > max(one.change for one in watch.detectable)


def test_what_is_extra_must_fit(hiding: Ready) -> None:
    """With little device time only layers within their context are watched, each once."""
    whole, short = (
        plan_watch(hiding.plan, [hiding.network], hiding.samples, "device", budget_s=budget_s)
        for budget_s in (120.0, 0.01)
    )
    assert whole is not None and short is not None
    assert {one.subject for one in short.detectable} < {one.subject for one in whole.detectable}
    assert not any(layer.layer for layer in short.plan.layers)
    assert short.device_s < whole.device_s / 4


@pytest.mark.parametrize("name", ["ready", "hiding"])
def test_a_watch_takes_no_longer_than_it_may(name: str, request: pytest.FixtureRequest) -> None:
    """Every budget above the smallest sufficient one gives a plan that hardly exceeds it."""
    bench: Ready = request.getfixturevalue(name)
    excess = []
    for budget_s in np.geomspace(0.01, 100, 30):
        planned = plan_watch(bench.plan, [bench.network], bench.samples, "device", budget_s=float(budget_s))
        assert planned is not None
        excess.append(planned.device_s / budget_s)
    first = next(at for at, one in enumerate(excess) if one <= 1.5)
    assert max(excess[first:]) <= 1.5 and min(excess) < 1


def test_a_watch_on_a_processor_counts_its_untimed_runs(ready: Ready) -> None:
    """Visits to probes of less than 10 µs begin with four untimed runs, and the plan adds their time."""

    def fast(one: Sample) -> Sample:
        return dataclasses.replace(one, wall_ns=(one.device_ns or 0) // 1000, device_ns=None)

    samples = {probe: [fast(one) for one in taken] for probe, taken in ready.samples.items()}
    planned = plan_watch(ready.plan, [ready.network], samples, "wall", budget_s=0.0)
    assert planned is not None
    (batch,) = planned.plan.batches
    run_s = {probe: np.median([one.wall_ns for one in taken]) / 1e9 for probe, taken in samples.items()}
    assert max(run_s.values()) < 1e-5
    timed_s = ROUNDS * batch.runs * sum(run_s.get(probe_of(load), 0.0) for load in batch.loads)
    assert planned.device_s >= 0.9 * timed_s * (batch.runs + MOST_UNTIMED) / batch.runs


def test_a_lab_of_many_devices_takes_more_runs(ready: Ready, watch: WatchPlan) -> None:
    """If a hundred comparisons share the level, the same change needs more runs."""
    among_many = plan_watch(ready.plan, [ready.network], ready.samples, "device", level=level_of_each(100))
    assert among_many is not None
    loads = [sum(len(batch.loads) * batch.runs for batch in one.plan.batches) for one in (watch, among_many)]
    assert loads[1] > loads[0]
    assert max(_detectable(among_many).values()) < 0.021


def test_layers_keep_their_probes(ready: Ready, watch: WatchPlan) -> None:
    """With another night's noise the plan keeps the probes of the night before."""
    before = ready.night(watch, 2)

    def noise(at: int, one: Sample) -> Sample:
        return dataclasses.replace(one, device_ns=(one.device_ns or 0) * (50 + at % 3) // 50)

    noisy = {probe: [noise(at, one) for at, one in enumerate(taken)] for probe, taken in ready.samples.items()}
    again = plan_watch(ready.plan, [ready.network], noisy, "device", before=before)
    assert again is not None
    assert again.plan.layers == watch.plan.layers


def test_nothing_measured_is_nothing_to_watch(ready: Ready) -> None:
    """Without samples there is no plan."""
    assert plan_watch(ready.plan, [ready.network], {}, "device") is None


def test_only_watches_are_read(ready: Ready) -> None:
    """A profile campaign is refused as a watch."""
    with pytest.raises(JournalError, match="is not a watch campaign"):
        read_watch(ready.journal, ready.campaign.id)


def test_planted_slow_layer_is_found_among_real_nights(ready: Ready, watch: WatchPlan) -> None:
    """Emulated nights without a change have no findings; a layer that is 2 % slower is found with its size."""
    nights = [ready.night(watch, 3 + number) for number in range(4)]
    assert not compare_nights(nights[3], nights[:3]).regressions
    layer = max(nights[0].layers, key=lambda one: one.copies)
    backend, probe = ready.backend.restarted(0), watch.plan.probes[layer.probe]
    InProcessSession(backend).put(load_request(probe))
    (slow,) = {sign for sign, part in backend.signatures(probe.id) if set(part.nodes) & set(probe.model.names.nodes)}
    comparison = compare_nights(ready.night(watch, 9, f"{slow}:1.02"), nights)
    (finding,) = [one for one in comparison.regressions if one.subject.kind == "layer"]
    assert finding.subject == layer.subject and finding.state == "new"
    assert finding.change == pytest.approx(0.02, abs=0.008)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "Mul"])
def test_a_layer_that_its_context_hides_is_found(op: str, hiding: Ready) -> None:
    """A layer that its context hides is watched alone: 2 % of it are found after few nights."""
    watch = plan_watch(hiding.plan, [hiding.network], hiding.samples, "device")
    assert watch is not None
    (probe,) = {layer.layer for layer in watch.plan.layers if layer.op == op and layer.layer}
    backend = hiding.backend.restarted(0)
    InProcessSession(backend).put(load_request(watch.plan.probes[probe]))
    (slow,) = {sign for sign, part in backend.signatures(probe) if part.latency_s > 20e-6}
    nights = [hiding.night(watch, number) for number in (3, 4, 5)]
    comparison = compare_nights(hiding.night(watch, 7, f"{slow}:1.02"), nights)
    assert {one.subject.op.partition(",")[0] for one in comparison.regressions if one.subject.kind == "layer"} == {op}
    assert not compare_nights(hiding.night(watch, 6), nights).regressions
