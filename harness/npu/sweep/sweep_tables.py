"""A sweep as the fields of a JSON object, CSV rows, text tables and a plot, with the knees of its curves."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.npu.sweep.grid import SweepAxis, in_unit, scale_of, shown
from harness.npu.sweep.points import Sweep, SweepPoint, pareto
from harness.report.figures import Scale
from harness.report.line_plot import Mark, PlotAxis, PlotSeries, line_plot, scale_of_range
from harness.text import Part, Table, four_digits, milliseconds, printable

Metric = Literal["cycles", "milliseconds"]
_BAR = 24
_UNITS: Mapping[Metric, str] = {"cycles": "cycles", "milliseconds": "ms"}
_MOST_REASONS = 10
_MOST_NAMES = 3
_MOST_SLOWER = 2
SENSITIVITY = 0.1
"""A curve whose distance from its chord is at most this fraction of its height has no knee."""
FLAT = 0.02
"""A curve whose worst value is within this fraction of its best has no knee."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class SweepLine:
    """Points that differ only in the horizontal axis, in its order; `knee` is the index of the knee, if any."""

    name: str
    points: tuple[SweepPoint, ...]
    knee: int | None


def metric(sweep: Sweep) -> Metric:
    """Return what is compared: cycles, or the time if the machines have different clocks."""
    return "cycles" if len({point.clock_hz for point in sweep.points}) == 1 else "milliseconds"


def horizontal(sweep: Sweep) -> SweepAxis | None:
    """Return the first parameter with several values; None if only the machines vary."""
    return next((axis for axis in sweep.axes if len(axis.values) > 1), None)


def lines(sweep: Sweep) -> tuple[SweepLine, ...]:
    """Return the points in groups of equal parameters, apart from the horizontal axis."""
    across = horizontal(sweep)
    groups: dict[str, list[SweepPoint]] = {}
    for point in sweep.points:
        groups.setdefault(_line_name(sweep, point, across), []).append(point)
    return tuple(SweepLine(name, tuple(points), _knee(sweep, points, across)) for name, points in groups.items())


def _line_name(sweep: Sweep, point: SweepPoint, across: SweepAxis | None) -> str:
    parts = [point.machine] if across is not None and len(sweep.machines) > 1 else []
    parts += [
        f"{axis.key}={shown(axis.key, point.settings[axis.key])}"
        for axis in sweep.axes
        if axis is not across and len(axis.values) > 1
    ]
    return ", ".join(parts)


def _knee(sweep: Sweep, points: Sequence[SweepPoint], across: SweepAxis | None) -> int | None:
    if across is None or across.scale == "names":
        return None
    known = [(at, value) for at, point in enumerate(points) if (value := _value(sweep, point)) is not None]
    place = knee([float(points[at].settings[across.key]) for at, _ in known], [value for _, value in known])
    return None if place is None else known[place][0]


def _value(sweep: Sweep, point: SweepPoint) -> float | None:
    if point.cycles is None or point.seconds is None:
        return None
    return point.cycles if metric(sweep) == "cycles" else 1e3 * point.seconds


def json_fields(sweep: Sweep) -> dict[str, Any]:
    """Return the fields of `npu sweep --json`."""
    across, found = horizontal(sweep), lines(sweep)
    return {
        "network": sweep.network,
        "machines": list(sweep.machines),
        "parameters": [{"key": axis.key, "values": list(axis.values), "scale": axis.scale} for axis in sweep.axes],
        "metric": metric(sweep),
        "cost": sweep.cost,
        "one_buffer": list(sweep.one_buffer),
        "tied": {key: list(names) for key, names in sweep.tied.items()},
        "points": [_fields(sweep, point, is_knee) for point, is_knee in _marked(found)],
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


def _marked(curves: Sequence[SweepLine]) -> Iterator[tuple[SweepPoint, bool]]:
    """Yield all points line by line, and whether each is a knee."""
    for line in curves:
        for at, point in enumerate(line.points):
            yield point, at == line.knee


def _front(sweep: Sweep) -> tuple[SweepPoint, ...]:
    return tuple(sweep.points[at] for at in pareto(sweep.points, sweep.cost))


def _fields(sweep: Sweep, point: SweepPoint, is_knee: bool) -> dict[str, Any]:
    own = {name: value for name, value in asdict(point).items() if name not in ("clock_hz", "next_step")}
    marks = {"knee": is_knee, "pareto": any(point is each for each in _front(sweep))}
    return {**own, "reason": point.reason or None, **marks}


def point_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the rows of the CSV file: one for every point, with a column for every parameter."""
    rows = []
    for point, is_knee in _marked(lines(sweep)):
        fields = _fields(sweep, point, is_knee)
        settings = fields.pop("settings")
        slower = fields.pop("slower_than") or {}
        fields |= {"slower_by": slower.get("slower_by"), "slower_because": slower.get("because")}
        rows.append({"machine": fields.pop("machine"), **settings, **fields})
    return rows


def sweep_tables(sweep: Sweep) -> list[Part]:
    """Return the table with a bar for every point; then the knees and the machines that cannot run the network."""
    found, several = lines(sweep), len(sweep.machines) > 1
    varying = [axis for axis in sweep.axes if len(axis.values) > 1]
    largest = max(value for point in sweep.points if (value := _value(sweep, point)) is not None)
    front, rows = _front(sweep), []
    for point, is_knee in _marked(found):
        head = (printable(point.machine, 40),) * several
        head += tuple(shown(axis.key, point.settings[axis.key]) for axis in varying)
        marks = ["knee"] * is_knee + ["Pareto"] * any(point is each for each in front)
        rows.append((*head, *_cells(point), _bar((_value(sweep, point) or 0.0) / largest, marks)))
    header = ("machine",) * several + tuple(axis.key for axis in varying)
    header += ("mm²", "cycles", "ms", "µJ", "MFU", "bound by", f"{_UNITS[metric(sweep)]} as bars")
    return [Table(header, rows, left=int(several), bars=True), tuple(_summary(sweep, found))]


def _cells(point: SweepPoint) -> tuple[str, ...]:
    if point.cycles is None or point.seconds is None:
        return _number(point.area_mm2), "", "", "", "", "cannot run"
    used = "" if point.mfu_utilisation is None else f"{point.mfu_utilisation:.1%}"
    times = f"{point.cycles:,.0f}", milliseconds(point.seconds)
    return _number(point.area_mm2), *times, _number(point.energy_uj), used, point.bound or ""


def _number(cost: float | None) -> str:
    return "" if cost is None else four_digits(cost)


def _bar(part: float, marks: Sequence[str]) -> str:
    return "█" * round(part * _BAR) + (f" ◀ {', '.join(marks)}" if marks else "")


def _summary(sweep: Sweep, curves: Sequence[SweepLine]) -> Iterator[tuple[str, str]]:
    across = horizontal(sweep)
    fixed = [f"{axis.key}={shown(axis.key, axis.values[0])}" for axis in sweep.axes if len(axis.values) == 1]
    with_fixed = f" with {', '.join(fixed)}" if fixed else ""
    yield "network", f"{sweep.network} on {', '.join(sweep.machines)}{with_fixed}"
    if across is not None and across.scale != "names":
        for text in _knee_texts(sweep, curves, across.key):
            yield "knee", text
    yield from _pareto_facts(sweep)
    yield from _slower_facts(sweep)
    cannot = [point for point in sweep.points if point.reason]
    for point in cannot[:_MOST_REASONS]:
        yield "cannot run", f"{_settings(sweep, point)}: {point.reason}"
    if len(cannot) > _MOST_REASONS:
        yield "", f"and {len(cannot) - _MOST_REASONS} more; --json and --csv have the reasons"
    yield from _tied_facts(sweep)
    compile_s, timing_s = (
        sum(getattr(point, name) or 0.0 for point in sweep.points) for name in ("compile_s", "timing_s")
    )
    parts = f"import {sweep.import_s:.2f} s, compile {compile_s:.2f} s, timing {timing_s:.2f} s"
    yield "took", f"{sweep.took_s:.2f} s for {len(sweep.points)} machines: {parts}"


def _settings(sweep: Sweep, point: SweepPoint) -> str:
    settings = [f"{key}={shown(key, value)}" for key, value in point.settings.items()]
    return ", ".join([point.machine] * (len(sweep.machines) > 1 or not settings) + settings)


def _pareto_facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    front = _front(sweep)
    for at, point in enumerate(front[:_MOST_REASONS]):
        cost = f"{_number(point.area_mm2)} mm²" if sweep.cost == "area" else f"{_number(point.energy_uj)} µJ"
        text = f"{_settings(sweep, point)}: {cost}, {milliseconds(point.seconds or 0.0)} ms"
        yield "" if at else "Pareto", text
    if len(front) > _MOST_REASONS:
        yield "", f"and {len(front) - _MOST_REASONS} more, marked in the table"


def _slower_facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    slower = [(point, point.slower_than) for point in sweep.points if point.slower_than]
    slower.sort(key=lambda one: -one[1].slower_by)
    for point, than in slower[:_MOST_SLOWER]:
        smaller = f"{than.key}={shown(than.key, than.value)}"
        text = f"{_settings(sweep, point)} takes {than.slower_by:.1%} more than {smaller}"
        there = f"the program for {smaller} takes {than.cycles:,.0f} cycles there"
        yield "slower", f"{text}; the {than.because} is to blame: {there}"
    if len(slower) > _MOST_SLOWER:
        yield "", f"and {len(slower) - _MOST_SLOWER} more, by less; --json and --csv have them"


def _tied_facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    if sweep.one_buffer:
        yield "one buffer", f"nb_bytes and sb_bytes are set together on {', '.join(sweep.one_buffer)} (shared_buffer)"
    if "halo_bytes" in sweep.tied:
        yield "together", f"halo_bytes keeps its share of nb_bytes on {', '.join(sweep.tied['halo_bytes'])}"
    if "llc.bytes_per_s" in sweep.tied:
        yield "together", "llc.bytes=0 leaves out the last-level cache with its other keys"


def _knee_texts(sweep: Sweep, curves: Sequence[SweepLine], key: str) -> Iterator[str]:
    """Yield a sentence per place of a knee; lines that share it are counted, and named if they are few."""
    groups: dict[str, list[SweepLine]] = {}
    for line in curves:
        groups.setdefault(_knee_place(sweep, line, key), []).append(line)
    for place, group in groups.items():
        if len(group) == 1:
            (line,) = group
            yield (f"{line.name}: " if line.name else "") + _knee_text(sweep, line, key)
            continue
        if len(group) == len(curves):
            where = f"all {len(curves)} lines"
        else:
            names = [line.name for line in group[:_MOST_NAMES]] + ["…"] * (len(group) > _MOST_NAMES)
            where = f"{len(group)} of {len(curves)} lines ({'; '.join(names)})"
        gains = [_gain(sweep, line) for line in group if line.knee is not None]
        rest = f"; other values take at most {max(gains):.1%} less" if gains else ""
        yield f"{place} for {where}{rest}"


def _known(sweep: Sweep, line: SweepLine) -> list[tuple[float, SweepPoint]]:
    return [(value, point) for point in line.points if (value := _value(sweep, point)) is not None]


def _gain(sweep: Sweep, line: SweepLine) -> float:
    """Return which part less than the knee's value the best of the line takes."""
    now = _value(sweep, line.points[line.knee or 0]) or 0.0
    return 1 - min(value for value, _ in _known(sweep, line)) / now if now else 0.0


def _knee_place(sweep: Sweep, line: SweepLine, key: str) -> str:
    known = _known(sweep, line)
    if len(known) > 1 and len({value for value, _ in known}) == 1:
        return f"none, {key} changes nothing"
    return "none" if line.knee is None else f"{key}={shown(key, line.points[line.knee].settings[key])}"


def _knee_text(sweep: Sweep, line: SweepLine, key: str) -> str:
    place = _knee_place(sweep, line, key)
    if line.knee is None:
        return place
    now = _value(sweep, line.points[line.knee]) or 0.0
    best, best_point = min(_known(sweep, line), key=lambda pair: pair[0])
    least = f"the best, {shown(key, best_point.settings[key])}, takes {1 - best / now:.1%} less" if now else ""
    ms_or_cycles = milliseconds(now / 1e3) + " ms" if metric(sweep) == "milliseconds" else f"{now:,.0f} cycles"
    return f"{place}, {ms_or_cycles}; {'the best of all' if best == now else least}"


def sweep_plot(sweep: Sweep) -> tuple[str, str]:
    """Return the title and the figure of the sweep: a line per group of equal parameters, with the knees marked."""
    across = horizontal(sweep)
    if across is None:
        ticks = tuple((float(at), name) for at, name in enumerate(sweep.machines))
        label = "machine"
    else:
        ticks = tuple(zip(_numbers(across), (shown(across.key, value) for value in across.values), strict=True))
        label = in_unit(across.key)
    series = []
    for line in lines(sweep):
        values = [_value(sweep, point) for point in line.points]
        mark = None if line.knee is None else Mark(line.knee, f"knee: {ticks[line.knee][1]}")
        drawn = tuple((at, value) for (at, _), value in zip(ticks, values, strict=True))
        series.append(PlotSeries(line.name or sweep.network, drawn, mark))
    scale: Scale = "log" if across is not None and across.scale == "log" else "linear"
    on = f" on {sweep.machines[0]}" if len(sweep.machines) == 1 else ""
    title = f"{printable(sweep.network, 40)}{on}: time by {'machine' if across is None else across.key}"
    unit = _UNITS[metric(sweep)]
    times = [value for one in series for _, value in one.points if value is not None]
    return title, line_plot(series, PlotAxis(label, scale, ticks), PlotAxis(f"time, {unit}", scale_of_range(times)))


def _numbers(axis: SweepAxis) -> list[float]:
    """Return the horizontal places of an axis' values: the values, or 0, 1, 2, … if they are not numbers."""
    return [float(at) if axis.scale == "names" else float(value) for at, value in enumerate(axis.values)]


def knee(xs: Sequence[float], ys: Sequence[float]) -> int | None:
    """Return the index of the knee of a curve over ascending `xs`, or None if it has none.

    The knee is Kneedle's (Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a haystack, 2011): both axes are
    scaled to 0 … 1, and it is the first of the points farthest from the chord between the first and the last point, on
    the side where `ys` are lower than the chord. If `xs` are spaced by a factor (`scale_of`), both axes are
    logarithmic. A curve c + 1/x then has its knee near x = 1/c; 1/x has none, because it gains the same by every
    doubling.

    Each value is replaced by the best one reached so far, counted from the worse end, so the curve is monotone.

    A curve of fewer than three points, and one that is straight, flat or bent the other way, has no knee. `SENSITIVITY`
    and `FLAT` replace Kneedle's sensitivity, which depends on the number of points; here they are few.
    """
    if len(xs) < 3 or not all(math.isfinite(y) for y in ys):
        return None
    # From the worse end on, each value is the best so far.
    if ys[-1] <= ys[0]:
        ys = list(itertools.accumulate(ys, min))
    else:
        ys = list(itertools.accumulate(reversed(ys), min))[::-1]
    if max(ys) - min(ys) <= FLAT * max(map(abs, ys)):
        return None
    if scale_of(xs) == "log" and min(ys) > 0:
        xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    width, height = xs[-1] - xs[0], max(ys) - min(ys)
    chord = [ys[0] + (x - xs[0]) / width * (ys[-1] - ys[0]) for x in xs]
    distances = [(line - y) / height for line, y in zip(chord, ys, strict=True)]
    farthest = max(distances)
    if farthest <= SENSITIVITY:
        return None
    return next(at for at, each in enumerate(distances) if each >= farthest - _ROUNDING)
