"""Figures of one network's layers: in order of execution, and how few of them take most of the time."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh import plotting
from bokeh.models import BasicTicker

from harness.report.figures import ACCENT, RULE, SECOND, TEXT, WARNING, base_figure, draw, figure_json
from harness.report.page_values import Unit, percent, unit_for

MAX_BARS = 300


@dataclass(frozen=True)
class LayerBar:
    """A layer in a figure with the text of its tooltip; the latency is None if it is unknown.

    `is_overhead` marks the overhead of host and transfers, which is drawn like a layer, in another colour.
    """

    name: str
    text: str
    latency_s: float | None
    is_overhead: bool = False


@dataclass(frozen=True)
class _Column:
    """A bar over the places from `first` on, which `bars` share; `height` is in the unit of the axis."""

    first: int
    bars: Sequence[LayerBar]
    height: float

    @property
    def colour(self) -> tuple[str, float]:
        if any(bar.latency_s is None for bar in self.bars):
            return WARNING, 0.3
        return (SECOND, 0.9) if self.bars[0].is_overhead else (ACCENT, 0.9)


def bars(layers: Sequence[LayerBar]) -> str:
    """Draw layers in the given order; above `MAX_BARS` layers neighbours share a bar, the overhead never does."""
    unit = unit_for(bar.latency_s or 0.0 for bar in layers)
    own = [bar for bar in layers if not bar.is_overhead]
    step = math.ceil(len(own) / MAX_BARS) or 1
    groups = [(at, own[at : at + step]) for at in range(0, len(own), step)]
    groups += [(len(own) + at, [bar]) for at, bar in enumerate(bar for bar in layers if bar.is_overhead)]
    columns = [_Column(at, group, sum(bar.latency_s or 0.0 for bar in group) / unit.seconds) for at, group in groups]
    top = 1.05 * max((column.height for column in columns), default=0.0) or 1.0
    label = f"latency, {unit.symbol}" if step == 1 else f"latency of {step} layers, {unit.symbol}"
    spans = (0.5, len(layers) + 0.5), (0.0, top)
    plot = base_figure(240, ("layer, in order of execution", label), ("linear", "linear"), *spans)
    _count_layers_along(plot)
    plot.xgrid.visible = False
    for colour in dict.fromkeys(column.colour for column in columns):
        _draw(plot, [column for column in columns if column.colour == colour], top, unit)
    return figure_json(plot)


def _count_layers_along(plot: plotting.figure) -> None:
    """Label whole numbers alone on the horizontal axis."""
    plot.xaxis.ticker = BasicTicker(min_interval=1)


def _draw(plot: plotting.figure, columns: Sequence[_Column], top: float, unit: Unit) -> None:
    """Draw bars of one colour; one with an unknown layer is as high as the figure."""
    colour, alpha = columns[0].colour
    texts = [_tooltip(column, unit) for column in columns]
    values = {
        "x": [column.first + (len(column.bars) + 1) / 2 for column in columns],
        "top": [top if colour == WARNING else column.height for column in columns],
        "width": [0.85 * len(column.bars) for column in columns],
        "name": [name for name, _ in texts],
        "text": [text for _, text in texts],
    }
    look: dict[str, Any] = {"x": "x", "top": "top", "width": "width", "color": colour, "alpha": alpha, "line_width": 0}
    draw(plot, "vbar", values, mode="vline", **look)


def _tooltip(column: _Column, unit: Unit) -> tuple[str, str]:
    first, group = column.first + 1, column.bars
    if len(group) == 1:
        return group[0].name if group[0].is_overhead else f"{first}: {group[0].name}", group[0].text
    slowest = max(group, key=lambda bar: bar.latency_s or 0.0)
    unknown = sum(bar.latency_s is None for bar in group)
    together = f"{unit.text(column.height * unit.seconds)} {unit.symbol} together"
    text = together + (f", {unknown} unknown" if unknown else "")
    return f"layers {first} to {first + len(group) - 1}", f"{text}; slowest: {slowest.name}, {slowest.text}"


def pareto(layers: Sequence[LayerBar]) -> str:
    """Draw the share of the time that the slowest layers take together, over their number; needs a known layer."""
    known = sorted((bar for bar in layers if bar.latency_s), key=lambda bar: -(bar.latency_s or 0.0))
    reached = list(itertools.accumulate(bar.latency_s or 0.0 for bar in known))
    shares = [100 * one / reached[-1] for one in reached]
    labels = "number of layers, slowest first", "share of the time, %"
    plot = base_figure(240, labels, ("linear", "linear"), (0.0, len(known) + 0.5), (0.0, 104.0))
    _count_layers_along(plot)
    plot.line([0, len(known)], [80, 80], line_color=TEXT, line_dash="dashed", line_alpha=0.6)
    places = list(range(1, len(known) + 1))
    said = [f"{bar.text}; together {percent(share / 100)}" for bar, share in zip(known, shares, strict=True)]
    columns = {"x": places, "y": shares, "name": [f"{at}: {bar.name}" for at, bar in enumerate(known, 1)], "text": said}
    plot.varea(x=[0, *places], y1=[0.0] * (len(known) + 1), y2=[0.0, *shares], fill_color=RULE, fill_alpha=0.5)
    line = {"line_color": ACCENT, "line_width": 2}
    draw(plot, "scatter", columns, line=line, x="x", y="y", marker="circle", size=6, line_color=None, fill_color=ACCENT)
    return figure_json(plot)
