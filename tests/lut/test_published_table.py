"""The table that the package holds of npu01: current, intact, and used where a workspace has none of its own."""

import json
import shutil
from pathlib import Path

import onnx.parser
import pytest
from command_line import Harness

from benchmarks import published
from harness import Workspace, estimate
from harness.lut.lut_tables import warnings_of
from harness.lut.table import Lut
from harness.lut.table_choice import is_published, open_table

NETWORK = "builtin:dscnn"


@pytest.fixture
def table(tmp_path: Path) -> Lut:
    """The table of npu01 that an empty workspace uses."""
    return open_table("npu01", None, Workspace(tmp_path))


def test_the_table_is_of_this_emulator_and_space(table: Lut) -> None:
    """The table was measured with the emulator, machine and space of this tree; `make published` renews a stale one."""
    recorded = json.loads(published.VERSIONS.read_text())
    stale = [name for name, value in published.current_versions().items() if recorded.get(name) != value]
    assert not stale, f"another {' and '.join(stale)} than the published table of npu01: run `make published`"
    assert table.fingerprint["runtime_version"] == recorded["emulator"]
    assert table.fingerprint["settings"] == recorded["settings"]


def test_the_repository_shows_the_table_and_its_report(table: Lut) -> None:
    """lut/npu01 links to the one table of the package, and reports/npu01.html is the report of that table."""
    assert is_published(table) and table.loaded_predictor is not None
    assert [link.resolve() for link in published.LINKS.iterdir() if link.is_symlink()] == [table.path.resolve()]
    assert table.name in published.REPORT.read_text()


def test_terms_that_no_probe_has_are_not_called_inseparable(table: Lut) -> None:
    """A warning lists the terms that a and b contain, not those of data that the device reads in no probe."""
    (warning,) = (one for one in warnings_of(table) if one.startswith("Null probes"))
    assert "per further input" in warning and "quantised" not in warning


def test_an_empty_folder_has_estimates(tmp_path: Path) -> None:
    """Without any measurement `estimate --device npu01` answers with interval and coverage, and names the table."""
    harness = Harness.in_folder(tmp_path)
    found = harness("estimate", NETWORK, "--device", "npu01").assert_ok()
    assert "no table of npu01" in found.stderr and "harness profile --device npu01" in found.stderr
    data = harness("estimate", NETWORK, "--device", "npu01", "--json").data
    (network,) = data["networks"]
    low, high = network["interval_s"]
    assert data["published"] and data["lut"] in found.stdout and 0 < low < network["latency_s"] < high
    assert sum(network["coverage"].values()) == len(network["layers"]) and not network["coverage"]["unknown"]
    assert harness("estimate", NETWORK, "--lut", data["lut"], "--json").data["networks"] == data["networks"]
    assert harness("compare", "npu01", data["lut"], NETWORK, "--json").data["networks"][0]["ratio"] == 1
    assert not harness.state()


def test_the_workspace_comes_first(table: Lut, tmp_path: Path) -> None:
    """A table of the device in the workspace is used in place of the one of the package."""
    own = Workspace(tmp_path / "own")
    shutil.copytree(table.path, own.lut / table.name)
    assert not is_published(open_table("npu01", None, own))
    assert estimate(NETWORK, device="npu01", workspace=own) == estimate(NETWORK, device="npu01", workspace=tmp_path)


@pytest.mark.parametrize("words", [("--device", "npu01", "--batch", "2"), ("--device", "npu01-blind")])
def test_other_devices_and_batches_have_no_table(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The table is used for the device and the batch that it was measured with, and for no other."""
    Harness.in_folder(tmp_path)("estimate", NETWORK, *words).assert_refused(3, mentions=("There is no table",))


def test_weights_that_a_caller_may_replace_are_estimated(tmp_path: Path) -> None:
    """A product whose weights are an input and transposed is estimated about as long as one of constant weights."""
    graph = """
        <ir_version: 8, opset_import: ["" : 17]>
        small (float[1, 16, 512] xINPUT) => (float[1, 16, 256] y) <float[256, 512] w = {VALUES}>
        { t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t) }
    """.replace("VALUES", ", ".join(["1"] * 256 * 512))
    models = [onnx.parser.parse_model(graph.replace("INPUT", given)) for given in ("", ", float[256, 512] w")]
    plain, listed = (estimate(model, device="npu01", workspace=tmp_path)[0] for model in models)
    assert "?" not in plain.layers[0].key and "Transpose" in listed.layers[0].op
    assert listed.latency_s == pytest.approx(plain.latency_s, rel=0.02)
