"""`harness npu pipeline`: the report of a network on core groups, and the options that it refuses."""

from pathlib import Path
from typing import Any

import npu_inputs
import numpy as np
import pytest
from npu_command import Npu
from onnx import ModelProto, TensorProto, helper, numpy_helper

LAYERS = ("--chains", "layers")
"""For what does not depend on chains: to search for them takes most of the time of a command."""


def _branches() -> ModelProto:
    """Six convolutions: two in a row, two concatenated, one after them, and one added around all of these."""
    rng = np.random.default_rng(5)
    nodes, weights = [], []

    def convolution(name: str, source: str, inside: int, outside: int, kernel: int) -> None:
        tensor = rng.normal(0, 0.3, (outside, inside, kernel, kernel)).astype(np.float32)
        weights.append(numpy_helper.from_array(tensor, f"{name}.weight"))
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"{name}.weight"], [name], name, pads=pads))

    convolution("first", "x", 3, 16, 3)
    convolution("second", "first", 16, 16, 3)
    convolution("left", "second", 16, 8, 1)
    convolution("right", "second", 16, 24, 3)
    nodes.append(helper.make_node("Concat", ["left", "right"], ["both"], "both", axis=1))
    convolution("behind", "both", 32, 16, 3)
    convolution("around", "first", 16, 16, 1)
    nodes.append(helper.make_node("Add", ["behind", "around"], ["y"], "sum"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 20, 20))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 16, 20, 20))
    graph = helper.make_graph(nodes, "branches", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with branches that cross stages."""
    return npu_inputs.save(_branches(), tmp_path_factory.mktemp("networks") / "branches.onnx")


def _partitions(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["method"]: each for each in found["partitions"]}


def test_cores_compute_what_onnx_runtime_computes(npu: Npu, network: Path) -> None:
    """Stages on separate cores, and cores that share layers, compute the values of the network."""
    for each in npu("pipeline", network, "--groups", "0-2/3", "--cores", "4", "--json").data["partitions"]:
        assert 0 < each["max_rel_error"] < 1e-4, "other programs never agree to the last bit"


def test_both_partitions_stand_side_by_side(npu: Npu, network: Path) -> None:
    """Both partitions contain every node once and report times, loads and bounds."""
    found = npu("pipeline", network, "--groups", "3", "--json").data
    assert [each["method"] for each in found["partitions"]] == ["balanced", "score"]
    for each in found["partitions"]:
        nodes = [node for group in each["groups"] for node in group["nodes"]]
        assert len(nodes) == len(set(nodes)) == found["nodes"] and each["cores"] == 3
        assert each["inputs_per_s"] == pytest.approx(1 / each["interval_s"])
        assert each["speedup"] == pytest.approx(found["single_core_s"] / each["interval_s"])
        assert each["efficiency"] == pytest.approx(each["speedup"] / 3)
        assert each["interval_s"] <= each["latency_s"] and each["imbalance"] >= 1 and each["bound"]
        assert max(group["predicted_s"] for group in each["groups"]) == pytest.approx(each["predicted_interval_s"])
        assert [group["stage"] for group in each["groups"]] == [0, 1, 2]
        assert each["groups"][0]["received_bytes"] == 0 < each["groups"][1]["received_bytes"]
    by_method = _partitions(found)
    assert by_method["balanced"]["predicted_interval_s"] <= by_method["score"]["predicted_interval_s"]
    assert by_method["balanced"]["threshold"] is None and by_method["score"]["threshold"] > 0
    text = npu("pipeline", network, *LAYERS, "--groups", "3", "--no-values").stdout
    for word in ("one core", "balanced", "by score", "efficiency", "threshold found by search"):
        assert word in text


def test_options_of_the_score_change_the_partition(npu: Npu, network: Path) -> None:
    """Threshold, node limit, start and coefficients change the partition by score (S5.4, S5.5)."""

    def parts(*words: str) -> list[list[str]]:
        found = npu("pipeline", network, *LAYERS, *words, "--no-values", "--partition", "score", "--json").data
        return [group["nodes"] for group in found["partitions"][0]["groups"]]

    free = parts("--groups", "6", "--threshold", "1000")
    assert len(free) == 1, "nothing exceeds the threshold"
    assert max(map(len, parts("--groups", "6", "--max-nodes", "2", "--threshold", "1000"))) == 2
    begun = parts("--groups", "4", "--start", "behind")
    assert begun[0][0] == "behind"
    assert all("first" not in group for group in begun if "behind" in group), "the second leg is a part of its own"
    only_compute = ("--score", "storage=0", "--score", "routing=0", "--threshold", "0.5")
    assert len(parts("--groups", "6", *only_compute)) > len(free)


@pytest.mark.parametrize("words", [(*LAYERS, "--parts", "4"), (*LAYERS, "--max-nodes", "2")], ids=str)
def test_parts_share_groups(npu: Npu, network: Path, words: tuple[str, ...]) -> None:
    """With more parts than groups, a group runs several, one after the other, and values are those of the network."""
    found = npu("pipeline", network, "--groups", "2", *words, "--partition", "score", "--json").data
    (by_score,) = found["partitions"]
    groups = by_score["groups"]
    assert sum(len(group["parts"]) for group in groups) > len(groups) == 2
    assert all(group["nodes"] == [node for part in group["parts"] for node in part] for group in groups)
    assert sum(len(group["nodes"]) for group in groups) == found["nodes"]
    assert max(group["own_s"] for group in groups) <= 1.001 * by_score["interval_s"]
    assert by_score["max_rel_error"] < 1e-4


def test_a_chip_smaller_than_the_network(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A network that one chip cannot hold runs on several, and the report compares with a core that has room."""
    text = npu_inputs.machine_text(per_chip="1", chips="3")
    whole = npu("pipeline", network, *LAYERS, "--groups", "1", "--no-values", "--json").data
    size = whole["one_core_bytes"] * 2 // 3
    for number, fits in ((size, True), (2_000, False)):
        small = text.replace("bytes = 2_147_483_648", f"bytes = {number}")
        machine = npu_inputs.save(small, tmp_path / f"{number}.toml")
        words = ("pipeline", network, *LAYERS, "--groups", "3", "--machine", machine)
        if not fits:
            npu.refuses(3, *words, mentions=("bytes",))
            continue
        found = npu(*words, "--json").data
        assert not found["fits_one_chip"] and whole["fits_one_chip"]
        for each in found["partitions"]:
            assert max(group["ddr_bytes"] for group in each["groups"]) <= number
            assert each["max_rel_error"] < 1e-4
        assert "timed with" in npu(*words, "--no-values").stdout


def test_groups_are_added_on_another_chip(npu: Npu, network: Path, tmp_path: Path) -> None:
    """If the network does not fit in the groups, groups are added, on the next chip once the first is full."""
    text = npu_inputs.machine_text(per_chip="2", chips="3")
    machine = npu_inputs.save(text, tmp_path / "three.toml")
    words = ("--groups", "2", "--machine", machine, "--core-storage", "60000", "--add-groups", "--json")
    (by_score,) = npu("pipeline", network, *LAYERS, *words, "--partition", "score").data["partitions"]
    assert {group["chip"] for group in by_score["groups"]} > {0}
    assert any("added on chip 1" in event for event in by_score["events"])
    assert by_score["max_rel_error"] < 1e-4


def test_one_group_obeys_the_options_of_the_score(npu: Npu, network: Path) -> None:
    """A single group is split, and groups are added, if the options request it."""
    words = ("--groups", "1", "--add-groups", "--max-nodes", "3", "--no-values", "--json")
    found = npu("pipeline", network, *LAYERS, *words).data
    assert [each["method"] for each in found["partitions"]] == ["balanced", "score"]
    assert len(found["partitions"][1]["groups"]) > 1


def test_a_machine_of_another_type_has_no_values(npu: Npu, network: Path, tmp_path: Path) -> None:
    """If no values are compared, a note says why."""
    machine = npu_inputs.save(npu_inputs.machine_text(data_type='"int8"'), tmp_path / "int8.toml")
    outcome = npu("pipeline", network, *LAYERS, "--groups", "2", "--machine", machine, "--json")
    assert all(each["max_rel_error"] is None for each in outcome.data["partitions"])
    assert "int8" in outcome.stderr and "not evaluated" in outcome.stderr


def test_chips_are_joined_by_both_links(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A machine whose chips have no internal link, which messages between chips use, is refused."""
    text = npu_inputs.machine_text(per_chip="1", chips="3").replace(
        "bytes_per_s = 64_000_000_000  # Choice: as", "bytes_per_s = 0  # as"
    )
    machine = npu_inputs.save(text, tmp_path / "three.toml")
    npu.refuses(
        3, "pipeline", network, *LAYERS, "--groups", "3", "--machine", machine, mentions=("cores.link.bytes_per_s", "3")
    )


@pytest.mark.parametrize("inputs", [1, 40])
def test_short_streams_are_lengthened(npu: Npu, network: Path, inputs: int) -> None:
    """A short stream is lengthened until its interval is that of the steady state: no load exceeds 100 %."""
    words = ("pipeline", network, *LAYERS, "--groups", "4", "--inputs", inputs, "--no-values", "--json")
    for each in npu(*words).data["partitions"]:
        assert each["inputs"] >= max(inputs, 16)
        assert max(group["load"] for group in each["groups"]) <= 1.001
        assert max(resource["utilisation"] for resource in each["resources"]) <= 1.001


def test_corrections_of_a_run_are_events(npu: Npu, network: Path) -> None:
    """Predictions are made before any run; if stages turn out otherwise, an event reports what a correction gained."""
    words = ("pipeline", network, *LAYERS, "--groups", "4", "--no-values", "--json")
    found, again = npu(*words).data, npu(*words, "--inputs", "64").data
    balanced, longer = _partitions(found)["balanced"], _partitions(again)["balanced"]
    if balanced["groups"][0]["nodes"] == longer["groups"][0]["nodes"]:
        assert balanced["groups"][0]["predicted_s"] == longer["groups"][0]["predicted_s"]
    assert len(balanced["events"]) <= 1
    assert all("balanced again" in event for event in balanced["events"])


def test_every_step_of_the_score_is_reported(npu: Npu, network: Path) -> None:
    """The report has the score of every node that was tried in a group, and why a group was closed."""
    words = ("--groups", "3", "--partition", "score", "--no-values", "--json")
    (found,) = npu("pipeline", network, *LAYERS, *words).data["partitions"]
    tried = [step["node"] for step in found["steps"]]
    assert set(tried) == {node for group in found["groups"] for node in group["nodes"]}
    assert [step["closes"] for step in found["steps"]].count(None) == len(set(tried))
    assert all(step["score"] <= found["threshold"] for step in found["steps"] if step["closes"] is None)


def test_a_group_computes_no_more_than_its_period(npu: Npu, network: Path) -> None:
    """With --period-ms, computation is a demand on a group; an impossible period is refused."""
    words = ("pipeline", network, *LAYERS, "--groups", "5", "--threshold", "1000", "--no-values", "--json")
    free = npu(*words).data["partitions"][1]
    (group,) = free["groups"]
    half_ms = group["compute_slots"] / 1024 / 1e6 * 0.6
    short = npu(*words, "--period-ms", half_ms, "--partition", "score").data
    assert len(short["partitions"][0]["groups"]) > 1
    npu.refuses(3, "pipeline", network, *LAYERS, "--groups", "2", "--period-ms", "1e-6", mentions=("multiply-adds",))


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (("--groups", "12"), ("12", "nodes")),
        (("--cores", "17"), ("17", "16")),
        (("--groups", "0-3/3"), ("core 3",)),
        (("--groups", "2", "--threshold", "-1"), ("-1", "at least 0")),
        (("--groups", "2", "--threshold", "inf", "--json"), ("inf", "finite")),
        (("--groups", "2", "--max-nodes", "0"), ("0", "at least 1")),
        (("--groups", "2", "--score", "compute=1.5"), ("1.5", "between 0 and 1")),
        (("--groups", "2", "--parts", "1"), ("1 parts", "2 groups")),
        (("--groups", "2", "--core-storage", "10"), ("bytes of storage", "10")),
        (("--groups", "2", "--core-storage", "10", "--partition", "balanced"), ("storage", "10")),
        (("--groups", "2", "--cycle-budget", "5"), ("budget",)),
        (("--groups", "2", "--period-ms", "-1"), ("period", "above 0")),
        (("--groups", "2", "--start", "nowhere"), ("nowhere", "first")),
    ],
    ids=str,
)
def test_impossible_groups_are_refused(
    npu: Npu, network: Path, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """Contradictory groups, weights and thresholds are input errors that name the value and the limit."""
    npu.refuses(3, "pipeline", network, *LAYERS, *words, mentions=mentions)


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (("--inputs", "3"), ("--cores", "--groups", "harness npu run")),
        (("--groups", "2", "--score", "speed=1"), ("speed", "compute")),
        (("--groups", "2", "--score", "compute=much"), ("much",)),
        (("--groups", "2", "--partition", "balanced", "--threshold", "0"), ("balanced", "--threshold")),
        (("--groups", "2", "--parts", "4", "--add-groups"), ("--parts", "--add-groups")),
    ],
    ids=str,
)
def test_words_without_meaning_are_refused(
    npu: Npu, network: Path, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """Meaningless options, and options that contradict each other, are usage errors."""
    npu.refuses(2, "pipeline", network, *words, mentions=mentions)


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (("--groups", "2", "--partition", "best"), ("best", "balanced")),
        (("--groups", "2", "--marginal"), ("--marginal",)),
        (("--groups", "2", "--csv", "x"), ("--csv",)),
    ],
    ids=str,
)
def test_unknown_choices_and_options_are_refused(
    npu: Npu, network: Path, words: tuple[str, ...], mentions: tuple[str, ...]
) -> None:
    """The command line lists the choices of an option, and refuses options that only one core has."""
    npu.misuses("pipeline", network, *words, mentions=mentions)
