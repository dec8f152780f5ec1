"""Figures of the samples of a table: the fitted plane, its residuals, and the drift of the reference probe."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import BasicTicker, ColumnDataSource, LinearColorMapper
from bokeh.models.glyphs import Image
from bokeh.palettes import Blues256
from bokeh.transform import transform

from harness.lut.table_samples import NullProbe, ReferenceVisit, TableSamples
from harness.report.figures import ACCENT, RULE, SECOND, TEXT, base_figure, draw, figure_json
from harness.report.page_values import CaptionedFigure, display, duration, signed_percent, unit_for
from harness.text import byte_size

_PLANE_STEPS = 64


def sample_figures(samples: TableSamples) -> tuple[CaptionedFigure, ...]:
    """Return the figures of a table's samples; a campaign without null probes or visits lacks theirs."""
    found = []
    if samples.nulls:
        plane = "The plane a · input bytes + b · output bytes + c, and the null probes, without their further terms."
        found.append(
            CaptionedFigure(
                f"{plane} Darker is longer; a fitted probe has the colour behind it.", _plane(samples.nulls)
            )
        )
        residuals = "Residuals of the fit over the fitted total; the band is ±1 %."
        found.append(CaptionedFigure(residuals, _residuals(samples.nulls)))
    if samples.visits:
        drift = f"Drift: each visit to the reference probe of campaign {samples.campaign}, relative to their median."
        off = _changes(samples.visits)
        beyond = sum(abs(one) > _drift_end(off) for one in off)
        cut = f" {beyond} of {len(off)} visits are beyond the axis and drawn at its edge." if beyond else ""
        found.append(CaptionedFigure(drift + cut, _drift(samples.visits)))
    return tuple(found)


def _plane(nulls: Sequence[NullProbe]) -> str:
    """Draw the plane as the colour of the background, over both sizes, and the probes in the same colours."""
    ends = [
        1.05 * max(sizes) or 1.0 for sizes in ([one.input_bytes for one in nulls], [one.output_bytes for one in nulls])
    ]
    a, b, c = _coefficients(nulls)
    low, high = c, c + a * ends[0] + b * ends[1]
    colours = LinearColorMapper(palette=list(reversed(Blues256)), low=low, high=max(high, low + 1e-12))
    labels = f"input bytes, up to {byte_size(ends[0])}", f"output bytes, up to {byte_size(ends[1])}"
    plot = base_figure(380, labels, ("linear", "linear"), (-0.03 * ends[0], ends[0]), (-0.03 * ends[1], ends[1]))
    plot.xaxis.ticker = BasicTicker(desired_num_ticks=3)  # numbers of bytes are long, and phones narrow
    steps = (np.arange(_PLANE_STEPS) + 0.5) / _PLANE_STEPS
    image = c + a * ends[0] * steps[None, :] + b * ends[1] * steps[:, None]
    place = {"x": [0.0], "y": [0.0], "dw": [ends[0]], "dh": [ends[1]]}
    plane = Image(x="x", y="y", dw="dw", dh="dh", image="image", color_mapper=colours, global_alpha=0.75)
    plot.add_glyph(ColumnDataSource({"image": [image], **place}), plane)
    columns = {
        "x": [one.input_bytes for one in nulls],
        "y": [one.output_bytes for one in nulls],
        "value": [one.total_s - one.further_s for one in nulls],
        **_texts(nulls),
    }
    fill = transform("value", colours)
    draw(plot, "scatter", columns, x="x", y="y", marker="circle", size=11, fill_color=fill, line_color=TEXT)
    return figure_json(plot)


def _coefficients(nulls: Sequence[NullProbe]) -> tuple[float, float, float]:
    """Return a, b and c of the fit, which the fitted totals of the probes hold."""
    design = np.array([[one.input_bytes, one.output_bytes, 1.0] for one in nulls])
    plain_s = np.array([one.fitted_s - one.further_s for one in nulls])
    a, b, c = np.linalg.lstsq(design, plain_s, rcond=None)[0]
    return float(a), float(b), float(c)


def _texts(nulls: Sequence[NullProbe]) -> dict[str, list[str]]:
    said = [
        f"input {byte_size(one.input_bytes)}, output {byte_size(one.output_bytes)}; measured {duration(one.total_s)},"
        f" fitted {duration(one.fitted_s)}, residual {signed_percent(_residual(one))}"
        for one in nulls
    ]
    return {"name": [display(one.label) for one in nulls], "text": said}


def _residual(one: NullProbe) -> float:
    return (one.total_s - one.fitted_s) / one.fitted_s if one.fitted_s > 0 else 0.0


def _residuals(nulls: Sequence[NullProbe]) -> str:
    unit = unit_for(one.fitted_s for one in nulls)
    totals = [one.fitted_s / unit.seconds for one in nulls]
    off = [100 * _residual(one) for one in nulls]
    end = 1.15 * max(1.0, *map(abs, off))
    x_range = (0.0, 1.05 * max(totals))
    plot = base_figure(260, (f"fitted total, {unit.symbol}", "residual, %"), ("linear", "linear"), x_range, (-end, end))
    plot.varea(x=list(x_range), y1=[-1.0, -1.0], y2=[1.0, 1.0], fill_color=RULE, fill_alpha=0.5)
    plot.line(list(x_range), [0.0, 0.0], line_color=TEXT, line_dash="dashed", line_alpha=0.8)
    columns = {"x": totals, "y": off, **_texts(nulls)}
    draw(plot, "scatter", columns, x="x", y="y", marker="circle", size=9, line_color=ACCENT, fill_color=ACCENT)
    return figure_json(plot)


def _changes(visits: Sequence[ReferenceVisit]) -> list[float]:
    """Return the change of each visit from the median of all, in per cent."""
    middle_s = statistics.median(one.latency_s for one in visits)
    return [100 * (one.latency_s / middle_s - 1) for one in visits]


def _drift_end(off: Sequence[float]) -> float:
    """Return the end of the axis, which single disturbed visits do not stretch."""
    usual = sorted(map(abs, off))[int(0.9 * (len(off) - 1))]
    return 3 * max(0.5, usual)


def _drift(visits: Sequence[ReferenceVisit]) -> str:
    off = _changes(visits)
    end = _drift_end(off)
    last_s = max(one.elapsed_s for one in visits) or 1.0
    plot = base_figure(
        240, ("time since the first visit, s", "change, %"), ("linear", "linear"), (0.0, 1.02 * last_s), (-end, end)
    )
    plot.line([0.0, 1.02 * last_s], [0.0, 0.0], line_color=TEXT, line_dash="dashed", line_alpha=0.8)
    said = [
        f"after {one.elapsed_s:,.1f} s: {duration(one.latency_s)}, {signed_percent(change / 100)}"
        for one, change in zip(visits, off, strict=True)
    ]
    names = [f"visit {at}" for at in range(1, len(visits) + 1)]
    shown = [min(end, max(-end, one)) for one in off]
    columns = {"x": [one.elapsed_s for one in visits], "y": shown, "name": names, "text": said}
    look: dict[str, Any] = {"x": "x", "y": "y", "marker": "circle", "size": 6, "line_color": SECOND}
    look["fill_color"] = SECOND
    draw(plot, "scatter", columns, line={"line_color": SECOND, "line_alpha": 0.5}, **look)
    return figure_json(plot)
