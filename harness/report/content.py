"""The texts, tables and figures of the report, in the order of the page and independent of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.report import figures
from harness.report.units import (
    DASH,
    NARROW_SPACE,
    Unit,
    display,
    duration,
    percent,
    signed_percent,
    significant,
    unit_for,
)

if TYPE_CHECKING:
    from harness.estimation.network_estimate import LayerEstimate, NetworkEstimate
    from harness.latency.overhead import Coefficient, OverheadModel
    from harness.lut.table import Lut
    from harness.validation.network_validation import NetworkValidation, Validation

_OVERHEAD = (
    ("a", "input_bytes", "time per input byte", "/byte"),
    ("b", "output_bytes", "time per output byte", "/byte"),
    ("c", "runs", "time per run", ""),
)
_MODELS: dict[OverheadModel, str] = {"plain": "least squares", "extended": "with further terms"}


@dataclass(frozen=True)
class ReportTable:
    """A table; the first column heads its row, and the columns in `words` are aligned left."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    total: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure as JSON, with its caption."""

    caption: str
    json: str


@dataclass(frozen=True)
class NetworkSection:
    """The section of one network; `free` lists the nodes that take no time by reason."""

    name: str
    headline: str
    warning: str
    coverage: tuple[tuple[str, str], ...]
    figure: CaptionedFigure | None
    layers: ReportTable
    free: tuple[tuple[str, list[str]], ...]


Pair = tuple["NetworkEstimate", "NetworkValidation | None"]


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
    """Return the table of estimates, with measurements beside them if there are any."""
    measured = [result for _, result in pairs if result]
    naive = any(result.naive_s is not None for result in measured)
    unit = unit_for(estimate.covered_latency_s for estimate, _ in pairs)
    header = ["network", "layers in table", f"estimated, {unit.symbol}", f"95 % interval, {unit.symbol}"]
    header += [f"measured, {unit.symbol}", f"±, {unit.symbol}", "error", "in interval"] if measured else []
    header += [f"naive sum, {unit.symbol}", "naive error"] if naive else []
    header += [f"wall, {unit.symbol}"] if measured else []
    rows = tuple(
        (*_estimated(estimate, unit), *(_measured(result, unit, naive) if measured else ()))
        for estimate, result in pairs
    )
    what = "Estimated and measured latency" if measured else "Estimated latency"
    return ReportTable(f"{what} of each network, {clock} clock", tuple(header), rows)


def _estimated(estimate: NetworkEstimate, unit: Unit) -> tuple[str, ...]:
    layers = len(estimate.layers)
    name, known = display(estimate.name), f"{layers - len(estimate.unknown)} of {layers}"
    if estimate.latency_s is None or estimate.interval_s is None:
        return name, known, f"≥ {unit.text(estimate.covered_latency_s)}", "unknown"
    return name, known, unit.text(estimate.latency_s), unit.interval(estimate.interval_s)


def _measured(result: NetworkValidation | None, unit: Unit, naive: bool) -> tuple[str, ...]:
    if result is None:
        return ("",) * (7 if naive else 5)
    cells = [
        unit.text(result.measured_s),
        unit.text(result.measured_halfwidth_s, 2),
        signed_percent(result.error),
        "yes" if result.within_interval else "no",
    ]
    if naive:
        known = result.naive_s is not None and result.naive_error is not None
        cells += [unit.text(result.naive_s or 0), signed_percent(result.naive_error or 0)] if known else ["", ""]
    return *cells, unit.text(result.wall_s)


def scores(validation: Validation) -> tuple[tuple[str, str], ...]:
    """Return the summary of errors."""
    return (
        ("mean absolute error (MAPE)", percent(validation.mape)),
        (f"networks within 5{NARROW_SPACE}%", percent(validation.within_5, 0)),
        (f"networks within 10{NARROW_SPACE}%", percent(validation.within_10, 0)),
        (f"measurements inside the 95{NARROW_SPACE}% interval", percent(validation.interval_coverage, 0)),
    )


def pictures(pairs: Sequence[Pair]) -> tuple[CaptionedFigure, ...]:
    """Return the figures: estimated against measured latency, or the estimates alone without measurements."""
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
                f"Estimated against measured latency. {about} The dashed line marks equality, the band ±10 %.",
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


def section(estimate: NetworkEstimate) -> NetworkSection:
    """Return a network's section: its coverage, its layers, and the nodes that take no time."""
    coverage = tuple((kind, str(count)) for kind, count in estimate.coverage.items())
    unknown, covered = len(estimate.unknown), duration(estimate.covered_latency_s)
    headline, warning = covered, ""
    if unknown:
        headline = f"at least {covered}; {unknown} layers are not in the table"
        others = f"The other layers take {covered}; shares refer to that."
        warning = f"{unknown} of {len(estimate.layers)} layers are not in the table. {others}"
    name, figure = display(estimate.name), None
    if any(layer.latency_s is not None for layer in estimate.layers):
        drawn = [_bar(layer, estimate.covered_latency_s) for layer in estimate.layers]
        more = f" There are {len(drawn)} layers, so neighbours share a bar." if len(drawn) > figures.MAX_BARS else ""
        blank = " Shaded layers are not in the table." if unknown else ""
        figure = CaptionedFigure(f"Layers of {name} in order of execution.{more}{blank}", figures.bars(drawn))
    return NetworkSection(name, headline, warning, coverage, figure, _layers(estimate), _free(estimate))


def _bar(layer: LayerEstimate, whole_s: float) -> figures.LayerBar:
    if layer.latency_s is None or layer.stderr_s is None:
        return figures.LayerBar(display(layer.name), f"{display(layer.op)}, not in the table", None)
    tooltip = f"{display(layer.op)}, {duration(layer.latency_s)} ± {duration(layer.stderr_s)}, {_share(layer, whole_s)}"
    return figures.LayerBar(display(layer.name), f"{tooltip}, {layer.source}", layer.latency_s)


def _share(layer: LayerEstimate, whole_s: float) -> str:
    return percent(layer.share_of(whole_s)) if layer.latency_s is not None and whole_s > 0 else ""


def _layers(estimate: NetworkEstimate) -> ReportTable:
    unit = unit_for(layer.latency_s or 0.0 for layer in estimate.layers)
    whole_s = estimate.covered_latency_s
    numbered = sorted(enumerate(estimate.layers, 1), key=lambda item: -(item[1].latency_s or 0.0))
    rows = []
    for number, layer in numbered:
        times = ("", "unknown", "")
        if layer.latency_s is not None and layer.stderr_s is not None:
            times = (_share(layer, whole_s), unit.text(layer.latency_s), unit.text(layer.stderr_s, 2))
        rows.append((display(layer.name), str(number), *times, display(layer.op), display(layer.source)))
    header = ("layer", "no.", "share", f"latency, {unit.symbol}", f"± std. error, {unit.symbol}", "operator", "source")
    share = percent(estimate.overhead_s / whole_s) if whole_s > 0 else ""
    total = ("overhead (a, b, c)", "", share, unit.text(estimate.overhead_s), "", "", "fitted")
    caption = f"The {len(rows)} layers of {display(estimate.name)}, slowest first; no. is the order of execution"
    return ReportTable(caption, header, tuple(rows), (0, 5, 6), total)


def _free(estimate: NetworkEstimate) -> tuple[tuple[str, list[str]], ...]:
    reasons: dict[str, list[str]] = {}
    for node in estimate.free:
        reasons.setdefault(display(node.reason), []).append(f"{display(node.name)} ({display(node.op)})")
    return tuple(sorted(reasons.items(), key=lambda item: -len(item[1])))


def overhead_table(table: Lut) -> ReportTable:
    """Return the table of a, b and c: by least squares (S1.4), then as fitted with further terms."""
    if table.is_imported:
        return _stated_overhead(table)
    plain, extended = (table.overhead_by(model) for model in _MODELS)
    rows = []
    for letter, term, meaning, per in _OVERHEAD:
        fits = [fit.coefficients[term] if fit else None for fit in (plain, extended)]
        unit = unit_for([max((max(abs(one.value), abs(one.high)) for one in fits if one), default=0.0)], smallest=0)
        rows.append((f"{letter}: {meaning}", *_fitted(fits[0], unit), *_fitted(fits[1], unit), unit.symbol + per))
    header = ("coefficient", "least squares", "95 % interval", "with further terms", "95 % interval", "unit")
    probes = (plain or table.overhead).probes
    return ReportTable(f"Overhead fitted on {probes} null probes", header, tuple(rows), (0, 5))


def _stated_overhead(table: Lut) -> ReportTable:
    rows = []
    for letter, term, meaning, per in _OVERHEAD:
        one = table.overhead.coefficients[term]
        unit = unit_for([one.value], smallest=0)
        rows.append((f"{letter}: {meaning}", unit.text(one.value), unit.symbol + per))
    return ReportTable("Overhead as the import states it", ("coefficient", "value", "unit"), tuple(rows), (0, 2))


def _fitted(one: Coefficient | None, unit: Unit) -> tuple[str, str]:
    return ("not fitted", "") if one is None else (unit.text(one.value), unit.interval((one.low, one.high)))


def terms_table(table: Lut) -> ReportTable | None:
    """Return the table of the further terms, None where the table has none."""
    extended = table.overhead_by("extended")
    plain = {term for _, term, _, _ in _OVERHEAD}
    names = [name for name in extended.least_squares if name not in plain] if extended else []
    if extended is None or not names:
        return None
    rows = []
    for name in names:
        one = extended.coefficients[name]
        unit = unit_for([max(abs(one.value), abs(one.high))], smallest=0)
        rows.append((name.replace("_", " "), *_fitted(one, unit), unit.symbol))
    header = ("further term", "time of one", "95 % interval", "unit")
    return ReportTable(f"Further terms, fitted on {extended.probes} null probes", header, tuple(rows), (0, 3))


def fit_facts(table: Lut) -> tuple[tuple[str, str], ...]:
    """Return the quality of the fits."""
    found: list[tuple[str, str]] = [("method of the table", table.method)]
    if table.is_imported:
        return tuple(found)
    for model, name in _MODELS.items():
        fit = table.overhead_by(model)
        if fit is not None:
            facts = (significant(fit.r2, 5), significant(fit.condition), percent(fit.scatter, 2))
            found += zip((f"R², {name}", f"condition number, {name}", f"scatter, {name}"), facts, strict=True)
    return tuple(found)
