"""Results in notebooks: texts are never markup, and bars are as long as their latencies."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness import estimate, open_lut
from harness.errors import HarnessError
from harness.notebook import MOST_ROWS, BarPlot, LatencyBar, frame, html_table

NAMES = st.text(min_size=1, max_size=60)
SVG = "{http://www.w3.org/2000/svg}"


@given(NAMES, st.lists(st.tuples(NAMES, st.floats(1e-7, 1.0)), max_size=8))
def test_a_plot_of_any_names_is_valid_svg(title: str, bars: list[tuple[str, float]]) -> None:
    """Any text makes well-formed SVG with one bar for each latency, which reach as far as their ratio."""
    plot = BarPlot(title, tuple(LatencyBar(name, latency_s) for name, latency_s in bars))
    root = ET.fromstring(plot.to_svg())
    widths = [float(one.attrib["width"]) for one in root.iter(f"{SVG}rect") if "x" in one.attrib]
    longest_s = max((latency_s for _, latency_s in bars), default=1.0)
    assert [width / 420 for width in widths] == pytest.approx([one / longest_s for _, one in bars], abs=2e-4)


@given(NAMES)
def test_text_of_a_table_is_no_markup(text: str) -> None:
    """Whatever a cell holds, the table has the elements of a table alone."""
    table = html_table(text, (text,), [(text,), (text,)])
    assert set(re.findall(r"</?(\w+)", table)) == {"table", "caption", "thead", "tr", "th", "tbody", "td"}


def test_long_tables_end_and_say_so() -> None:
    """After MOST_ROWS rows, a line counts the others."""
    table = html_table("long", ("name",), [("row",)] * (MOST_ROWS + 5))
    assert table.count("<td>") == MOST_ROWS and "5 more rows" in table


def test_a_plot_is_saved_and_shown_alike(tmp_path: Path) -> None:
    """The saved file is what a notebook shows, with the interval as text."""
    plot = BarPlot("latency", (LatencyBar("net", 2e-3, (1e-3, 3e-3)),))
    plot.save(str(tmp_path / "plot.svg"))
    assert (tmp_path / "plot.svg").read_text() == plot._repr_html_()
    assert "2.000 ms [1.000, 3.000]" in plot._repr_html_()


def test_a_latency_without_some_layers_says_so() -> None:
    """The bar of a network with unknown layers names their number; it is not shown as the network's latency."""
    assert LatencyBar("net", 2e-3, lacks=3).value == "2.000 ms without 3 layers"
    assert "without 1 layer<" in BarPlot("latency", (LatencyBar("net", 2e-3, lacks=1),)).to_svg()


def test_a_notebook_shows_an_error_without_the_lines_of_harness(tmp_path: Path) -> None:
    """What, why and next step stand behind the line of the caller; a bug keeps its traceback."""
    with pytest.raises(HarnessError) as raised:
        estimate(tmp_path / "absent.onnx", device="npu01")
    line, *others = raised.value._render_traceback_()
    assert re.match(r"InvalidNetwork in line \d+: .*absent.onnx cannot be read", line)
    assert [one.split(":")[0].strip() for one in others] == ["why", "next"]
    with pytest.raises(NotImplementedError):
        HarnessError("a bug")._render_traceback_()


def test_results_are_short_as_text() -> None:
    """A list of estimates and a table are a line for each network or table in an interpreter, however many layers."""
    table = open_lut("npu01")
    assert repr(table) == f"<table {table.name}: {len(table.entries)} entries, method joint, clock device>"
    (found,) = estimates = estimate("builtin:squeezenet", device="npu01", lut=table)
    assert re.fullmatch(r"<squeezenet: [\d.]+ ms, \[[\d.]+, [\d.]+\], 31/31 layers measured>", repr(found))
    assert len(repr(estimates)) < 100


def test_a_frame_without_rows_has_its_columns() -> None:
    """Code that selects a column works for an empty result, too."""
    assert list(frame([], ("name", "latency_s")).columns) == ["name", "latency_s"]
