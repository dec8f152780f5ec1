"""Figures as Bokeh documents in JSON; the page draws them when they become visible.

Colours are placeholders (`COLOURS`) that the page replaces with those of the reader's colour scheme. Names from files
appear only as hover data, which BokehJS escapes, and as tick labels without the characters that mark a formula in
BokehJS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bokeh import plotting
from bokeh.embed import json_item
from bokeh.models import BasicTickFormatter, ColumnDataSource, HoverTool, LogTickFormatter, NoOverlap, Range1d
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from harness.report.page_values import ELLIPSIS, Unit, display, unit_for

TEXT, RULE, ACCENT, SECOND, WARNING = "#fe0001", "#fe0002", "#fe0003", "#fe0004", "#fe0005"
COLOURS = {TEXT: "--muted", RULE: "--rule", ACCENT: "--accent", SECOND: "--second", WARNING: "--warning"}
"""Placeholder to the custom property of the style sheet that replaces it."""
LOG_RATIO = 20.0
"""Axes are logarithmic from this ratio of the largest to the smallest value on."""
MAX_ROWS = 60
MAX_TICK = 20
_FONT = "12px"
_LEAST_TIME_MS = 1e9
"""Points in time are milliseconds since 1970, far above this; no other number of a figure is."""
_TOOLTIP = (
    '<div style="margin:-5px;padding:6px 10px;max-width:22rem;overflow-wrap:anywhere;'
    'font:13px/1.45 system-ui,sans-serif;background:var(--panel);color:var(--ink)"><b>@name</b><br>@text</div>'
)
Kind = Literal["estimate", "partial", "naive"]
Scale = Literal["log", "linear"]


@dataclass(frozen=True)
class NetworkPoint:
    """A network in a figure: a value with its interval, in seconds or as a fraction, and the text of its tooltip."""

    name: str
    text: str
    value: float
    low: float
    high: float
    kind: Kind = "estimate"
    against: float = 0.0


def compare(points: Sequence[NetworkPoint], how: str = "measured", what: str = "estimated") -> str:
    """Draw latency, labelled `what`, against the one in `against`, labelled `how`, with bands of 5 and 10 %."""
    unit = unit_for(point.against for point in points)
    every = [value for point in points for value in (point.low, point.high, point.value, point.against) if value > 0]
    low, high, log = _bounds(every, unit)
    labels = f"{how}, {unit.symbol}", f"{what}, {unit.symbol}"
    scale: Scale = "log" if log else "linear"
    plot = base_figure(380, labels, (scale, scale), (low, high), (low, high))
    ends = [low, high]
    for band in (0.1, 0.05):
        below, above = ([factor * end for end in ends] for factor in (1 - band, 1 + band))
        plot.varea(x=ends, y1=below, y2=above, fill_color=RULE, fill_alpha=0.45)
    plot.line(ends, ends, line_color=TEXT, line_dash="dashed", line_alpha=0.8)
    scaled = [(point, point.against / unit.seconds, point.value / unit.seconds) for point in points]
    drawn = [(point, x) for point, x, _ in scaled if point.kind == "estimate"]
    whiskers = [(x, max(low, point.low / unit.seconds), x, point.high / unit.seconds) for point, x in drawn]
    _marks(plot, scaled, whiskers)
    return figure_json(plot)


def latency_rows(points: Sequence[NetworkPoint], label: str) -> str:
    """Draw one row per network, with its latencies along the axis."""
    unit = unit_for(point.value for point in points)
    low, high, log = _bounds([value for value in _values(points) if value > 0], unit)
    return figure_json(_rows(points, label, unit, (low, high), "log" if log else "linear"))


def error_rows(points: Sequence[NetworkPoint], label: str) -> str:
    """Draw one row per network, with its relative errors along the axis and a line at zero."""
    unit = Unit("%", 0.01)
    smallest, largest = min(0.0, *_values(points)), max(0.0, *_values(points))
    margin = max(0.08 * (largest - smallest), 0.002)
    ends = (smallest - margin) / unit.seconds, (largest + margin) / unit.seconds
    plot = _rows(points, label, unit, ends, "linear")
    top = len({point.name for point in points}) + 1
    plot.line([0, 0], [0, top], line_color=TEXT, line_dash="dashed", line_alpha=0.8, level="underlay")
    return figure_json(plot)


def _values(points: Sequence[NetworkPoint]) -> list[float]:
    return [value for point in points for value in (point.low, point.high, point.value)]


def _rows(
    points: Sequence[NetworkPoint], label: str, unit: Unit, ends: tuple[float, float], scale: Scale
) -> plotting.figure:
    names = list(dict.fromkeys(point.name for point in points))
    heights = {name: len(names) - at for at, name in enumerate(names)}
    labels = f"{label}, {unit.symbol}", ""
    plot = base_figure(70 + 30 * len(names), labels, (scale, "linear"), ends, (0.4, len(names) + 0.6))
    plot.yaxis.ticker = list(heights.values())
    plot.yaxis.major_label_overrides = {height: tick(name) for name, height in heights.items()}
    plot.ygrid.visible = False
    plot.toolbar_location = None
    scaled = [(point, point.value / unit.seconds, float(heights[point.name])) for point in points]
    drawn = [(point, y) for point, _, y in scaled if point.kind == "estimate"]
    whiskers = [(max(ends[0], point.low / unit.seconds), y, point.high / unit.seconds, y) for point, y in drawn]
    _marks(plot, scaled, whiskers)
    return plot


def tick(name: str, limit: int = MAX_TICK) -> str:
    """Return a short label that BokehJS cannot take for a formula."""
    plain = display(name).replace("$", "\N{FULLWIDTH DOLLAR SIGN}").replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}")
    return plain if len(plain) <= limit else plain[: limit - 1] + ELLIPSIS


def _bounds(values: Sequence[float], unit: Unit) -> tuple[float, float, bool]:
    """Return the ends of an axis of latencies, and whether it is logarithmic."""
    smallest, largest = (min(values), max(values)) if values else (unit.seconds, unit.seconds)
    log = largest >= LOG_RATIO * smallest
    low, high = (smallest / 1.5, largest * 1.5) if log else (0.0, largest * 1.12)
    return low / unit.seconds, high / unit.seconds, log


def base_figure(
    height: int,
    labels: tuple[str, str],
    scales: tuple[Scale, Scale],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> plotting.figure:
    """Return an empty figure as wide as the page, in placeholder colours; dragging scrolls the page, as on phones."""
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        min_border_right=12,
        tools="box_zoom,reset",
        active_drag=None,
        toolbar_location="above",
        x_axis_type=scales[0],
        y_axis_type=scales[1],
        x_axis_label=labels[0],
        y_axis_label=labels[1] or None,
        x_range=Range1d(start=x_range[0], end=x_range[1]),
        y_range=Range1d(start=y_range[0], end=y_range[1]),
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    plot.toolbar.logo = None
    plot.grid.grid_line_color = RULE
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = RULE
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = TEXT
        axis.major_label_text_font_size = axis.axis_label_text_font_size = _FONT
        axis.major_label_text_font = axis.axis_label_text_font = "system-ui, sans-serif"
        axis.axis_label_text_font_style = "normal"
    plot.xaxis.major_label_policy = NoOverlap()
    for axis, scale in zip((plot.xaxis, plot.yaxis), scales, strict=True):
        log = scale == "log"
        axis.formatter = LogTickFormatter(min_exponent=5) if log else BasicTickFormatter(use_scientific=False)
    return plot


def _marks(
    plot: plotting.figure,
    scaled: Sequence[tuple[NetworkPoint, float, float]],
    whiskers: Sequence[tuple[float, float, float, float]],
) -> None:
    """Draw whiskers, then a marker for each point by its kind."""
    ends: tuple[Any, ...] = tuple(zip(*whiskers, strict=True)) if whiskers else ((), (), (), ())
    x0, y0, x1, y1 = (list(column) for column in ends)
    plot.segment(x0=x0, y0=y0, x1=x1, y1=y1, line_color=ACCENT, line_width=2)
    looks: Mapping[Kind, tuple[str, str, float]] = {
        "naive": ("triangle", SECOND, 0.0),
        "partial": ("inverted_triangle", WARNING, 0.0),
        "estimate": ("circle", ACCENT, 0.9),
    }
    for kind, (marker, colour, alpha) in looks.items():
        chosen = [item for item in scaled if item[0].kind == kind]
        columns = {
            "x": [x for _, x, _ in chosen],
            "y": [y for _, _, y in chosen],
            "name": [display(point.name) for point, _, _ in chosen],
            "text": [point.text for point, _, _ in chosen],
        }
        look: dict[str, Any] = {"marker": marker, "size": 10, "line_color": colour, "fill_color": colour}
        draw(plot, "scatter", columns, x="x", y="y", fill_alpha=alpha, **look)


def draw(
    plot: plotting.figure,
    kind: str,
    columns: Mapping[str, Any],
    *,
    mode: Literal["mouse", "vline"] = "mouse",
    line: Mapping[str, Any] | None = None,
    **look: Any,
) -> list[GlyphRenderer[Any]]:
    """Draw glyphs of a kind, such as `scatter`, by columns; the mouse shows the columns `name` and `text`.

    `look` is the appearance of the glyphs, `line` that of a line through their x and y, if there is one. Returns the
    line and the glyphs.
    """
    source = ColumnDataSource(dict(columns))
    lines = [] if line is None else [plot.line("x", "y", source=source, **line)]
    glyphs = getattr(plot, kind)(source=source, **look)
    plot.add_tools(HoverTool(renderers=[glyphs], tooltips=_TOOLTIP, mode=mode, visible=False))
    return [*lines, glyphs]


def figure_json(plot: plotting.figure) -> str:
    """Return the figure as the JSON that the page embeds."""
    return json.dumps(_rounded(json_item(plot)), allow_nan=False, separators=(",", ":"))


def _rounded(document: Any) -> Any:
    """Return a document with seven digits in each number, more than a figure shows; points in time keep all."""
    if isinstance(document, dict):
        return {name: _rounded(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [_rounded(value) for value in document]
    if isinstance(document, float) and abs(document) < _LEAST_TIME_MS:
        return float(f"{document:.7g}")
    return document
