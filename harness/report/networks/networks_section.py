"""Networks side by side: estimates, measurements, errors and the summary of a validation, as tables and figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.estimation.network_estimate import NetworkEstimate
from harness.report import figures
from harness.report.page_values import (
    DASH,
    NARROW_SPACE,
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
from harness.text import Facts
from harness.validation.results import NetworkValidation, Validation

Pair = tuple["NetworkEstimate", "NetworkValidation | None"]
_SAVED = ("op", "key", "context", "latency_s", "stderr_s", "remainder_s", "source")
"""Columns of the saved file, after network and layer, as `harness estimate --csv` writes them."""


def pair(estimates: Sequence[NetworkEstimate], validation: Validation | None) -> tuple[Pair, ...]:
    """Pair each estimate with the measurement of the same name, None if it was not measured."""
    waiting = list(validation.networks) if validation else []
    pairs: list[Pair] = []
    for estimate in estimates:
        found = next((result for result in waiting if result.name == estimate.name), None)
        if found is not None:
            waiting.remove(found)
        pairs.append((estimate, found))
    return tuple(pairs)


def networks_table(pairs: Sequence[Pair], clock: str) -> ReportTable:
    """Return the table of estimates, with measurements if there are any."""
    measured = [result for _, result in pairs if result]
    naive = any(result.naive_s is not None for result in measured)
    unit = unit_for(estimate.covered_latency_s for estimate, _ in pairs)
    coverage = _coverage_columns(pairs)
    header = ["network", *coverage, f"estimated, {unit.symbol}", f"95 % interval, {unit.symbol}"]
    header += (
        [f"measured, {unit.symbol}", f"± 95 %, {unit.symbol}", "error", "floor", "in interval"] if measured else []
    )
    header += [f"naive sum, {unit.symbol}", "naive error"] if naive else []
    has_wall = bool(measured) and clock == "cpu"  # a device's own time has no relation to wall time
    header += [f"wall, {unit.symbol}"] if has_wall else []
    rows = tuple(
        (
            display(estimate.name),
            *(_COVERAGE[column](estimate) for column in coverage),
            *_estimated(estimate, unit),
            *(_measured(result, unit, naive) if measured else ()),
            *((unit.text(result.wall_s) if result else "",) if has_wall else ()),
        )
        for estimate, result in pairs
    )
    what = "Estimated and measured latency" if measured else "Estimated latency"
    return ReportTable(f"{what} of each network, {clock} clock", tuple(header), rows)


def _predicted(estimate: NetworkEstimate) -> int:
    return sum(estimate.coverage.get(kind, 0) for kind in ("interpolated", "extrapolated"))


_COVERAGE: Mapping[str, Callable[[NetworkEstimate], str]] = {
    "layers measured": lambda one: f"{one.coverage.get('measured', 0)} of {len(one.layers)}",
    "predicted": lambda one: str(_predicted(one)),
    "not in table": lambda one: str(len(one.unknown)),
}


def _coverage_columns(pairs: Sequence[Pair]) -> list[str]:
    """Return the columns that count layers by the source of their latency; a column of zeros is omitted."""
    shown = {
        "predicted": any(_predicted(one) for one, _ in pairs),
        "not in table": any(one.unknown for one, _ in pairs),
    }
    return [name for name in _COVERAGE if shown.get(name, True)]


def _estimated(estimate: NetworkEstimate, unit: Unit) -> tuple[str, str]:
    if estimate.latency_s is None or estimate.interval_s is None:
        return f"≥ {unit.text(estimate.covered_latency_s)}", "unknown"
    return unit.text(estimate.latency_s), unit.interval(estimate.interval_s)


def _measured(result: NetworkValidation | None, unit: Unit, naive: bool) -> tuple[str, ...]:
    if result is None:
        return ("",) * (7 if naive else 5)
    cells = [
        unit.text(result.measured_s),
        unit.text(result.measured_halfwidth_s, 2),
        signed_percent(result.error),
        "" if result.repeatability is None else percent(result.repeatability),
        "yes" if result.within_interval else "no",
    ]
    if naive:
        known = result.naive_s is not None and result.naive_error is not None
        cells += [unit.text(result.naive_s or 0), signed_percent(result.naive_error or 0)] if known else ["", ""]
    return tuple(cells)


def scores(validation: Validation) -> Facts:
    """Return the summary of errors; the floor is how far processes differ that measure the same network."""
    found = [
        ("mean absolute error (MAPE)", percent(validation.mape)),
        (f"networks within 5{NARROW_SPACE}%", percent(validation.within_5, 0)),
        (f"networks within 10{NARROW_SPACE}%", percent(validation.within_10, 0)),
        (f"measurements inside the 95{NARROW_SPACE}% interval", percent(validation.interval_coverage, 0)),
    ]
    if validation.floor is not None:
        found.append(("floor: the difference from process to process (median)", percent(validation.floor)))
        if validation.is_answered:
            found.append(("mean absolute error above the floor", percent(validation.mape_beyond_floor)))
    return tuple(found)


def unanswered(validation: Validation) -> str:
    """Return why the measurements cannot judge the estimates, empty if they can."""
    if validation.is_answered or validation.machine is None:
        return ""
    return (
        "The machine was too noisy for these measurements to say whether estimates are within 10 %:"
        f" {display(validation.machine.text, 400)}."
    )


def pictures(pairs: Sequence[Pair]) -> tuple[CaptionedFigure, ...]:
    """Return the figures: estimated against measured latency, or only the estimates if there are no measurements."""
    measured = [result for _, result in pairs if result]
    if measured:
        naive = "; triangles are naive sums of the layers" if any(result.naive_s for result in measured) else ""
        largest = sorted(measured, key=lambda result: -abs(result.error))[: figures.MAX_ROWS]
        kept = [result for result in measured if result in largest]
        left_out = f" Shown are the {len(kept)} largest errors of {len(measured)} networks."
        most = left_out if len(kept) < len(measured) else ""
        against = [point for result in measured for point in _points(result)]
        errors = [point for result in kept for point in _points(result, result.measured_s, 1.0)]
        about = f"Circles are estimates with 95 % intervals{naive}."
        return (
            CaptionedFigure(
                f"Estimated against measured latency. {about} The dashed line marks equality, the bands 5 and 10 %.",
                figures.compare(against),
            ),
            CaptionedFigure(
                f"Relative error of each network's estimate. {about}{most}", figures.error_rows(errors, "error")
            ),
        )
    alone = [_alone(estimate) for estimate, _ in pairs if estimate.covered_latency_s > 0]
    if not alone:
        return ()
    slowest = sorted(alone, key=lambda point: -point.value)[: figures.MAX_ROWS]
    bounds = any(point.kind == "partial" for point in slowest)
    partial = " Triangles are lower bounds: some layers are not in the table." if bounds else ""
    most = f" Shown are the {len(slowest)} slowest of {len(alone)} networks." if len(slowest) < len(alone) else ""
    caption = f"Estimated latency with 95 % intervals.{partial}{most}"
    return (CaptionedFigure(caption, figures.latency_rows(slowest, "estimated latency")),)


def _points(result: NetworkValidation, scale_s: float = 1.0, offset: float = 0.0) -> Iterator[figures.NetworkPoint]:
    """Yield the estimate and the naive sum of a network, each as `seconds / scale_s - offset`."""
    low, high = (bound / scale_s - offset for bound in result.interval_s)
    tooltip = (
        f"estimated {duration(result.estimated_s)} ({_duration_interval(result.interval_s)}),"
        f" measured {duration(result.measured_s)} ± {duration(result.measured_halfwidth_s)},"
        f" error {signed_percent(result.error)}"
    )
    value = result.estimated_s / scale_s - offset
    yield figures.NetworkPoint(result.name, tooltip, value, low, high, "estimate", result.measured_s)
    if result.naive_s is not None and result.naive_error is not None:
        tooltip = f"naive sum {duration(result.naive_s)}, error {signed_percent(result.naive_error)}"
        value = result.naive_s / scale_s - offset
        yield figures.NetworkPoint(result.name, tooltip, value, value, value, "naive", result.measured_s)


def _duration_interval(bounds: tuple[float, float]) -> str:
    return f"{duration(bounds[0])} {DASH} {duration(bounds[1])}"


def _alone(estimate: NetworkEstimate) -> figures.NetworkPoint:
    value = estimate.covered_latency_s
    if estimate.interval_s is None:
        unknown = f"{len(estimate.unknown)} of {len(estimate.layers)} layers are not in the table"
        tooltip = f"at least {duration(value)}; {unknown}"
        return figures.NetworkPoint(estimate.name, tooltip, value, value, value, "partial")
    tooltip = f"estimated {duration(value)} ({_duration_interval(estimate.interval_s)})"
    return figures.NetworkPoint(estimate.name, tooltip, value, *estimate.interval_s)


def saved_layers(estimates: Sequence[NetworkEstimate]) -> SavedFile:
    """Return a row for each layer, and one for each network's overhead, in seconds with all their digits."""
    rows: list[list[object]] = []
    for network in estimates:
        rows += [[network.name, layer.name, *(getattr(layer, name) for name in _SAVED)] for layer in network.layers]
        overhead = {"op": "overhead", "latency_s": network.overhead_s, "source": "fitted"}
        rows.append([network.name, "overhead", *(overhead.get(name, "") for name in _SAVED)])
    return SavedFile.csv("layers.csv", ("network", "layer", *_SAVED), rows)
