"""`harness npu run --html`: the page of a run."""

from pathlib import Path

import npu_inputs
from npu_command import Npu
from page_browser import Browser

HOSTILE = "<script>alert(1)</script>"


def test_page_of_a_run_loads_nothing_and_shows_every_layer(npu: Npu, tmp_path: Path, browser: Browser) -> None:
    """In a browser the page loads nothing, draws its four figures and lists all layers by name, also hostile ones."""
    names = [f"{HOSTILE} {name}" for name in npu_inputs.NAMES]
    network, page = npu_inputs.save(npu_inputs.convolutions(names), tmp_path / "small.onnx"), tmp_path / "run.html"
    command = ("run", network, "--preset", "edge", "--no-values", "--html", page, "--json")
    layers = npu(*command).data["layers"]
    visit = browser.open(page)
    assert visit.page.locator("[data-figure]").count() == 4
    assert any(layer["name"] in visit.hover("#figure-1") for layer in layers)
    table = visit.page.locator(".grid tbody")
    assert table.locator("tr").count() == len(layers)
    text = table.inner_text()
    assert all(layer["name"] in text for layer in layers)
    assert f"harness npu run {network} --preset edge" in visit.page.locator("pre").inner_text()
    visit.assert_sound()


def test_program_without_layers_has_a_page(npu: Npu, tmp_path: Path) -> None:
    """A program without a layer has a page, which the folder must exist for."""
    only = npu_inputs.save(npu_inputs.program("halt\n"), tmp_path / "none.npu")
    assert npu("run", only, "--html", tmp_path / "x.html").code == 0
    assert '<h2 id="layers">Layers</h2>' in (tmp_path / "x.html").read_text(encoding="utf-8")
    npu.refuses(3, "run", only, "--html", "/nowhere/x.html", mentions=("/nowhere/x.html",))
    npu.refuses(2, "run", only, "--html", tmp_path / "x.svg", mentions=("--html", ".html"))
