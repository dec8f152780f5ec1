"""`harness.profile`: the same checks as on the command line, and every form of network."""

import dataclasses
import threading
from pathlib import Path

import onnx
import pytest
from nullbench import DEVICE, Bench

import harness
from harness import ProfileRequest, RepeatPolicy
from harness.cache import VARIABLE
from harness.errors import DeviceQuarantined, InvalidNetwork, OutOfService, UsageError
from harness.fleet.cluster.job_archive import WorkerJob, detach_models, pack, unpack
from harness.fleet.execution import WaitPolicy
from harness.fleet.health import SESSIONS_TO_LEARN
from harness.fleet.store import FleetStore
from harness.measure.fusion.cutting import CHAINS, CUTTING
from harness.measure.journal.journal import Journal
from harness.network.model_references import ModelContent, load_network, model_references
from harness.probe.auxiliary import AuxiliaryKind

TWO = RepeatPolicy(runs=2)
RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) {y = Relu(x)}'


def profiled(bench: Bench, models: object = None, seed: int = 0) -> harness.ProfileResult:
    """One call of the function; without models, with the small network of the bench."""
    given = bench.model if models is None else models
    return harness.profile(given, device=DEVICE, workspace=bench.root, policy=TWO, seed=seed)  # type: ignore[arg-type]


@pytest.mark.usefixtures("devices_in_process")
def test_a_device_outside_its_golden_band_is_quarantined_in_python_too(bench: Bench) -> None:
    """After the sessions that establish the band, a slower device raises and measures nothing more."""
    for seed in range(SESSIONS_TO_LEARN):
        profiled(bench, seed=seed)
    bench.workspace.devices.write_text(bench.workspace.devices.read_text() + "slower_after = 0\nslowdown = 1.33\n")
    with Journal(bench.workspace.journal) as journal, FleetStore(bench.workspace.fleet) as store:
        before = [one.id for one in journal.campaigns(DEVICE) if one.settings["purpose"] == "profile"]
        with pytest.raises(DeviceQuarantined, match="slower than its band"):
            profiled(bench, seed=9)
        assert [one.id for one in journal.campaigns(DEVICE) if one.settings["purpose"] == "profile"] == before
        assert store.health(DEVICE).health == "bad"


def test_a_device_out_of_service_is_left_alone_in_python_too(bench: Bench) -> None:
    """A device in maintenance is not contacted, and the error says who took it out."""
    with FleetStore(bench.workspace.fleet) as store:
        store.mark(DEVICE, "maintenance", "new heat sink")
    with pytest.raises(OutOfService, match="new heat sink"):
        profiled(bench)


@pytest.mark.usefixtures("devices_in_process")
def test_networks_may_be_paths_text_or_in_memory(bench: Bench) -> None:
    """Path, text and ModelProto of one network lead to the same plan; a list of them measures its layers once."""
    proto = onnx.load(bench.model)
    results = [profiled(bench, models) for models in (bench.model, str(bench.model), proto, [proto, bench.model])]
    with Journal(bench.workspace.journal) as journal:
        layers = [{layer.key.text for layer in journal.layers(result.campaign)} for result in results]
    assert layers[0] and all(one == layers[0] for one in layers)
    assert results[0].probes == results[2].probes


def test_a_network_that_the_device_has_compiled_is_expected_to_take_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second campaign reports less effort of compiling, now and ahead; that of another network does not."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    efforts: list[dict[str, float]] = []

    def observe(progress: harness.Progress) -> None:
        efforts[-1].update({} if progress.effort is None else {progress.phase or progress.stage: progress.effort})
        efforts[-1].update({f"ahead: {phase}": effort for phase, effort in progress.ahead.items() if effort})

    for text in (RELU, RELU, RELU.replace("[1]", "[3]")):
        efforts.append({})
        model = onnx.parser.parse_model(text)
        harness.profile(model, device="npu01", workspace=tmp_path, policy=TWO, fresh=True, observe=observe)
    first, again, other = efforts
    assert {CUTTING, "measuring", f"ahead: {CHAINS}"} <= first.keys()
    for phase in (CUTTING, "measuring", f"ahead: {CHAINS}"):
        assert again[phase] < first[phase] / 10
        assert other[phase] == pytest.approx(first[phase], rel=0.1)


def test_a_network_in_memory_is_named_after_its_graph(tmp_path: Path) -> None:
    """The name is safe for a file, whatever the graph is called; equal networks are equal references."""
    proto = onnx.parser.parse_model(RELU)
    proto.graph.name = "../a b\x1b[31m"
    (reference,) = model_references(proto)
    assert isinstance(reference, ModelContent)
    assert reference.name == "a_b_31m"
    assert model_references([proto, tmp_path]) == (reference, str(tmp_path))
    assert load_network(proto).name == "a_b_31m"


def test_other_values_are_no_networks() -> None:
    """A number is refused with the forms that are accepted, and weights in other files with what to do."""
    with pytest.raises(UsageError, match=r"onnx\.ModelProto"):
        model_references([3])  # type: ignore[list-item]
    proto = onnx.parser.parse_model(RELU)
    proto.graph.initializer.append(
        onnx.TensorProto(name="w", dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    )
    with pytest.raises(InvalidNetwork, match="held in memory"):
        load_network(proto)


@pytest.mark.usefixtures("devices_in_process")
def test_a_stop_ends_the_call_and_the_next_one_resumes(bench: Bench) -> None:
    """A stop set by the observer raises Interrupted; the same call then continues the campaign."""
    stop = threading.Event()

    def observe(progress: harness.Progress) -> None:
        if progress.round == 1:
            stop.set()

    with pytest.raises(harness.errors.Interrupted):
        harness.profile(bench.model, device=DEVICE, workspace=bench.root, policy=TWO, observe=observe, stop=stop)
    assert profiled(bench).resumed


def test_a_network_in_memory_reaches_a_worker_under_its_name(bench: Bench, tmp_path: Path) -> None:
    """Packed and unpacked, a request has files for networks in memory, and every other field unchanged."""
    request = ProfileRequest(
        DEVICE,
        (*model_references([onnx.load(bench.model), bench.model]), "builtin:dscnn"),
        auxiliary=AuxiliaryKind.CONV3X3,
        name="night/device/set",
        watch_level=0.01,
    )
    sent = detach_models(request)
    job = unpack(pack(WorkerJob(sent.request, WaitPolicy(attempts=7)), sent.files), tmp_path)
    assert job.wait.attempts == 7
    assert dataclasses.replace(job.request, models=request.models) == request
    assert [network.name for network in job.request.networks()] == ["chain", "chain", "dscnn"]
    assert [str(model).startswith(str(tmp_path)) for model in job.request.models] == [True, True, False]
