"""Fusion found by pair probes, end to end: on the emulated NPU that reveals nothing, and on a CPU that is not asked."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.errors import Interrupted
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.cutting import cut_as_probed
from harness.measure.fusion.probed_fusion import SOURCE, FusionSearch, TriedPattern, rules_of
from harness.measure.fusion.significance import Verdict
from harness.measure.journal.journal import Journal
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for

SEARCHES = 12
"""Searches on a busy machine, of which one has to see all."""
NORMALISED = "Conv/dense/16(x0);BatchNormalization/16(0)"
APART = "Relu(x0);Conv/dense/16(0)"


def normalised_pair(folder: Path, channels: int, side: int) -> Network:
    """Two convolutions with normalisation; the first has an activation, whose result the second reads."""
    nodes, weights, read = [], [], "x"
    for index in range(2):
        weights.append(numpy_helper.from_array(np.full((channels, channels, 1, 1), 0.1, np.float32), f"w{index}"))
        parameters = [f"{name}{index}" for name in ("scale", "bias", "mean", "variance")]
        weights.extend(numpy_helper.from_array(np.ones(channels, np.float32), name) for name in parameters)
        nodes.append(helper.make_node("Conv", [read, f"w{index}"], [f"c{index}"], f"conv{index}"))
        nodes.append(helper.make_node("BatchNormalization", [f"c{index}", *parameters], [f"b{index}"], f"bn{index}"))
        read = f"b{index}"
        if index == 0:
            nodes.append(helper.make_node("Relu", [read], ["r"], "relu"))
            read = "r"
    shape = (1, channels, side, side)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", read)]
    graph = helper.make_graph(nodes, "pair", values[:1], values[1:], weights)
    path = folder / "pair.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return load_network(str(path))


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """A pair whose feature maps fit the memory of the emulated NPU."""
    return normalised_pair(tmp_path, 96, 28)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    with Journal(tmp_path / "journal.sqlite") as opened:
        yield opened


def test_the_blind_npu_gives_its_folding_away(network: Network, journal: Journal) -> None:
    """Convolution, normalisation and activation are found to be one layer, the next convolution is not, and the
    second search finds all in the journal and measures nothing."""
    found = []
    with open_session(BUILT_IN["npu01-blind"]) as session:
        session.acquire("the test")
        assert not {"fusion", "chains"} & set(session.hello.reveals)
        kind = auxiliary_for(session.hello.clock)
        for _ in range(2):
            search = FusionSearch(DeviceRun(session, journal, "npu01-blind"), kind, 0, False)
            cuts, rules = cut_as_probed(search, [network])
            taken = sum(len(journal.samples(campaign.id)) for campaign in journal.campaigns("npu01-blind"))
            found.append((rules, taken))
    assert found[0] == found[1]
    assert {rule.source for rule in rules} == {SOURCE}
    assert {campaign.settings["purpose"] for campaign in journal.campaigns("npu01-blind")} == {"fusion"}
    held = {rule.pattern for rule in rules if rule.holds}
    whole = f"{NORMALISED};Relu(1)"
    assert {NORMALISED, whole} <= held
    assert not any("Relu" in pattern.partition(";Conv")[0] for pattern in held if ";Conv" in pattern)
    assert [layer.op for layer in cuts[0].layers] == ["Conv+BatchNormalization+Relu", "Conv+BatchNormalization"]


def test_a_cpu_gives_its_fusion_away(tmp_path: Path, journal: Journal) -> None:
    """Pair probes find what ONNX Runtime folds into a convolution and what it does not, without its graph; noise of
    other work may spoil some searches, not all."""
    network = normalised_pair(tmp_path, 16, 112)  # the normalisation takes as long as the convolution
    with open_session(BUILT_IN["cpu01"]) as session:
        session.acquire("the test")
        for _ in range(SEARCHES):
            search = FusionSearch(DeviceRun(session, journal, "cpu01"), AuxiliaryKind.AVGPOOL, 0, True)
            rules = {rule.pattern: rule for rule in search.run([network])}
            if (rules[NORMALISED].saving or 0) > 0.5 and not rules[APART].holds:
                return
    pytest.fail(f"not found: {rules[NORMALISED]}, {rules[APART]}")


def test_a_stopped_search_goes_on_where_it_was(network: Network, journal: Journal) -> None:
    """A stopped search leaves a campaign that the next search resumes."""
    stop = threading.Event()
    stop.set()
    with open_session(BUILT_IN["cpu01"]) as session:
        session.acquire("the test")
        for _ in range(2):
            with pytest.raises(Interrupted):
                FusionSearch(DeviceRun(session, journal, "cpu01", stop=stop), AuxiliaryKind.AVGPOOL, 0, False).run(
                    [network]
                )
    assert len(journal.campaigns("cpu01")) == 1


def test_a_rule_needs_all_producers() -> None:
    """A saving in one layout only may be a reorder, so the smaller saving of both layouts decides."""
    real, large = Verdict(1.0, 0.01, 1e-12, 1.0, 4, 4), Verdict(2.0, 0.01, 1e-12, 1.0, 4, 4)
    fake, silent = Verdict(0.0, 0.01, 1.0, 1e-12, 4, 0), Verdict(0.5, 1.0, 0.5, 0.5, 4, 2)
    tried = [
        TriedPattern("Conv(x0);Relu(0)", 9, {"convolution": real, "abs": large}),
        TriedPattern("Relu(x0);Conv(0)", 9, {"convolution": fake, "abs": large}),
        TriedPattern("Relu(x0);Abs(0)", 9, {"convolution": silent, "abs": large}),
    ]
    rules = rules_of(tried)
    assert [rule.holds for rule in rules] == [True, False, False]
    assert [rule.saving for rule in rules] == [1.0, 0.0, 0.5]
    assert [pattern.is_apart for pattern in tried] == [False, True, False]
