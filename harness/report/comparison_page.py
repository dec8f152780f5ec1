"""Two tables side by side: every layer that both hold, by each table's latency, and the facts that differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.estimation.table_comparison import TableComparison, side_names
from harness.files import write_whole
from harness.lut.layer_diff import compare
from harness.lut.table import Entry, Lut
from harness.measure.summary import Z_95
from harness.report.figures import NetworkPoint, compare as compare_figure
from harness.report.html import page
from harness.report.page_values import (
    CaptionedFigure,
    ReportTable,
    SavedFile,
    display,
    duration,
    signed_percent,
    unit_for,
)
from harness.text import Facts

_TEMPLATE = "comparison.html.j2"
Pair = tuple["Entry", "Entry"]


def write_comparison(
    path: Path, before: Lut, after: Lut, command: str, compared: TableComparison | None = None
) -> None:
    """Write the page of two tables, with the networks of a comparison; raises ConfigurationError if it cannot."""
    changes = compare(before, after)
    pairs = [
        (before.by_place[place], after.by_place[place])
        for place in sorted(before.by_place.keys() & after.by_place.keys())
    ]
    names = _names(before, after)
    facts: Facts = (
        ("common entries: a layer in a context", f"{changes.common:,}"),
        ("changed by more than 2 % and three standard errors", f"{len(changes.changed):,}"),
        (f"entries only in {names[0]}", f"{len(changes.removed):,}"),
        (f"entries only in {names[1]}", f"{len(changes.added):,}"),
        ("sum over common entries", signed_percent(changes.total_ratio - 1)),
    )
    content = page(
        _TEMPLATE,
        title=" and ".join(names),
        facts=facts,
        networks=_networks(before, after, compared) if compared and compared.networks else None,
        operators=_operators(before, after, compared) if compared and compared.operators else None,
        picture=_picture(pairs, names) if pairs else None,
        layers=_layers(names, pairs, {one.key: one.example for one in compared.layers} if compared else {}),
        device=_device(before, after),
        saved=_saved(pairs),
        command=command,
    )
    write_whole(path, content.encode("utf-8"))


def _networks(before: Lut, after: Lut, compared: TableComparison) -> ReportTable:
    unit = unit_for(one for network in compared.networks for one in (network.a_s, network.b_s) if one)
    names = _names(before, after)
    faster = {"a": names[0], "b": names[1]}
    rows = tuple(
        (
            display(one.name),
            *(
                text
                for latency_s, interval_s in ((one.a_s, one.a_interval_s), (one.b_s, one.b_interval_s))
                for text in (
                    "unknown" if latency_s is None else unit.text(latency_s),
                    "" if interval_s is None else unit.interval(interval_s),
                )
            ),
            "" if one.ratio is None else signed_percent(one.ratio - 1),
            faster.get(one.faster or "neither", ""),
        )
        for one in compared.networks
    )
    columns = [(f"{name}, {unit.symbol}", "95 % interval") for name in names]
    header = ("network", *columns[0], *columns[1], "change", "faster")
    return ReportTable("Networks, estimated from each table", header, rows, (0, 6))


def _operators(before: Lut, after: Lut, compared: TableComparison) -> ReportTable:
    unit = unit_for(latency_s for one in compared.operators for latency_s in (one.a_s, one.b_s))
    rows = tuple(
        (
            display(one.op),
            str(one.layers),
            unit.text(one.a_s),
            unit.text(one.b_s),
            signed_percent(one.ratio - 1),
            str(one.a_faster),
            str(one.b_faster),
        )
        for one in compared.operators
    )
    names = _names(before, after)
    columns = [f"{name}, {unit.symbol}" for name in names]
    header = ("operator", "layers", *columns, "change", *(f"{name} faster" for name in names))
    return ReportTable("Common layers by operator, largest difference first", header, rows)


def _names(before: Lut, after: Lut) -> list[str]:
    """Return short names of both tables: the devices, if these differ."""
    return [display(name) for name in side_names(before, after)]


def _picture(pairs: list[Pair], names: Sequence[str]) -> CaptionedFigure:
    points = [
        NetworkPoint(
            f"{one.op} {one.key}",
            f"{duration(one.latency_s)}, then {duration(other.latency_s)}",
            other.latency_s,
            *other.interval_s,
            "estimate",
            one.latency_s,
        )
        for one, other in pairs
    ]
    caption = f"Latency of each common layer: {names[1]} against {names[0]}. The bands are 5 and 10 %."
    return CaptionedFigure(caption, compare_figure(points, *names))


def _layers(names: Sequence[str], pairs: list[Pair], examples: Mapping[str, str]) -> ReportTable:
    unit = unit_for(entry.latency_s for pair in pairs for entry in pair)
    rows = tuple(
        (
            display(examples.get(one.key, "")),
            display(one.op),
            one.context,
            one.key,
            unit.text(one.latency_s),
            unit.text(Z_95 * one.stderr_s, 2),
            unit.text(other.latency_s),
            unit.text(Z_95 * other.stderr_s, 2),
            signed_percent(other.latency_s / one.latency_s - 1),
        )
        for one, other in sorted(pairs, key=lambda pair: -abs(pair[1].latency_s - pair[0].latency_s))
    )
    columns = [f"{name}, {unit.symbol}" for name in names]
    header = ("layer", "operator", "context", "key", columns[0], "± 95 %", columns[1], "± 95 %", "change")
    return ReportTable("Layers that both tables contain, largest difference first", header, rows, (0, 1, 2, 3))


def _device(before: Lut, after: Lut) -> ReportTable:
    facts = [
        {"clock": table.clock, "method": table.method, "created": table.created, **table.fingerprint}
        for table in (before, after)
    ]
    names = sorted({*facts[0], *facts[1]})
    rows = tuple((display(name), *(display(one.get(name, ""), 2000) for one in facts)) for name in names)
    return ReportTable("Facts of both tables", ("fact", display(before.name), display(after.name)), rows, (0, 1, 2))


def _saved(pairs: list[Pair]) -> SavedFile:
    rows = [
        (one.op, one.context, one.key, one.latency_s, one.stderr_s, other.latency_s, other.stderr_s)
        for one, other in pairs
    ]
    header = ("op", "context", "key", "first_s", "first_stderr_s", "second_s", "second_stderr_s")
    return SavedFile.csv("comparison.csv", header, rows)
