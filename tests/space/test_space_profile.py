"""A space measured on a device: campaigns in the journal, resumed without measuring twice."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from in_process import in_process
from nullbench import DEVICE, Bench
from opened_run import open_run

from harness import Workspace, build_lut
from harness.cli.app import main
from harness.device.inventory import find_device, load_inventory
from harness.errors import CampaignIncomplete, Interrupted
from harness.measure.device_requests import device_s
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Observer, ignore
from harness.measure.request import ProfileRequest, SpaceRequest
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.space.exploration import explore_space
from harness.space.space import load_space
from harness.space.space_profile import SpaceProfile

SPACE = """
[[layers]]
op = "Conv"
channels_in = {low = 16, high = 64, multiple_of = 8}
channels_out = {low = 16, high = 64, multiple_of = 8}
size = [4, 7]
kernel = [1, 3]
activation = "Relu"

[[layers]]
op = "Gemm"
rows = 1
depth = {low = 64, high = 512}
columns = [64, 128]
"""


@pytest.fixture
def space(tmp_path: Path) -> str:
    """A space of small layers."""
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return str(path)


def _profile(
    bench: Bench,
    space: str,
    count: int = 44,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
    **fields: Any,
) -> SpaceProfile:
    fields.setdefault("policy", RepeatPolicy(runs=3))
    request = ProfileRequest(DEVICE, space=SpaceRequest(space, count, 0.0), **fields)
    device = find_device(load_inventory(bench.workspace.devices), DEVICE)
    with open_run(device, bench.workspace, observe, stop, connect=in_process) as run:
        return explore_space(run, load_space(space), request)


def test_rounds_are_campaigns_and_their_layers_end_in_the_table(
    bench: Bench, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every measured layer has an entry in the table, with the latency of its weights."""
    # Entries do not depend on the search for the predictor's tiling, which takes most of the time of a build.
    monkeypatch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1))
    found = _profile(bench, space)
    assert found.result.measured == 44 and len(found.campaigns) == len(found.result.rounds) == 2
    table = bench.build()
    products = [entry for entry in table.entries if entry.op == "Gemm"]
    assert {entry.op for entry in table.entries} == {"Conv+Relu", "Gemm"}
    assert len(table.entries) == 44 and {entry.campaign for entry in table.entries} == set(found.campaigns)
    assert all(entry.latency_s < 1e-9 * 4 * 600 * 129 for entry in products)


def test_the_same_command_measures_nothing_again(bench: Bench, space: str) -> None:
    """A second run finds all rounds in the journal; `fresh` starts anew."""
    first, second = _profile(bench, space, count=20), _profile(bench, space, count=20)
    assert (second.campaigns, second.result) == (first.campaigns, first.result)
    assert (first.resumed, second.resumed) == (0, 1)
    assert set(_profile(bench, space, count=20, fresh=True).campaigns).isdisjoint(first.campaigns)


def test_a_stopped_command_resumes(bench: Bench, space: str) -> None:
    """After a stop within the first round the same command finishes that round's campaign."""
    stop = threading.Event()

    def observe(progress: object) -> None:
        if getattr(progress, "stage", "").endswith("measuring"):
            stop.set()

    with pytest.raises(Interrupted):
        _profile(bench, space, count=20, observe=observe, stop=stop)
    found = _profile(bench, space, count=20)
    assert found.resumed == 1 and found.campaigns == (1,)


def test_a_budget_within_the_first_round_is_an_error_and_a_larger_one_continues(bench: Bench, space: str) -> None:
    """A budget that ends within a round raises CampaignIncomplete, and a larger one continues the campaign."""
    with pytest.raises(CampaignIncomplete, match="--budget"):
        _profile(bench, space, count=20, policy=RepeatPolicy(runs=3, budget_s=1e-6))
    found = _profile(bench, space, count=20, policy=RepeatPolicy(runs=3, budget_s=1e6))
    assert found.campaigns[0] == 1 and found.result.stopped == "count"


@pytest.mark.parametrize("backend", ["emulated-npu", pytest.param("openvino", marks=pytest.mark.long)])
def test_layers_on_elements_are_measured_on_devices_that_fuse(tmp_path: Path, backend: str) -> None:
    """If a device fuses an elementwise layer with the usual source of its input, another source writes it."""
    operators = ("Sigmoid", "Relu", "Gelu", "Add")
    blocks = (f'[[layers]]\nop = "{op}"\nchannels = [16, 32]\nsize = [7, 14]\n' for op in operators)
    path = tmp_path / "elements.toml"
    path.write_text("".join(blocks))
    workspace = Workspace(tmp_path / "fusing")
    workspace.root.mkdir()
    workspace.devices.write_text(f'[devices.some]\nbackend = "{backend}"\n')
    device = find_device(load_inventory(workspace.devices), "some")
    request = ProfileRequest("some", space=SpaceRequest(str(path), 6, 0.0), policy=RepeatPolicy(runs=3))
    with open_run(device, workspace) as run:
        found = explore_space(run, load_space(str(path)), request)
        layers = [row.op for campaign in found.campaigns for row in run.journal.layers(campaign)]
    assert found.result.measured == 6
    assert {op.split("+")[0] for op in layers} >= {"Sigmoid", "Relu", "Add"}


def test_networks_of_a_space_are_measured_where_layers_are_chained(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that chains layers also measures the networks of a space, once; another device does not."""
    monkeypatch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1))
    path = tmp_path / "space.toml"
    path.write_text('networks = ["builtin:dscnn"]\n' + SPACE)
    assert len(_profile(bench, str(path), count=8).campaigns) == 1
    workspace = Workspace(tmp_path / "chained")
    workspace.root.mkdir()
    workspace.devices.write_text('[devices.npu]\nbackend = "emulated-npu"\noptions = { noise = 0 }\n')
    device = find_device(load_inventory(workspace.devices), "npu")
    request = ProfileRequest("npu", space=SpaceRequest(str(path), 8, 0.0), policy=RepeatPolicy(runs=3))
    found = []
    for _ in range(2):
        with open_run(device, workspace) as run:
            found.append(explore_space(run, load_space(str(path)), request))
    assert found[0].campaigns == found[1].campaigns and found[1].resumed == len(found[0].campaigns) == 2
    table = build_lut("npu", workspace=workspace)
    assert table.chains and {entry.campaign for entry in table.entries} == set(found[0].campaigns)


def test_layers_are_complete_if_the_budget_is_too_small_for_the_networks(tmp_path: Path) -> None:
    """Networks that the budget does not reach, or not to their end, are a note; more budget measures them alone."""
    alone, both = tmp_path / "alone.toml", tmp_path / "both.toml"
    alone.write_text(SPACE)
    both.write_text('networks = ["builtin:dscnn"]\n' + SPACE)
    workspace = Workspace(tmp_path / "chained")
    workspace.root.mkdir()
    workspace.devices.write_text('[devices.npu]\nbackend = "emulated-npu"\noptions = { noise = 0 }\n')
    device = find_device(load_inventory(workspace.devices), "npu")

    def explore(path: Path, budget_s: float | None) -> tuple[SpaceProfile, str]:
        notes: list[str] = []
        policy = RepeatPolicy(runs=3, budget_s=budget_s)
        request = ProfileRequest("npu", space=SpaceRequest(str(path), 4, 0.0), policy=policy)
        with open_run(device, workspace, lambda progress: notes.append(progress.note), connect=in_process) as run:
            return explore_space(run, load_space(str(path)), request), " ".join(notes)

    layers, _ = explore(alone, None)
    for more_s in (-1e-6, 1e-6):
        small, notes = explore(both, layers.device_seconds + more_s)
        assert (small.campaigns, small.result) == (layers.campaigns, layers.result)
        assert "networks of the space" in notes and "--budget" in notes
    whole, notes = explore(both, None)
    assert len(whole.campaigns) == 2 and whole.campaigns[0] == layers.campaigns[0] and not notes.strip()


@pytest.mark.parametrize("option", [["--space"], []])
def test_the_command_measures_a_space(
    bench: Bench, space: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A space, which may stand in place of a network, is measured; its device time is that of all samples at least."""
    words = ["profile", "--device", DEVICE, "--workspace", str(bench.root), *option, space]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--count", "24", "--runs", "3", "--json"])
    assert ended.value.code in (0, None)
    printed = json.loads(capsys.readouterr().out)
    assert printed["result"]["measured"] == 24 and printed["result"]["stopped"] == "count"
    with Journal(bench.workspace.journal) as journal:
        number = printed["campaigns"][0]
        assert len(journal.layers(number)) == 24
        timed_s = sum(map(device_s, journal.samples(number).values()))
        assert timed_s * (1.0 - 1e-9) < printed["device_seconds"] == pytest.approx(journal.spent_s(number))


@pytest.mark.parametrize("command", ["estimate", "validate", "benchmark", "profile"])
def test_a_space_among_networks_is_named_with_its_option(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that take networks say that a space is none, and which option takes it."""
    other = ["builtin:none"] if command == "profile" else []
    with pytest.raises(SystemExit) as ended:
        main([command, "--workspace", str(tmp_path), "--device", "npu01", "builtin:common", *other])
    assert ended.value.code == 3
    assert "space of layers" in (shown := capsys.readouterr().err) and "--space builtin:common" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--count", "40", "m.onnx"],
        ["--target", "3", "m.onnx"],
        ["--space", "s.toml", "--dry-run"],
        ["--space", "s.toml", "m.onnx"],
        ["--dry-run"],
        ["builtin:common", "--dry-run"],
        ["--batch", "2"],
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that exclude each other are usage errors, before anything is opened."""
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--device", DEVICE, *words])
    assert ended.value.code == 2
    assert "space" in capsys.readouterr().err
