"""The page of a run on one core: the facts, a table of layers, and figures, each with its caption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.files import write_whole
from harness.npu.run.core_run import CoreRun
from harness.npu.run.roofline_plot import roofline_plot
from harness.npu.run.run_fields import layer_rows
from harness.npu.run.run_page.buffers import buffer_plot
from harness.npu.run.run_page.unit_spans import gantt
from harness.npu.run.run_tables import run_tables
from harness.npu.text_tables import Facts, Table
from harness.report.html import page
from harness.report.networks.layer_figures import LayerBar, bars
from harness.report.page_values import CaptionedFigure, ReportTable, SavedFile
from harness.report.units import display, duration, percent

_TEMPLATE = "run.html.j2"


def write_run(path: Path, run: CoreRun, command: str) -> None:
    """Write the page of a run; raises ConfigurationError if it cannot be written."""
    table, facts = run_tables(run)
    if not isinstance(table, Table) or not isinstance(facts, Facts):
        raise TypeError("a run has a table of layers and facts")
    rows = list(layer_rows(run))
    content = page(
        _TEMPLATE,
        title=f"{display(run.name)} on {display(run.timed.machine.name)}",
        facts=[(label, display(text)) for label, text in facts.lines],
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
    yield CaptionedFigure("What each unit did when; a bar is the work on one layer.", gantt(run.timed))
    if any(row.macs for row in run.rows[:-1]):
        title, figure = roofline_plot(run)
        yield CaptionedFigure(f"{display(title)}. A layer on the roof uses all multipliers or all bandwidth.", figure)
    filled = buffer_plot(run.timed)
    if filled:
        yield CaptionedFigure("Live data in the on-chip memories: written, and still to be read.", filled)
