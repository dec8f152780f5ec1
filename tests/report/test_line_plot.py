"""Line plots: what a figure contains, and that its page loads nothing and interprets no name."""

import math
from pathlib import Path

import pytest
from bokeh_figures import Figure
from page_browser import Browser

from harness.report.html import write_figure
from harness.report.line_plot import Mark, PlotAxis, PlotSeries, line_plot

FALLING = PlotSeries("edge", ((8, 400.0), (16, 200.0), (32, 150.0)), Mark(1, "knee: 16"))
WIDE = PlotSeries("wide", ((8, 300.0), (16, 100.0)))


def _figure(series: list[PlotSeries], x: PlotAxis | None = None, y: PlotAxis | None = None) -> Figure:
    return Figure(line_plot(series, x or PlotAxis("rows"), y or PlotAxis("cycles")))


def test_a_line_for_every_series() -> None:
    """Every series is one line through its points and has a name in the legend; the axes are labelled."""
    found = _figure([FALLING, WIDE])
    assert [(line["x"], line["y"]) for line in found.lines] == [([8, 16, 32], [400, 200, 150]), ([8, 16], [300, 100])]
    assert (found.legend, found.axis_labels) == (["edge", "wide"], ["rows", "cycles"])


def test_marked_point_is_ringed() -> None:
    """The ring and the label of a mark stand at its point, and a single series needs no legend."""
    found = _figure([FALLING])
    (ring,) = found.rings
    assert (ring["x"], ring["y"], found.labels) == ([16], [200], ["knee: 16"])
    assert found.legend == []


def test_logarithmic_axes() -> None:
    """A logarithmic axis has a logarithmic scale and says so."""
    series = PlotSeries("s", ((1, 1000.0), (10, 100.0), (100, 10.0)))
    found = _figure([series], PlotAxis("x", "log"), PlotAxis("y", "log"))
    assert {type(found.plot.x_scale).__name__, type(found.plot.y_scale).__name__} == {"LogScale"}
    assert found.axis_labels == ["x (logarithmic)", "y (logarithmic)"]


def test_linear_axis_of_amounts_starts_at_zero() -> None:
    """Amounts on a linear axis are drawn from 0, so that heights compare."""
    found = _figure([PlotSeries("s", ((0, 200.0), (1, 100.0)))])
    assert found.plot.y_range.start == 0 and found.plot.y_range.end > 200


def test_missing_values_leave_a_gap() -> None:
    """A point without a value is not a number in the data, so the line has a gap there."""
    (line,) = _figure([PlotSeries("s", ((1, 5.0), (2, None), (3, 3.0)))]).lines
    assert [math.isnan(value) for value in line["y"]] == [False, True, False]


def test_given_ticks() -> None:
    """Given ticks are written under their values; the axis hides those that would overlap."""
    found = _figure([FALLING], PlotAxis("size", "log", ((8, "8K"), (16, "16K"), (32, "32K"))))
    axis = found.plot.xaxis[0]
    assert found.x_ticks == ["8K", "16K", "32K"] and list(axis.ticker.ticks) == [8, 16, 32]
    assert type(axis.major_label_policy).__name__ == "NoOverlap"


@pytest.mark.parametrize(
    ("series", "scale"),
    [((), "linear"), ((PlotSeries("s", ((1, None),)),), "linear"), ((PlotSeries("s", ((1, 0.0), (2, 1.0))),), "log")],
    ids=["no series", "no value", "no logarithm"],
)
def test_plots_without_a_value(series: tuple[PlotSeries, ...], scale: str) -> None:
    """A plot needs a value, and a logarithmic axis values above 0."""
    with pytest.raises(ValueError, match=r"point|logarithmic"):
        line_plot(series, PlotAxis("x"), PlotAxis("y", "log" if scale == "log" else "linear"))


@pytest.mark.parametrize("points", [((5, 7.0),), ((1, 7.0), (2, 7.0)), ((0, 0.0),)], ids=str)
def test_one_point_alone(points: tuple[tuple[float, float], ...]) -> None:
    """A single point, or equal values, still have axes with room around them."""
    found = _figure([PlotSeries("s", points)])
    for ends in (found.plot.x_range, found.plot.y_range):
        assert ends.start < ends.end


def test_page_is_drawn_without_requests_and_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Chromium draws the page, which loads nothing else, and hostile names neither run nor become markup."""
    name = "</script><img src='http://x.invalid/' onerror='alert(1)'>$$x^2$$&\x1b[31m"
    series = [PlotSeries(name, ((1, 1.0), (2, 2.0)), Mark(0, name)), PlotSeries("b", ((1, 2.0),))]
    page = tmp_path / "p.html"
    write_figure(
        page, name, line_plot(series, PlotAxis(name, ticks=((1, name), (2, "two"))), PlotAxis(name)), f"harness {name}"
    )
    visit = browser.open(page)
    assert (visit.errors, visit.dialogs) == ([], [])
    assert {address.partition(":")[0] for address in visit.requests} <= {"file", "data", "blob"}
    assert name[:20] in visit.hover("#figure")
    assert visit.page.query_selector("img") is None


def test_page_fits_a_phone_and_paper(browser: Browser, tmp_path: Path) -> None:
    """A figure of two series shrinks to the width of a phone and of paper."""
    write_figure(tmp_path / "p.html", "title", line_plot([FALLING, WIDE], PlotAxis("rows"), PlotAxis("cycles")), "")
    browser.open(tmp_path / "p.html").assert_sound()
