"""The page of `harness npu run --html`: the plot of the layers under the roof of their machine."""

from pathlib import Path

import npu_inputs
import pytest
from bokeh.models import Scatter
from bokeh_figures import Figure, figure_text
from npu_command import Npu

from device_agents.emulated_npu.machine import load_preset


@pytest.mark.parametrize("preset", ["edge", "nvdla-256", "systolic-32"])
def test_layers_are_under_the_roof(npu: Npu, network: Path, tmp_path: Path, preset: str) -> None:
    """Each layer with multiply-adds has one point, whose speed neither multipliers nor DDR exceed."""
    page, machine = tmp_path / "roofline.html", load_preset(preset)
    command = ("run", network, "--preset", preset, "--no-values", "--html", page, "--json")
    layers = {row["name"]: row for row in npu(*command).data["layers"] if row["macs"]}
    figure = Figure(figure_text(page.read_text(), "figure-3"))
    assert figure.axis_labels == ["MACs per byte of DDR (logarithmic)", "GMAC/s (logarithmic)"]
    assert figure.legend[0] == f"roof of {preset}" and len(figure.lines) == 1
    peak = machine.mfu.rows * machine.mfu.columns * machine.clock_hz / 1e9
    assert max(figure.lines[0]["y"]) == pytest.approx(peak)
    found = {
        name.removesuffix(" (no byte of DDR)"): (x, y, "no byte" in name)
        for each in figure.columns(Scatter)
        if each.get("name") and not each["name"][0].startswith("roof")
        for name, x, y in zip(each["name"], each["x"], each["y"], strict=True)
    }
    assert found.keys() == layers.keys()
    for name, (intensity, speed, is_free) in found.items():
        row = layers[name]
        moved = row["ddr_read_bytes"] + row["ddr_written_bytes"]
        assert is_free == (moved == 0)
        assert is_free or intensity == pytest.approx(row["macs"] / moved)
        assert speed <= min(peak, intensity * machine.ddr.bytes_per_s / 1e9) * 1.001


def test_pages_that_cannot_be(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A page has the suffix of one, in a folder that exists; a program without multiply-adds has no roofline."""
    npu.refuses(2, "run", network, "--html", tmp_path / "x.svg", mentions=("--html", ".html"))
    npu.refuses(3, "run", network, "--html", "/nowhere/x.html", mentions=("/nowhere/x.html",))
    only = npu_inputs.save(npu_inputs.program("halt\n"), tmp_path / "none.npu")
    npu("run", only, "--html", tmp_path / "x.html").assert_ok()
    assert "roofline" not in (tmp_path / "x.html").read_text()
