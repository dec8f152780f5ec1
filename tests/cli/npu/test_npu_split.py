"""`harness npu split`: the candidates of every layer, the network, their agreement, and what cannot be split."""

from pathlib import Path

import pytest
from npu_command import Npu

from device_agents.emulated_npu.emulator_errors import Deadlock
from harness.npu.split import split_study

KINDS = ("one", "batch", "rows", "outputs", "inputs")


def test_every_layer_has_its_candidates(npu: Npu, network: Path) -> None:
    """Each layer has predicted and event-driven cycles, or a reason, for every kind; both bests, and the excess."""
    found = npu("split", network, "--cores", 4, "--json").data
    assert (found["machine"], found["cores"]) == ("edge", 4)
    assert [layer["operators"] for layer in found["layers"]] == ["Conv+Relu", "Conv+Relu", "MaxPool"]
    for layer in found["layers"]:
        times = {one["split"]: one for one in layer["candidates"]}
        assert sorted((*times, *layer["refused"])) == sorted(KINDS)
        # 0.989 to 1.091: a run issues instructions as well, and overlaps more of what memories have to wait for.
        assert all(0.97 < one["predicted_cycles"] / one["cycles"] < 1.11 for one in times.values())
        assert all(1 <= one["cores"] <= 4 for one in times.values())
        assert layer["predicted_best"] == min(times, key=lambda name: times[name]["predicted_cycles"])
        least = min(one["cycles"] for one in times.values())
        assert times[layer["true_best"]]["cycles"] == least
        assert layer["excess"] == pytest.approx(times[layer["predicted_best"]]["cycles"] / least - 1)
    assert "one index" in found["layers"][0]["refused"]["batch"]
    assert "no sum of products" in found["layers"][2]["refused"]["inputs"]


def test_network_and_agreement(npu: Npu, network: Path) -> None:
    """The network is timed with each kind of split and with the best of each layer; shares and ranks match the rows."""
    found = npu("split", network, "--cores", 2, "--json").data
    networks = {one["split"]: one for one in found["networks"]}
    assert list(networks) == ["one, chained", "one", "rows", "outputs", "inputs", "best"]
    assert [networks[name]["split_layers"] for name in ("one", "rows", "inputs")] == [0, 3, 2]
    predicted = sum(min(one["predicted_cycles"] for one in layer["candidates"]) for layer in found["layers"])
    assert networks["best"]["predicted_cycles"] == pytest.approx(predicted)
    agreement = found["agreement"]
    assert agreement["layers"] == 3
    assert agreement["well_chosen"] == sum(layer["excess"] <= 0.03 for layer in found["layers"]) / 3
    assert agreement["layer_tau_b"] == pytest.approx(sum(layer["tau_b"] for layer in found["layers"]) / 3)


def test_prediction_alone(npu: Npu, network: Path) -> None:
    """Without a run the predictions are the same, and the results of runs are missing."""
    with_run = npu("split", network, "--cores", 2, "--json").data
    without = npu("split", network, "--cores", 2, "--no-verify", "--json").data
    for one, other in zip(with_run["layers"], without["layers"], strict=True):
        assert [each["predicted_cycles"] for each in one["candidates"]] == [
            each["predicted_cycles"] for each in other["candidates"]
        ]
        assert (other["true_best"], other["excess"], other["tau_b"]) == (None, None, None)
        assert {each["cycles"] for each in other["candidates"]} == {None}
    assert without["agreement"]["well_chosen"] is None
    text = npu("split", network, "--cores", 2, "--no-verify").stdout
    assert "nothing was run" in text and "true best" not in text


def test_one_layer(npu: Npu, network: Path) -> None:
    """--layer takes the name of a layer or of one of its nodes, and omits the network."""
    whole = npu("split", network, "--cores", 2, "--json").data
    for name in ("body", "body/relu"):
        found = npu("split", network, "--cores", 2, "--layer", name, "--json").data
        assert found["layers"] == whole["layers"][1:2]
        assert found["networks"] == [] and found["agreement"]["network_tau_b"] is None


def test_the_table_has_the_cycles_of_the_json(npu: Npu, network: Path) -> None:
    """The table has the predicted cycles and those of the run of each candidate."""
    found = npu("split", network, "--cores", 4, "--json").data
    text = npu("split", network, "--cores", 4).stdout
    for layer in found["layers"]:
        for one in layer["candidates"]:
            assert f"{one['predicted_cycles']:,.0f} / {one['cycles']:,.0f}" in text
    assert "Kendall's tau-b" in text and f"{found['agreement']['well_chosen']:.1%} of 3 layers" in text


def test_a_program_that_does_not_run_is_a_bug(npu: Npu, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled program that cannot run is a bug, not an error of the user."""

    def deadlock(*_: object, **__: object) -> None:
        raise Deadlock("core 1 waits for a message", "nobody sends it", "")

    monkeypatch.setattr(split_study, "study_splits", deadlock)
    npu.refuses(1, "split", network, "--cores", 2, mentions=("compiled program is faulty", "core 1 waits", "Report it"))


def test_one_core_has_nothing_to_split(npu: Npu, network: Path) -> None:
    """On one core every layer has one candidate, and there are no ranks to agree on."""
    found = npu("split", network, "--cores", 1, "--json").data
    assert [[one["split"] for one in layer["candidates"]] for layer in found["layers"]] == [["one"]] * 3
    assert found["agreement"]["well_chosen"] == 1.0 and found["agreement"]["layer_tau_b"] is None


@pytest.mark.parametrize(
    ("code", "words", "mentions"),
    [
        (2, ("--cores", "0"), ("--cores 0", "edge has 16 cores", "1 to 16")),
        (2, ("--cores", "-3"), ("--cores -3", "edge has 16 cores")),
        (2, ("--cores", "17"), ("--cores 17", "edge has 16 cores", "1 to 16")),
        (2, ("--cores", "2", "--layer", "bodi"), ("no layer bodi", "body")),
        (2, ("--cores", "2", "--preset", "nvdla-256"), ("--cores 2", "nvdla-256 has 1 core", "edge")),
        (2, ("--cores", "17", "--preset", "chiplets-64"), ("--cores 17", "16 cores a chip")),
    ],
    ids=str,
)
def test_splits_that_cannot_be(
    npu: Npu, network: Path, code: int, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """Errors about cores, layers and files name the value and the limit."""
    npu.refuses(code, "split", network, *words, mentions=mentions)


@pytest.mark.parametrize("words", [(), ("--cores", "four"), ("--cores", "2.5")], ids=str)
def test_cores_are_a_number(npu: Npu, network: Path, words: tuple[str, ...]) -> None:
    """The number of cores is required, as a whole number."""
    npu.misuses("split", network, *words, mentions=("--cores",))


@pytest.mark.parametrize("words", [("--halo", "some"), ("--chains", "whole")], ids=str)
def test_options_that_a_split_does_not_have(npu: Npu, network: Path, words: tuple[str, ...]) -> None:
    """Unknown choices, and compiler options that a split fixes, are usage errors."""
    npu.misuses("split", network, "--cores", "2", *words, mentions=words[:1])
