"""The figure of one subject over the nights: latencies with intervals, the level of each night, and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.report.figures import ACCENT, SECOND, TEXT, WARNING, base_figure, draw, figure_json, tick
from harness.report.units import Unit, signed_percent, unit_for

if TYPE_CHECKING:
    from harness.slowdowns.subject_history import SubjectHistory

_MOST_TICKS = 8


def night_series(history: SubjectHistory) -> str:
    """Draw the nights in order; a step is a labelled mark on its first night."""
    from bokeh.models import FixedTicker

    nights = history.nights
    is_relative = history.subject.kind == "device"
    unit = Unit("%", 0.01) if is_relative else unit_for(night.latency_s for night in nights)
    values = [night.latency_s / unit.seconds for night in nights]
    lows = [(night.latency_s - night.halfwidth_s) / unit.seconds for night in nights]
    highs = [(night.latency_s + night.halfwidth_s) / unit.seconds for night in nights]
    room = 0.2 * (max(highs) - min(lows)) or 0.01 * max(highs)
    label = f"{'relative latency' if is_relative else 'latency'}, {unit.symbol}"
    ranges = (-0.5, len(nights) - 0.5), (min(lows) - room, max(highs) + room)
    plot = base_figure(220, ("night", label), ("linear", "linear"), *ranges)
    every = -(-len(nights) // _MOST_TICKS)
    plot.xaxis.ticker = FixedTicker(ticks=list(range(0, len(nights), every)))
    plot.xaxis.major_label_overrides = {at: tick(nights[at].night[5:]) for at in range(0, len(nights), every)}
    places = list(range(len(nights)))
    levels = [night.level_s / unit.seconds for night in nights]
    plot.step(places, levels, mode="center", line_color=SECOND, line_width=3, line_alpha=0.7)
    plot.segment(x0=places, y0=lows, x1=places, y1=highs, line_color=ACCENT, line_width=2)
    texts = [
        f"{unit.text(one.latency_s)} ± {unit.text(one.halfwidth_s, 2)} {unit.symbol}, level {unit.text(one.level_s)}"
        for one in nights
    ]
    columns = {"x": places, "y": values, "name": [night.night for night in nights], "text": texts}
    draw(plot, "scatter", columns, x="x", y="y", marker="circle", size=8, line_color=None, fill_color=ACCENT)
    at_night = {night.night: at for at, night in enumerate(nights)}
    for step in history.steps:
        at = at_night[step.night]
        colour = WARNING if step.change > 0 else TEXT
        plot.line([at - 0.5, at - 0.5], list(ranges[1]), line_color=colour, line_dash="dashed")
        size = signed_percent(step.change)
        plot.text(
            [at - 0.45], [ranges[1][1]], text=[size], text_color=colour, text_baseline="top", text_font_size="12px"
        )
    return figure_json(plot)
