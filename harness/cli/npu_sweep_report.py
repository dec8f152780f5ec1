"""A sweep as table, JSON object, CSV file and plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.cli.npu_plot import Axis as PlotAxis
from harness.cli.npu_plot import Mark, Series, line_plot
from harness.cli.npu_sweep_points import Point, Sweep
from harness.cli.output import milliseconds, print_table
from harness.files import spreadsheet_csv
from harness.text import printable

if TYPE_CHECKING:
    from device_agents.emulated_npu.sweep.axis import Axis
    from device_agents.emulated_npu.sweep.parameters import Value

Metric = Literal["cycles", "milliseconds"]

_BAR = 24
_MOST_REASONS = 10


@dataclass(frozen=True)
class Line:
    """Points that differ in the horizontal axis alone, in its order; `knee` is the place of one of them, if any."""

    name: str
    points: tuple[Point, ...]
    knee: int | None


def metric(sweep: Sweep) -> Metric:
    """What is compared: cycles, or the time where the machines' clocks differ."""
    return "cycles" if len({point.clock_hz for point in sweep.points}) == 1 else "milliseconds"


def horizontal(sweep: Sweep) -> Axis | None:
    """The first parameter with several values; None where the machines are all that varies."""
    return next((axis for axis in sweep.axes if len(axis.values) > 1), None)


def lines(sweep: Sweep) -> tuple[Line, ...]:
    """The points, by everything that varies but the horizontal axis."""
    across = horizontal(sweep)
    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(_line_name(sweep, point, across), []).append(point)
    return tuple(Line(name, tuple(points), _knee(sweep, points, across)) for name, points in groups.items())


def _line_name(sweep: Sweep, point: Point, across: Axis | None) -> str:
    from device_agents.emulated_npu.sweep.axis import shown

    parts = [point.machine] if across is not None and len(sweep.machines) > 1 else []
    parts += [
        f"{axis.key}={shown(axis.key, point.settings[axis.key])}"
        for axis in sweep.axes
        if axis is not across and len(axis.values) > 1
    ]
    return ", ".join(parts)


def _knee(sweep: Sweep, points: Sequence[Point], across: Axis | None) -> int | None:
    from device_agents.emulated_npu.sweep.knee import knee

    if across is None or across.scale == "names":
        return None
    known = [(at, value) for at, point in enumerate(points) if (value := _value(sweep, point)) is not None]
    place = knee([float(points[at].settings[across.key]) for at, _ in known], [value for _, value in known])
    return None if place is None else known[place][0]


def _value(sweep: Sweep, point: Point) -> float | None:
    if point.cycles is None or point.seconds is None:
        return None
    return point.cycles if metric(sweep) == "cycles" else 1e3 * point.seconds


def json_fields(sweep: Sweep) -> dict[str, Any]:
    """The fields of `npu sweep --json`."""
    across, found = horizontal(sweep), lines(sweep)
    return {
        "network": sweep.network,
        "machines": list(sweep.machines),
        "parameters": [{"key": axis.key, "values": list(axis.values), "scale": axis.scale} for axis in sweep.axes],
        "metric": metric(sweep),
        "one_buffer": list(sweep.one_buffer),
        "points": [_fields(point, is_knee) for point, is_knee in _marked(found)],
        "knees": [
            {
                "line": line.name,
                "key": across.key,
                "value": line.points[line.knee].settings[across.key],
                "cycles": line.points[line.knee].cycles,
            }
            for line in found
            if line.knee is not None and across is not None
        ],
        "import_s": sweep.import_s,
        "took_s": sweep.took_s,
    }


def _marked(found: Sequence[Line]) -> Iterator[tuple[Point, bool]]:
    """All points line by line, and whether each is a knee."""
    for line in found:
        for at, point in enumerate(line.points):
            yield point, at == line.knee


def _fields(point: Point, is_knee: bool) -> dict[str, Any]:
    return {
        "machine": point.machine,
        "settings": dict(point.settings),
        "cycles": point.cycles,
        "seconds": point.seconds,
        "mfu_utilisation": point.mfu_utilisation,
        "bound": point.bound,
        "knee": is_knee,
        "compile_s": point.compile_s,
        "timing_s": point.timing_s,
        "reason": point.reason or None,
    }


def points_csv(sweep: Sweep) -> str:
    """A row for every point, a column for every parameter; what a machine cannot is left empty, with the reason."""
    rows: list[dict[str, Any]] = []
    for point, is_knee in _marked(lines(sweep)):
        row = _fields(point, is_knee)
        settings = row.pop("settings")
        rows.append({"machine": row.pop("machine"), **settings, **row})
    return spreadsheet_csv(rows[0], [row.values() for row in rows])


def show(sweep: Sweep) -> None:
    """The table with a bar for every point, and below it the knees and what could not be run."""
    from device_agents.emulated_npu.sweep.axis import shown

    found, several = lines(sweep), len(sweep.machines) > 1
    varying = [axis for axis in sweep.axes if len(axis.values) > 1]
    header = ("machine",) * several + tuple(axis.key for axis in varying)
    largest = max(value for point in sweep.points if (value := _value(sweep, point)) is not None)
    rows = []
    for point, is_knee in _marked(found):
        head = (printable(point.machine, 40),) * several
        head += tuple(shown(axis.key, point.settings[axis.key]) for axis in varying)
        rows.append((*head, *_cells(point), _bar((_value(sweep, point) or 0.0) / largest, is_knee)))
    print_table((*header, "cycles", "ms", "MFU", "bound by", metric(sweep).ljust(_BAR + 7)), rows, left=int(several))
    print()
    for label, text in _summary(sweep, found):
        print(f"{label:<13}{printable(text)}")


def _cells(point: Point) -> tuple[str, ...]:
    if point.cycles is None or point.seconds is None:
        return "", "", "", "cannot be"
    used = "" if point.mfu_utilisation is None else f"{point.mfu_utilisation:.1%}"
    return f"{point.cycles:,.0f}", milliseconds(point.seconds), used, point.bound or ""


def _bar(part: float, is_knee: bool) -> str:
    mark = " ◀ knee" if is_knee else ""
    return ("█" * round(part * _BAR) + mark).ljust(_BAR + 7)


def _summary(sweep: Sweep, found: Sequence[Line]) -> Iterator[tuple[str, str]]:
    from device_agents.emulated_npu.sweep.axis import shown

    across = horizontal(sweep)
    fixed = [f"{axis.key}={shown(axis.key, axis.values[0])}" for axis in sweep.axes if len(axis.values) == 1]
    with_fixed = f" with {', '.join(fixed)}" if fixed else ""
    yield "network", f"{sweep.network} on {', '.join(sweep.machines)}{with_fixed}"
    for line in found:
        if across is not None and across.scale != "names":
            where = f"{line.name}: " if line.name else ""
            yield "knee", where + _knee_text(sweep, line, across.key)
    cannot = [point for point in sweep.points if point.reason]
    for point in cannot[:_MOST_REASONS]:
        settings = ", ".join(f"{key}={shown(key, value)}" for key, value in point.settings.items())
        yield "cannot be", f"{settings or point.machine}: {point.reason}"
    if len(cannot) > _MOST_REASONS:
        yield "", f"and {len(cannot) - _MOST_REASONS} more; --json and --csv have the reasons"
    if sweep.one_buffer:
        yield "one buffer", f"nb_bytes and sb_bytes are set together on {', '.join(sweep.one_buffer)} (shared_buffer)"
    compile_s, timing_s = (
        sum(getattr(point, name) or 0.0 for point in sweep.points) for name in ("compile_s", "timing_s")
    )
    parts = f"import {sweep.import_s:.2f} s, compile {compile_s:.2f} s, timing {timing_s:.2f} s"
    yield "took", f"{sweep.took_s:.2f} s for {len(sweep.points)} machines: {parts}"


def _knee_text(sweep: Sweep, line: Line, key: str) -> str:
    from device_agents.emulated_npu.sweep.axis import shown

    known = [(value, point) for point in line.points if (value := _value(sweep, point)) is not None]
    if len(known) > 1 and len({value for value, _ in known}) == 1:
        return f"none, {key} changes nothing"
    if line.knee is None:
        return "none"
    point = line.points[line.knee]
    now, (best, best_point) = _value(sweep, point) or 0.0, min(known, key=lambda pair: pair[0])
    least = f"the best, {shown(key, best_point.settings[key])}, takes {1 - best / now:.1%} less" if now else ""
    ms_or_cycles = milliseconds(now / 1e3) + " ms" if metric(sweep) == "milliseconds" else f"{now:,.0f} cycles"
    return f"{key}={shown(key, point.settings[key])}, {ms_or_cycles}; {'the best of all' if best == now else least}"


def plot(sweep: Sweep) -> str:
    """The sweep as an SVG file: a line for everything that varies but the horizontal axis, knees marked."""
    from device_agents.emulated_npu.sweep.axis import shown

    across = horizontal(sweep)
    is_log = across is not None and across.scale == "log"
    if across is None:
        ticks = tuple((float(at), printable(name, 20)) for at, name in enumerate(sweep.machines))
        label, key = "machine", ""
    else:
        numbers = _numbers(across)
        ticks = tuple((at, shown(across.key, value)) for at, value in zip(numbers, across.values, strict=True))
        label = key = across.key
    series = []
    for line in lines(sweep):
        values = [_value(sweep, point) for point in line.points]
        marks = () if line.knee is None else (Mark(ticks[line.knee][0], f"knee: {ticks[line.knee][1]}"),)
        drawn = tuple((at, value) for (at, _), value in zip(ticks, values, strict=True))
        series.append(Series(line.name or sweep.network, drawn, marks))
    on = f" on {sweep.machines[0]}" if len(sweep.machines) == 1 else ""
    return line_plot(
        series,
        title=f"{printable(sweep.network, 40)}{on}: {metric(sweep)} by {key or label}",
        x=PlotAxis(label, "log" if is_log else "linear", ticks),
        y=PlotAxis(metric(sweep), "log" if is_log else "linear"),
    )


def _numbers(axis: Axis) -> list[float]:
    """Where the values of an axis lie: at themselves, or side by side where they are no numbers."""

    def number(at: int, value: Value) -> float:
        return float(at) if axis.scale == "names" else float(value)

    return [number(at, value) for at, value in enumerate(axis.values)]
