"""The roofline plot of a run: the speed of each layer over its multiply-adds for each byte of DDR."""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.reports.statistics import LayerRow
from harness.errors import InputError
from harness.npu.run.core_run import CoreRun
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot
from harness.text import printable

_GIGA = 1e9
_WITHOUT_BYTES = 4.0
"""Layers without a byte of DDR stand at this multiple of the largest intensity."""


def roofline_plot(run: CoreRun) -> tuple[str, str]:
    """Return title and figure; raises InputError if no layer has multiply-adds.

    The roof is what multipliers and bandwidth of DDR allow. A layer's time is its latency, or the busy time of its
    units if that is more because others hide it; so no layer of the matrix unit is above the roof.
    """
    machine = run.timed.machine
    rows = [row for row in run.rows[:-1] if row.macs]
    if not rows:
        raise InputError(f"No layer of {run.name} has multiply-adds", next_step="Omit --roofline")
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
