"""The section of the overhead: a, b and c by each fit, further terms, and the quality of the fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.report.page_values import ReportTable
from harness.report.units import Unit, percent, significant, unit_for
from harness.text_tables import Facts

if TYPE_CHECKING:
    from harness.latency.overhead import Coefficient, OverheadModel
    from harness.lut.table import Lut

_OVERHEAD = (
    ("a", "input_bytes", "time per input byte", "/byte"),
    ("b", "output_bytes", "time per output byte", "/byte"),
    ("c", "runs", "time per run", ""),
)
_MODELS: dict[OverheadModel, str] = {"plain": "least squares", "extended": "with further terms"}


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


def fit_facts(table: Lut) -> Facts:
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
