"""Lists of networks of which some are refused: the others complete, and every refusal names its file."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Harness, Outcome
from nullbench import build_network
from onnx import helper
from system_networks import convolutions, model, save, value, weights

import harness as package
from harness import RepeatPolicy, errors

DEVICE = "npu01"
FEW = RepeatPolicy(runs=3)


def _refused_by_device() -> object:
    """A network that harness reads and the emulated NPU cannot run."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["a"], name="g"), helper.make_node("Det", ["a"], ["y"], name="det")]
    return model(nodes, inputs=[value("x", [8, 8])], outputs=[value("y", [])], initializers=[weights("w", (8, 8))])


@pytest.fixture
def files(harness: Harness) -> dict[str, str]:
    """Two good networks, a torn file, one with symbolic sizes, a missing one, and one for another device."""
    folder = harness.workspace / "deep" / "er"
    folder.mkdir(parents=True)
    small = convolutions(size=8, channels=8)
    save(small, folder / "first.onnx")
    save(convolutions(size=8, channels=4), folder / "second.onnx")
    save(small.SerializeToString()[:100], folder / "torn.onnx")
    save(convolutions(batch="n", size=8, channels=8), folder / "open.onnx")
    save(_refused_by_device(), folder / "foreign.onnx")  # type: ignore[arg-type]
    return {path.stem: f"deep/er/{path.name}" for path in (*folder.iterdir(), folder / "missing.onnx")}


def refused(outcome: Outcome) -> dict[str, str]:
    """The kinds of the refused networks of a command's JSON by file; every message names its file."""
    found = outcome.json["refused_networks"]
    assert all(one["what"].startswith(one["file"]) or one["file"] in one["what"] for one in found)
    assert all(set(one) == {"file", "kind", "what", "why", "next_step", "unset"} for one in found)
    return {one["file"]: one["kind"] for one in found}


@pytest.mark.usefixtures("devices_in_process")
def test_a_list_is_measured_without_its_refused_networks(harness: Harness, files: dict[str, str]) -> None:
    """Profile, estimate and validate go on with the networks that are left, list the others, and exit with 3."""
    names = ("torn", "first", "open", "foreign", "second", "missing")
    listed = [files[name] for name in names]
    kinds = {
        files["torn"]: "InvalidNetwork",
        files["open"]: "UnresolvedDimension",
        files["missing"]: "InvalidNetwork",
        files["foreign"]: "UnsupportedNetwork",
    }
    planned = harness("profile", "--device", DEVICE, *listed, "--dry-run", "--json")
    assert planned.code == 3 and refused(planned) == kinds
    assert [one["name"] for one in planned.json["networks"]] == ["first", "second"]

    profiled = harness("profile", "--device", DEVICE, *listed, "--runs", "3", "--json")
    assert profiled.code == 3 and refused(profiled) == kinds
    assert all(f"refused: {file}" in profiled.stderr for file in kinds)
    assert "error: 4 of 6 networks are skipped; the others completed" in profiled.stderr
    harness("lut", "build", "--device", DEVICE).assert_ok()

    estimated = harness("estimate", "--device", DEVICE, *listed, "--json", "--allow-partial")
    assert estimated.code == 3
    assert refused(estimated) == {file: kind for file, kind in kinds.items() if file != files["foreign"]}
    assert [one["coverage"]["measured"] for one in estimated.json["networks"][::2]] == [3, 3]

    validated = harness("validate", "--device", DEVICE, *listed, "--processes", "1", "--json")
    assert validated.code == 3 and refused(validated) == {**kinds, files["foreign"]: "CoverageError"}
    assert [one["name"] for one in validated.json["networks"]] == ["first", "second"]


def test_nothing_is_measured_if_all_are_refused(harness: Harness, files: dict[str, str]) -> None:
    """A list of refused networks ends with all reasons, exit code 3, and no campaign."""
    listed = [files[name] for name in ("torn", "open", "missing")]
    found = harness("profile", "--device", DEVICE, *listed)
    assert found.code == 3 and found.stdout == ""
    reasons = [line for line in found.stderr.splitlines() if line.startswith("  why: ")]
    assert len(reasons) == 3
    assert all(file in reason for file, reason in zip(listed, reasons, strict=True))
    assert not (harness.workspace / ".harness" / "journal.sqlite").exists()


@pytest.mark.parametrize("odd", ["torn", "foreign"])
def test_strict_measures_nothing(harness: Harness, files: dict[str, str], odd: str) -> None:
    """With --strict one refusal, by harness or by the device, ends the command before the campaign."""
    found = harness("profile", "--device", DEVICE, files["first"], files[odd], "--strict", "--runs", "3")
    assert found.code == 3 and f"error: {files[odd]}" in found.stderr
    journal = harness.workspace / ".harness" / "journal.sqlite"
    purposes = harness.query("SELECT settings FROM campaigns") if journal.exists() else []
    assert all(json.loads(settings)["purpose"] == "golden" for (settings,) in purposes)


@pytest.mark.usefixtures("devices_in_process")
def test_python_results_carry_the_refused_networks(harness: Harness, files: dict[str, str]) -> None:
    """Each function returns what is left with the refusals; a single network raises its own error."""
    folder = harness.workspace
    first, second, torn, foreign = (str(folder / files[name]) for name in ("first", "second", "torn", "foreign"))
    notes: list[str] = []

    def observe(progress: package.Progress) -> None:
        notes.extend([progress.note] if progress.note else [])

    lab = {"device": "null01", "workspace": folder}
    result = package.profile([first, torn, second], policy=FEW, observe=observe, **lab)
    assert [(one.file, one.kind) for one in result.refused_networks] == [(torn, "InvalidNetwork")]
    assert len(notes) == 1 and notes[0].startswith(f"refused: {torn}")
    package.build_lut(**lab)
    estimates = package.estimate([first, torn], **lab)
    assert [one.name for one in estimates] == ["first"] and [one.file for one in estimates.refused_networks] == [torn]
    validation = package.validate([torn, first], policy=FEW, processes=1, **lab)
    assert [one.file for one in validation.refused_networks] == [torn] and np.isfinite(validation.mape)
    with pytest.raises(errors.InvalidNetwork, match=torn):
        package.estimate(torn, **lab)
    with pytest.raises(errors.UnsupportedNetwork, match=foreign):
        package.profile(foreign, device=DEVICE, workspace=folder)
    with pytest.raises(errors.NetworksRefused) as caught:
        package.profile([foreign, torn], device=DEVICE, workspace=folder)
    assert torn in caught.value.why and foreign in caught.value.why


def test_networks_of_one_file_name_are_distinct(unchanged: Harness, tmp_path: Path) -> None:
    """Different networks whose files have the same name carry as many folders as it takes; equal ones need none."""
    places = [tmp_path / folder / "net.onnx" for folder in ("v1/fp32", "v2/fp32", "v2/copy")]
    for place, widths in zip(places, ((8,), (8, 16), (8, 16)), strict=True):
        place.parent.mkdir(parents=True)
        build_network(place, widths=widths)

    def names(*paths: Path) -> list[str]:
        found = unchanged("estimate", *map(str, paths), "--device", "npu01", "--json").data
        return [one["name"] for one in found["networks"]]

    assert names(*places) == ["v1/fp32/net", "v2/fp32/net", "v2/copy/net"]
    assert names(places[0], places[2]) == ["fp32/net", "copy/net"]
    assert names(*places[1:]) == ["net", "net"]
    assert names(places[0]) == ["net"]
