"""Results in notebooks: texts are never markup, and bars are as long as their latencies."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

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


def test_a_frame_without_rows_has_its_columns() -> None:
    """Code that selects a column works for an empty result, too."""
    assert list(frame([], ("name", "latency_s")).columns) == ["name", "latency_s"]
