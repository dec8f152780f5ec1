"""Line plots as Bokeh documents: series over a linear or logarithmic axis, with marked points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh import plotting
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FixedTicker, NoOverlap
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.renderers import GlyphRenderer

from harness.report.figures import TEXT, Scale, base_figure, draw, figure_json, tick
from harness.report.page_values import display, significant

_HEIGHT = 460
_PAD = 0.05
_MAX_NAME = 40
_DECADE = 10
# Okabe and Ito's palette, distinct for colour-blind readers, without yellow and black, which vanish on a page.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Mark:
    """A point of a series that is ringed and labelled, by its index."""

    place: int
    label: str


@dataclass(frozen=True)
class PlotSeries:
    """A line through (x, y) in the given order; a y of None leaves a gap.

    With `names`, one for each point, there is no line.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    mark: Mark | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlotAxis:
    """An axis; `ticks` are values with their texts, chosen by the plot if there are none."""

    label: str
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()


def scale_of_range(values: Sequence[float]) -> Scale:
    """Return log for values that reach over a decade or more."""
    return "log" if min(values, default=0.0) > 0 and max(values) >= _DECADE * min(values) else "linear"


def line_plot(series: Sequence[PlotSeries], x: PlotAxis, y: PlotAxis) -> str:
    """Return a figure with a line for every series, marks, and a legend for several series.

    A linear y axis of non-negative values starts at 0. Raises ValueError if no point has a value, and for a value on a
    logarithmic axis that is not above 0.
    """
    values = [height for each in series for _, height in each.points if height is not None]
    if not values:
        raise ValueError("there is no point to draw")
    x_range = _range([at for each in series for at, _ in each.points], x.scale)
    low, high = _range(values, y.scale)
    y_range = (0.0 if y.scale == "linear" and min(values) >= 0 else low, high)
    plot = base_figure(_HEIGHT, (_label(x), _label(y)), (x.scale, y.scale), x_range, y_range)
    for axis, declared in zip((plot.xaxis, plot.yaxis), (x, y), strict=True):
        if declared.ticks:
            axis.ticker = FixedTicker(ticks=[at for at, _ in declared.ticks])
            axis.major_label_overrides = {at: tick(text) for at, text in declared.ticks}
            axis.major_label_policy = NoOverlap()
    texts = dict(x.ticks)
    drawn = [_draw(plot, each, number, texts) for number, each in enumerate(series)]
    if len(series) > 1:
        names = [tick(each.name, _MAX_NAME) for each in series]
        items = [LegendItem(label=value(name), renderers=both) for name, both in zip(names, drawn, strict=True)]
        legend = Legend(items=items, background_fill_color=None, border_line_color=None, label_text_color=TEXT)
        plot.add_layout(legend, "right")
    return figure_json(plot)


def _draw(plot: plotting.figure, series: PlotSeries, number: int, texts: dict[float, str]) -> list[GlyphRenderer[Any]]:
    """Draw the line, the points and the mark of a series; return the item for its legend entry."""
    colour = _COLOURS[number % len(_COLOURS)]
    marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
    xs = [at for at, _ in series.points]
    ys = [math.nan if value is None else value for _, value in series.points]
    said = [f"{texts.get(at) or significant(at)}, {significant(value)}" for at, value in zip(xs, ys, strict=True)]
    columns = {
        "x": xs,
        "y": ys,
        "name": [display(name) for name in series.names or [series.name] * len(xs)],
        "text": said,
    }
    line = None if series.names else {"line_color": colour, "line_width": 2, "line_join": "round"}
    look: dict[str, Any] = {"x": "x", "y": "y", "marker": marker, "size": 8, "line_color": None, "fill_color": colour}
    drawn = draw(plot, "scatter", columns, line=line, **look)
    if series.mark is not None:
        _ring(plot, xs[series.mark.place], ys[series.mark.place], series.mark.label, colour)
    return drawn


def _ring(plot: plotting.figure, x: float, y: float, label: str, colour: str) -> None:
    source = ColumnDataSource({"x": [x], "y": [y], "label": [tick(label, _MAX_NAME)]})
    plot.scatter("x", "y", source=source, marker="circle", size=18, fill_color=None, line_color=colour, line_width=2)
    plot.text(
        "x", "y", text="label", source=source, x_offset=12, y_offset=-12, text_color=colour, text_font_style="bold"
    )


def _label(axis: PlotAxis) -> str:
    return tick(axis.label, _MAX_NAME) + (" (logarithmic)" if axis.scale == "log" else "")


def _range(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Return the ends of an axis around the values, with some room."""
    low, high = min(values), max(values)
    if scale == "log":
        if low <= 0:
            raise ValueError(f"a logarithmic axis cannot show {low}")
        room = (high / low) ** _PAD if high > low else 2.0
        return low / room, high * room
    room = (high - low) * _PAD or abs(high) * _PAD or 1.0
    return low - room, high + room
