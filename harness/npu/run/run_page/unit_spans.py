"""What each unit of a run did when, as a Gantt chart: a row for each unit, a bar for the work on one layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from device_agents.emulated_npu.inference import TimedProgram
from device_agents.emulated_npu.unit_commands import Command
from harness.report.figures import base_figure, draw, figure_json
from harness.report.units import display, duration, unit_for

_UNITS = ("IO", "MFU", "VFU")
# Okabe and Ito's palette without black: neighbouring layers differ.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442")
_PS_PER_S = 1e12
_FINEST = 1500
"""A pause shorter than this part of the run, 1/1500, does not divide the bar of a layer."""


@dataclass(frozen=True)
class UnitSpan:
    """A unit's work on one layer, by the layer's number, without a visible pause."""

    unit: str
    layer: int
    begin_ps: int
    end_ps: int
    commands: int


def unit_spans(timed: TimedProgram) -> tuple[UnitSpan, ...]:
    """Return the work of every unit in order of time, the IO unit first."""
    schedule, shortest_ps = timed.timing.schedule, timed.timing.makespan_ps // _FINEST
    work: dict[str, list[UnitSpan]] = {unit: [] for unit in _UNITS}
    for index, step in enumerate(schedule.steps):
        command = step.item
        if isinstance(command, Command):
            begin_ps, end_ps = schedule.served_ps[index], schedule.finished_ps[index]
            work[_unit_of(timed, command)].append(UnitSpan("", command.layer, begin_ps, end_ps, 1))
    return tuple(span for unit in _UNITS for span in _joined(unit, work[unit], shortest_ps))


def _unit_of(timed: TimedProgram, command: Command) -> str:
    if command.function.is_transfer:
        return "IO"
    return "MFU" if timed.costs.cost(command).on_mfu else "VFU"


def _joined(unit: str, spans: Sequence[UnitSpan], shortest_ps: int) -> Iterator[UnitSpan]:
    """Yield the spans of a unit; spans of one layer with short pauses between them are joined."""
    held: UnitSpan | None = None
    for span in sorted(spans, key=lambda one: one.begin_ps):
        if held and held.layer == span.layer and span.begin_ps - held.end_ps <= shortest_ps:
            end_ps = max(held.end_ps, span.end_ps)
            held = UnitSpan(unit, held.layer, held.begin_ps, end_ps, held.commands + 1)
            continue
        if held:
            yield held
        held = UnitSpan(unit, span.layer, span.begin_ps, span.end_ps, 1)
    if held:
        yield held


def gantt(timed: TimedProgram) -> str:
    """Draw the work of every unit over the time of the run; neighbouring layers have different colours."""
    spans, makespan_s = unit_spans(timed), timed.timing.makespan_ps / _PS_PER_S
    unit = unit_for([makespan_s])
    scale = _PS_PER_S * unit.seconds
    x_range = (0.0, makespan_s / unit.seconds * 1.01)
    plot = base_figure(240, (f"time, {unit.symbol}", ""), ("linear", "linear"), x_range, (0.4, len(_UNITS) + 0.6))
    heights = {name: len(_UNITS) - at for at, name in enumerate(_UNITS)}
    plot.yaxis.ticker = list(heights.values())
    plot.yaxis.major_label_overrides = {height: name for name, height in heights.items()}
    plot.ygrid.visible = False
    layers = timed.program.layers
    columns = {
        "left": [span.begin_ps / scale for span in spans],
        "right": [span.end_ps / scale for span in spans],
        "y": [heights[span.unit] for span in spans],
        "colour": [_COLOURS[span.layer % len(_COLOURS)] for span in spans],
        "name": [display(layers[span.layer]) if 0 <= span.layer < len(layers) else "no layer" for span in spans],
        "text": [_text(span) for span in spans],
    }
    look: dict[str, Any] = {"height": 0.7, "left": "left", "right": "right", "fill_color": "colour", "line_color": None}
    draw(plot, "hbar", columns, y="y", **look)
    return figure_json(plot)


def _text(span: UnitSpan) -> str:
    begin_s, end_s = span.begin_ps / _PS_PER_S, span.end_ps / _PS_PER_S
    return f"{span.unit}, {duration(begin_s)} to {duration(end_s)}, {span.commands} commands"
