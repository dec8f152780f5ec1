"""Pages of commands: `harness report` from what a workspace holds, and `--html` wherever a command has a page."""

import re
import shutil
from pathlib import Path

import onnx
import pytest
from command_line import Harness
from system_networks import convolutions, save


@pytest.fixture
def lab(profiled: Harness, small_network: Path, tmp_path: Path) -> Harness:
    """A copy of the profiled workspace that has the network's file, too."""
    harness = Harness.in_folder(tmp_path / "lab")
    shutil.copytree(profiled.workspace, harness.workspace, dirs_exist_ok=True)
    shutil.copy(small_network, harness.workspace / "small.onnx")
    return harness


def cells(page: Path) -> list[str]:
    """The cells of all tables of a page, in order."""
    return re.findall(r"<t[dh][^>]*>([^<]*)", page.read_text(encoding="utf-8"))


def test_a_report_without_networks_has_those_of_the_table(lab: Harness) -> None:
    """Without a validation the page has the networks that the table was measured with, as an estimate of them has."""
    found = lab("report", "--device", "null01", "--json").data
    assert (found["networks"], found["validated"]) == (["small"], False)
    assert Path(found["html"]) == lab.workspace / "reports" / "null01.html"
    lab("estimate", "small.onnx", "--device", "null01", "--html", "estimate.html").assert_ok()
    assert cells(Path(found["html"])) == cells(lab.workspace / "estimate.html")


def test_a_report_shows_the_last_validation(lab: Harness) -> None:
    """After `validate` the page is the one that `validate --html` writes, without measuring again."""
    lab("validate", "small.onnx", "--device", "null01", "--html", "validate.html").assert_ok()
    before = lab.state()
    path = lab.workspace / "report.html"
    found = lab("report", "--device", "null01", "--html", path, "--json").data
    assert found["validated"] and cells(path) == cells(lab.workspace / "validate.html")
    assert "mean absolute error" in path.read_text(encoding="utf-8")
    assert {name: one for name, one in lab.state().items() if name != "report.html"} == before


def test_a_report_has_the_sizes_of_the_last_validation(lab: Harness) -> None:
    """Dimensions that `validate` was given need not be given again."""
    model = onnx.load(lab.workspace / "small.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, lab.workspace / "open.onnx")
    lab("validate", "open.onnx", "--device", "null01", "--dim", "n=1").assert_ok()
    assert lab("report", "--device", "null01", "--json").data["validated"]


def test_a_report_never_shows_a_validation_of_other_networks(lab: Harness) -> None:
    """A validation is not shown beside networks that it did not measure, nor after its network has changed."""
    lab("validate", "small.onnx", "--device", "null01").assert_ok()
    other = lab("report", "builtin:dscnn", "--device", "null01", "--json")
    assert not other.data["validated"] and "small has changed or is not in this report" in other.stderr
    save(convolutions(channels=4), lab.workspace / "small.onnx")
    changed = lab("report", "--device", "null01", "--json")
    assert not changed.data["validated"] and "small has changed or is not in this report" in changed.stderr


def test_a_damaged_journal_is_named_beside_the_page(lab: Harness) -> None:
    """The page lacks the samples, and the warning names the journal and the next step."""
    journal = lab.workspace / ".harness" / "journal.sqlite"
    journal.write_bytes(bytes(range(7, 250)) * 20)
    done = lab("report", "--device", "null01", "--json")
    assert done.data["networks"] == ["small"]
    assert str(journal) in done.stderr and "restore it from a backup" in done.stderr


def test_a_damaged_validation_is_an_error_that_names_its_file(lab: Harness) -> None:
    """The error says which file to remove."""
    folder = lab.workspace / ".harness" / "validations"
    folder.mkdir()
    for content in ("{", '{"models": [], "result": {}}'):
        (folder / "null01.json").write_text(content)
        lab("report", "--device", "null01").assert_refused(3, mentions=("null01.json",))


def test_two_tables_have_a_page_with_their_networks(lab: Harness) -> None:
    """`compare --html` writes the networks, operators and layers that the command prints."""
    path = lab.workspace / "compare.html"
    found = lab("compare", "null01", "null01", "small.onnx", "--html", path, "--json").data
    text = path.read_text(encoding="utf-8")
    assert '<h2 id="networks">' in text and '<h2 id="operators">' in text
    assert all(layer["key"] in text for layer in found["layers"])


@pytest.mark.parametrize(
    "command",
    [
        "estimate small.onnx",
        "validate small.onnx",
        "report small.onnx",
        "compare null01 null01",
        "benchmark small.onnx",
    ],
)
def test_a_page_has_a_name_and_a_folder(command: str, lab: Harness) -> None:
    """Every `--html` refuses a name that no browser opens, and a folder that does not exist, before any work."""
    device = () if command.startswith("compare") else ("--device", "null01")
    lab(*command.split(), *device, "--html", "page.txt").assert_refused(2, mentions=("--html", ".html"))
    lab(*command.split(), *device, "--html", "nowhere/page.html").assert_refused(3, mentions=("nowhere",))
