"""Estimated layers next to the times that the device reports: the truth of an emulator, or a runtime's profile."""

from collections.abc import Iterator

from harness.lut.lut_tables import A_B_C, OVERHEAD_UNITS
from harness.report.figures import NetworkPoint, compare
from harness.report.page_values import (
    CaptionedFigure,
    ReportTable,
    display,
    duration,
    percent,
    signed_percent,
    unit_for,
)
from harness.validation.oracle_comparison import NetworkTruth, OracleReport


def truth_section(oracle: OracleReport) -> dict[str, object]:
    """Return the section of a validation in which the device reported the times of its layers."""
    points = [point for network in oracle.networks for point in _points(network)]
    figure = None
    if points:
        caption = "Estimated latency of layers against the time that the device reports. The bands are ±5 % and ±10 %."
        figure = CaptionedFigure(caption, compare(points, "reported"))
    tables = [_layers(network) for network in oracle.networks]
    if oracle.overhead:
        tables.append(_overhead(oracle))
    return {"facts": tuple(_facts(oracle)), "figure": figure, "tables": tables}


def _facts(oracle: OracleReport) -> Iterator[tuple[str, str]]:
    yield "layers above 1 % of their network", str(oracle.counted)
    named = (
        ("their median error", oracle.median_error),
        ("their 95th percentile", oracle.p95_error),
        ("error of all layers, weighted by time", oracle.time_weighted_error),
        ("mean error of layers above 50 µs", oracle.mean_error_long),
        ("difference from process to process, weighted by time", oracle.repeatability),
    )
    for name, value in named:
        if value is not None:
            yield name, percent(value)


def _points(network: NetworkTruth) -> Iterator[NetworkPoint]:
    for layer in network.layers:
        if layer.true_s > 0 and layer.estimated_s > 0:
            error = "" if layer.error is None else f", error {signed_percent(layer.error)}"
            text = (
                f"{display(network.name)}: reported {duration(layer.true_s)}, estimated {duration(layer.estimated_s)}"
            )
            value = layer.estimated_s
            yield NetworkPoint(layer.name, text + error, value, value, value, "estimate", layer.true_s)


def _layers(network: NetworkTruth) -> ReportTable:
    unit = unit_for(layer.true_s for layer in network.layers)
    rows = tuple(
        (
            display(layer.name),
            percent(layer.share),
            unit.text(layer.true_s),
            unit.text(layer.estimated_s),
            "" if layer.error is None else signed_percent(layer.error),
            display(layer.op),
        )
        for layer in sorted(network.layers, key=lambda one: -one.true_s)
    )
    header = ("layer", "share", f"reported, {unit.symbol}", f"estimated, {unit.symbol}", "error", "operator")
    beside = f"; {duration(network.unassigned_s)} belong to no layer" if network.unassigned_s > 0 else ""
    caption = f"Layers of {display(network.name)} as the device reports them{beside}"
    total = ("all layers", "", unit.text(network.true_s), unit.text(network.estimated_s), "", "")
    return ReportTable(caption, header, rows, (0, 5), total)


def _overhead(oracle: OracleReport) -> ReportTable:
    rows = []
    for name, one in oracle.overhead.items():
        unit = unit_for([max(abs(one.true), abs(one.fitted))], smallest=0)
        error = "" if one.error is None else signed_percent(one.error)
        rows.append((OVERHEAD_UNITS[A_B_C[name]], unit.text(one.true), unit.text(one.fitted), error, unit.symbol))
    header = ("coefficient", "reported", "fitted", "error", "unit")
    return ReportTable("Overhead: reported by the device, and fitted", header, tuple(rows), (0, 4))
