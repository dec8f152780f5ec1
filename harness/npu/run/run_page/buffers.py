"""How full the on-chip memories are over the time of a run."""

from __future__ import annotations

from device_agents.emulated_npu.inference import TimedProgram
from device_agents.emulated_npu.timing.occupancy import occupancy
from device_agents.emulated_npu.unit_commands import Space
from harness.report.line_plot import PlotAxis, PlotSeries, line_plot
from harness.report.units import unit_for

_SPACES = (Space.NB, Space.SB, Space.HALO)
_PS_PER_S = 1e12
_KIB = 1024
_MOST_POINTS = 1200


def buffer_plot(timed: TimedProgram) -> str:
    """Draw the live bytes of each memory that the program uses, empty if it uses none."""
    unit = unit_for([timed.timing.makespan_ps / _PS_PER_S])
    series = []
    for space in _SPACES:
        times, live = occupancy(timed.timing.schedule, space)
        if not len(times):
            continue
        steps = [(0.0, 0.0)]
        for ps, count in zip(times.tolist(), live.tolist(), strict=True):
            at = ps / _PS_PER_S / unit.seconds
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
