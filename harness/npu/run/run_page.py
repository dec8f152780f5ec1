"""The page of a run on one core: the facts, a table of layers, and figures, each with its caption."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.inference import TimedProgram
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.reports.statistics import LayerRow
from device_agents.emulated_npu.timing.occupancy import occupancy
from device_agents.emulated_npu.unit_commands import Command, Space
from harness.files import write_whole
from harness.npu.run.core_run import CoreRun
from harness.npu.run.run_fields import layer_rows
from harness.npu.run.run_tables import run_tables
from harness.report.figures import base_figure, draw, figure_json
from harness.report.html import page
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot
from harness.report.networks.layer_figures import LayerBar, bars
from harness.report.page_values import CaptionedFigure, ReportTable, SavedFile, display, duration, percent, unit_for
from harness.text import Table, counted, printable

_TEMPLATE = "run.html.j2"
_SPACES = (Space.NB, Space.SB, Space.HALO)
_KIB = 1024
_MOST_POINTS = 1200
_UNITS = ("IO", "MFU", "VFU")
# Okabe and Ito's palette without black: neighbouring layers differ.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442")
_FINEST = 1500
"""A pause shorter than this part of the run, 1/1500, does not divide the bar of a layer."""
_GIGA = 1e9
_WITHOUT_BYTES = 4.0
"""Layers without a byte of DDR stand at this multiple of the largest intensity."""


def write_run(path: Path, run: CoreRun, command: str) -> None:
    """Write the page of a run; raises ConfigurationError if it cannot be written."""
    table, facts = run_tables(run)
    rows = list(layer_rows(run))
    content = page(
        _TEMPLATE,
        title=f"{display(run.name)} on {display(run.timed.machine.name)}",
        facts=[(label, display(text)) for label, text in facts],
        layers=_layer_table(table),
        saved=SavedFile.csv("layers.csv", list(rows[0]) if rows else ["layer"], [list(row.values()) for row in rows]),
        pictures=list(_pictures(run)),
        command=command,
    )
    write_whole(path, content.encode("utf-8"))


def _layer_table(table: Table) -> ReportTable:
    *rows, total = (tuple(map(display, row)) for row in table.rows)
    words = (*range(table.left), table.header.index("bound by"))
    return ReportTable("Layers in order of execution", tuple(table.header), tuple(rows), words, total)


def _pictures(run: CoreRun) -> Iterator[CaptionedFigure]:
    hertz = run.timed.machine.clock_hz
    drawn = [
        LayerBar(
            display(row.name),
            f"{duration(row.cycles / hertz)}, {percent(row.cycles / run.timed.cycles)}, bound by {row.bound}",
            row.cycles / hertz,
        )
        for row in run.rows[:-1]
    ]
    yield CaptionedFigure("Latency of the layers: every cycle of the run belongs to one of them.", bars(drawn))
    yield CaptionedFigure("Work of each unit over time; a bar is the work on one layer.", gantt(run.timed))
    if any(row.macs for row in run.rows[:-1]):
        title, figure = _roofline_plot(run)
        yield CaptionedFigure(f"{display(title)}. A layer on the roof uses all multipliers or all bandwidth.", figure)
    filled = buffer_plot(run.timed)
    if filled:
        yield CaptionedFigure("Live data in the on-chip memories: written, and still to be read.", filled)


def buffer_plot(timed: TimedProgram) -> str:
    """Draw the live bytes of each memory that the program uses, empty if it uses none."""
    unit = unit_for([timed.timing.makespan_ps / PS_PER_S])
    series = []
    for space in _SPACES:
        times, live = occupancy(timed.timing.schedule, space)
        if not len(times):
            continue
        steps = [(0.0, 0.0)]
        for ps, count in zip(times.tolist(), live.tolist(), strict=True):
            at = ps / PS_PER_S / unit.seconds
            steps += [(at, steps[-1][1]), (at, count / _KIB)]
        series.append(PlotSeries(f"{space.name} of {_size(timed, space):,} KiB", _thinned(steps)))
    if not series:
        return ""
    return line_plot(series, PlotAxis(f"time, {unit.symbol}"), PlotAxis("live data, KiB"))


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return at most about 1,200 points; of points close to each other the fullest is kept."""
    step = -(-len(points) // _MOST_POINTS)
    groups = (points[at : at + step] for at in range(0, len(points), step))
    return tuple(max(group, key=lambda point: point[1]) for group in groups)


def _size(timed: TimedProgram, space: Space) -> int:
    machine = timed.machine
    sizes = {Space.NB: machine.nb_bytes, Space.SB: machine.sb_bytes, Space.HALO: machine.halo_bytes}
    return sizes[space] // _KIB


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
    spans, makespan_s = unit_spans(timed), timed.timing.makespan_ps / PS_PER_S
    unit = unit_for([makespan_s])
    scale = PS_PER_S * unit.seconds
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
    begin_s, end_s = span.begin_ps / PS_PER_S, span.end_ps / PS_PER_S
    return f"{span.unit}, {duration(begin_s)} to {duration(end_s)}, {counted(span.commands, 'command')}"


def _roofline_plot(run: CoreRun) -> tuple[str, str]:
    """Return title and figure, for a run with a layer that has multiply-adds.

    The roof is what multipliers and bandwidth of DDR allow. A layer's time is its latency, or the busy time of its
    units if that is longer because other layers hide it. So no layer of the matrix unit is above the roof.
    """
    machine = run.timed.machine
    rows = [row for row in run.rows[:-1] if row.macs]
    known = [row.macs / _ddr_bytes(row) for row in rows if _ddr_bytes(row)]
    ridge = _peak(machine) / machine.ddr.bytes_per_s
    far = _WITHOUT_BYTES * max([*known, ridge])
    low = min([*known, ridge]) / 2
    roof = tuple((at, min(_peak(machine), at * machine.ddr.bytes_per_s) / _GIGA) for at in (low, ridge, far))
    series = [PlotSeries(f"roof of {machine.name}", roof)]
    for name, chosen in (
        ("layers on the MFU", [row for row in rows if row.mfu_busy_cycles]),
        ("layers on the VFU", [row for row in rows if not row.mfu_busy_cycles]),
    ):
        if chosen:
            series.append(_layers(name, chosen, machine, far))
    title = f"{printable(run.name, 40)} on {machine.name}: roofline of layers"
    return title, line_plot(series, PlotAxis("MACs per byte of DDR", "log"), PlotAxis("GMAC/s", "log"))


def _layers(name: str, rows: Sequence[LayerRow], machine: Machine, far: float) -> PlotSeries:
    points, names = [], []
    for row in rows:
        moved = _ddr_bytes(row)
        cycles = max(row.cycles, row.io_busy_cycles, row.mfu_busy_cycles, row.vfu_busy_cycles)
        points.append((row.macs / moved if moved else far, row.macs * machine.clock_hz / cycles / _GIGA))
        names.append(row.name if moved else f"{row.name} (no byte of DDR)")
    return PlotSeries(name, tuple(points), names=tuple(names))


def _peak(machine: Machine) -> float:
    """Return the multiply-adds per second of the matrix unit."""
    return float(machine.mfu.multipliers * machine.clock_hz)


def _ddr_bytes(row: LayerRow) -> int:
    return row.ddr_read_bytes + row.ddr_written_bytes
