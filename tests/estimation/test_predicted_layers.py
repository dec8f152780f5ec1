"""Estimates of networks whose layers were never measured."""

import dataclasses
import json
from pathlib import Path

import pytest
from nullbench import Bench, build_network

from harness.cli.app import main
from harness.errors import LutCorrupt
from harness.estimation.layer_estimates import sum_of_layers
from harness.estimation.network_estimate import estimate_network
from harness.latency.overhead import Coefficient
from harness.lut.table import Lut
from harness.lut.table_files import publish
from harness.network.keyed_network import keyed
from harness.network.model_references import load_network
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.roofline.device_tiling import DeviceTiling

_BATCHES = (1, 2, 3, 5, 8, 13)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a workspace with a null device and a small network."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def table(bench: Bench) -> Lut:
    """Return a table whose predictor learnt all layers of the small network but the pooling, at several batches."""
    bench.profile()
    built = bench.build()
    layers = [describe(entry.signature) for entry in built.entries if "Pool" not in entry.op]
    examples = [
        TrainingExample(dataclasses.replace(layer, batch=batch), 1e-6 + 1e-9 * batch * layer.moved_bytes)
        for layer in layers
        if layer is not None
        for batch in _BATCHES
    ]
    with pytest.MonkeyPatch.context() as patched:  # the search for a tiling takes most of a training
        patched.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1, ((1, 16, 1),)))
        model = fit_predictor(examples).content
    return publish(dataclasses.replace(built, predictor=model), bench.workspace.lut)


def test_an_operator_without_entries_is_unknown(bench: Bench, table: Lut) -> None:
    """A layer of an operator that no entry has is unknown, whatever its sizes; the others are predicted."""
    wide = build_network(bench.root / "wide.onnx", widths=(8, 40, 40))
    found = estimate_network(load_network(str(wide)), table)
    assert {layer.op for layer in found.unknown} == {"GlobalAveragePool"}
    assert found.latency_s is None
    assert found.coverage["interpolated"] + found.coverage["extrapolated"] >= 2


def test_one_memory_loads_inputs_and_weights(bench: Bench, table: Lut) -> None:
    """Inputs that take as long as the layers lengthen a network by the loads of the weights of predicted layers."""
    wide = load_network(str(build_network(bench.root / "wide.onnx", widths=(8, 40, 40))))
    plain, layers = estimate_network(wide, table), sum_of_layers(keyed(wide, table.rules), table)
    rates = {"loaded_bytes": layers.latency_s / wide.whole_input_bytes, "stored_bytes": 0.0}
    coefficients = {name: Coefficient(rate, 0.0, 0.0, 0.0) for name, rate in rates.items()}
    overhead = dataclasses.replace(table.overhead, coefficients=table.overhead.coefficients | coefficients)
    found = estimate_network(wide, dataclasses.replace(table, overhead=overhead))
    assert layers.loads_s > 0.0
    assert found.covered_latency_s == pytest.approx(plain.covered_latency_s + layers.loads_s)


def test_an_estimate_that_is_mostly_predicted_says_so(
    bench: Bench, table: Lut, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command warns, in text and in JSON, of each network whose latency is mostly predicted, and of no other."""
    wide = build_network(bench.root / "wide.onnx", widths=(8, 40, 40))
    arguments = ["estimate", str(wide), str(bench.model), "--lut", str(table.path), "--allow-partial"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    shares = [network["predicted_share"] for network in answer["networks"]]
    assert shares[0] > 0.5 and shares[1] == 0.0
    (warning,) = answer["warnings"]
    assert "wide" in warning and warning in shown.err.replace("\n", " ")


def test_measured_networks_need_no_predictor(bench: Bench, table: Lut, tmp_path: Path) -> None:
    """A table with a predictor of an older version estimates measured layers, and names the command for others."""
    old = dataclasses.replace(table, predictor=b"of another version")
    assert estimate_network(load_network(str(bench.model)), old).latency_s is not None
    wide = build_network(tmp_path / "wide.onnx", widths=(8, 40, 40))
    with pytest.raises(LutCorrupt, match="harness lut build"):
        estimate_network(load_network(str(wide)), old)
