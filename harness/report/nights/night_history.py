"""The page of all nights: a time series for each network and layer, with the nights on which a level begins marked."""

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from bokeh.models import FixedTicker

from harness.files import write_whole
from harness.nightly.set_history import SetHistory
from harness.report.figures import ACCENT, SECOND, TEXT, WARNING, base_figure, draw, figure_json, tick
from harness.report.html import page
from harness.report.page_values import (
    CaptionedFigure,
    ReportTable,
    SavedFile,
    Unit,
    display,
    duration,
    percent,
    signed_percent,
    unit_for,
)
from harness.slowdowns.findings import UNCHANGED
from harness.slowdowns.subject_history import SubjectHistory
from harness.text import counted

_TEMPLATE = "history.html.j2"
MAX_FIGURES = 40
"""Figures of a set; the other subjects have their curve in the table."""
_LEAST_ROOM = 0.01
"""Height of a figure above and below its levels, as a share: what varies less looks flat."""
_WIDTH, _HEIGHT, _MARGIN = 120.0, 26.0, 3.0
_MOST_TICKS = 8


def write_history(path: Path, sets: Sequence[SetHistory], command: str) -> None:
    """Write the page of these sets; raises ConfigurationError if it cannot be written."""
    write_whole(path, render_history(sets, command).encode("utf-8"))


def render_history(sets: Sequence[SetHistory], command: str) -> str:
    """Return the page as text."""
    sections = [_section(one) for one in sets]
    return page(_TEMPLATE, steps=_steps(sets), sections=sections, saved=_saved(sets), command=command)


def _steps(sets: Sequence[SetHistory]) -> ReportTable:
    """Return the steps of all sets, the newest first."""
    rows = [
        (
            display(history.subject.name),
            signed_percent(step.change),
            step.night,
            display(one.device),
            display(one.set),
            history.subject.kind,
            display(", ".join(step.causes)) or UNCHANGED,
        )
        for one in sets
        for history in one.subjects
        for step in history.steps
    ]
    rows.sort(key=lambda row: row[2], reverse=True)
    header = ("subject", "change", "since", "device", "set", "kind", "likely cause")
    return ReportTable("Steps of all sets, the newest first", header, tuple(rows), words=(0, 2, 3, 4, 5, 6))


def _section(one: SetHistory) -> dict[str, object]:
    """Return the section of one set on one device."""
    shown = [history for history in one.subjects if history.steps or history.subject.kind != "layer"]
    drawn = sorted(shown, key=lambda history: (history.subject.kind == "layer", not history.steps))[:MAX_FIGURES]
    figures = [CaptionedFigure(_caption(history), night_series(history)) for history in drawn]
    left = len(one.subjects) - len(drawn)
    several = f"{len(one.nights)} nights, {one.nights[0]} to {one.nights[-1]}"
    nights = f"{several if len(one.nights) > 1 else one.nights[0]}, {display(one.clock)} clock"
    machine = f". Machine in the last night: {display(one.machine, 400)}" if one.machine else ""
    unit = unit_for(history.nights[-1].latency_s for history in one.subjects if history.subject.kind != "device")
    latency = f"last night, {unit.symbol}"
    return {
        "title": f"{display(one.set)} on {display(one.device)}",
        "nights": f"{nights}{'' if one.subjects else '; a comparison needs at least two nights'}{machine}",
        "header": ("subject", "kind", "operator", latency, "±", "last step", "since", "accepted because"),
        "rows": [_row(one, history, unit) for history in one.subjects],
        "figures": figures,
        "more": f"{counted(left, 'more subject')}: the table has the curves." if left else "",
    }


def _latency(history: SubjectHistory, value: float) -> str:
    return percent(value) if history.subject.kind == "device" else duration(value)


def _row(one: SetHistory, history: SubjectHistory, unit: Unit) -> dict[str, object]:
    """Return the row of a subject; the device as a whole has no latency, its curve shows its relative speed."""
    last, subject = history.nights[-1], history.subject
    step = history.steps[-1] if history.steps else None
    acceptance = one.acceptance(history)
    cells = (
        display(subject.name),
        subject.kind,
        display(subject.op),
        "" if subject.kind == "device" else unit.text(last.latency_s),
        percent(last.halfwidth_s / last.latency_s) if last.latency_s > 0 else "",
        signed_percent(step.change) if step else "",
        step.night if step else "",
        display(acceptance.reason) if acceptance else "",
    )
    is_slower = step is not None and step.change > 0 and acceptance is None
    return {"cells": cells, "curve": _curve(history), "is_slower": is_slower}


def _curve(history: SubjectHistory) -> dict[str, object]:
    """Return a small drawing of a time series: the points of the nights, and the marks of the steps."""
    values = [night.latency_s for night in history.nights]
    held = [*values, *(night.level_s for night in history.nights)]
    middle = (max(held) + min(held)) / 2
    span = max(max(held) - min(held), _LEAST_ROOM * middle) or 1.0
    low = middle - span / 2
    across = (_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)

    def place(at: int, value: float) -> tuple[float, float]:
        height = (_HEIGHT - 2 * _MARGIN) * (value - low) / span
        return round(_MARGIN + at * across, 1), round(_HEIGHT - _MARGIN - height, 1)

    stepped = {step.night for step in history.steps}
    places = [place(at, night.latency_s) for at, night in enumerate(history.nights)]
    levels = [place(at, night.level_s) for at, night in enumerate(history.nights)]
    marks = tuple(spot for spot, night in zip(levels, history.nights, strict=True) if night.night in stepped)
    points, level = (" ".join(f"{x},{y}" for x, y in drawn) for drawn in (places, levels))
    label = f"{display(history.subject.name)}: {_latency(history, min(values))} to {_latency(history, max(values))}"
    return {"points": points, "level": level, "steps": marks, "label": label}


def _caption(history: SubjectHistory) -> str:
    name = f"{history.subject.kind} {display(history.subject.name)}"
    steps = [
        f"{signed_percent(step.change)} on {step.night}"
        + (f" ({display(', '.join(step.causes))})" if step.causes else "")
        for step in history.steps
    ]
    return f"{name[:1].upper()}{name[1:]}: {'; '.join(steps) or 'no step'}."


def _saved(sets: Sequence[SetHistory]) -> SavedFile:
    rows = [
        (one.device, one.set, subject.kind, subject.name, subject.op, *astuple(night))
        for one in sets
        for history in one.subjects
        for subject in [history.subject]
        for night in history.nights
    ]
    header = ("device", "set", "kind", "name", "op", "night", "latency_s", "halfwidth_s", "level_s")
    return SavedFile.csv("nights.csv", header, rows)


def night_series(history: SubjectHistory) -> str:
    """Draw the nights in order; a step is a labelled mark on its first night."""
    nights = history.nights
    is_relative = history.subject.kind == "device"
    unit = Unit("%", 0.01) if is_relative else unit_for(night.latency_s for night in nights)
    values = [night.latency_s / unit.seconds for night in nights]
    lows = [(night.latency_s - night.halfwidth_s) / unit.seconds for night in nights]
    highs = [(night.latency_s + night.halfwidth_s) / unit.seconds for night in nights]
    room = max(0.2 * (max(highs) - min(lows)), _LEAST_ROOM * max(highs))
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
