"""What the commands of `harness lut` print of a table, and its overhead in JSON."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from harness.latency.joint import MISFIT
from harness.latency.overhead import Coefficient, Overhead
from harness.lut.layer_diff import LutChanges
from harness.lut.layer_work import sizes_of
from harness.lut.stored_tables import StoredTable
from harness.lut.table import Lut
from harness.probe.overhead_terms import ADDED_TERMS
from harness.text import Part, Table, byte_size, microseconds, signed_percent

OVERHEAD_UNITS = {
    "input_bytes": "a, per input byte",
    "output_bytes": "b, per output byte",
    "runs": "c, per run",
    "auxiliaries": "per auxiliary layer",
    "auxiliary_input_bytes": "per byte it reads",
    "auxiliary_output_bytes": "per byte it writes",
    "slices": "per slice",
    "slice_bytes": "per byte sliced",
    "views": "per reshape or cast",
    "further_inputs": "per further input",
    "further_outputs": "per further output",
    "input_pairs": "per pair of inputs",
    "byte_reads": "per auxiliary layer of a quantised picture",
    "half_reads": "per auxiliary layer in half precision",
    "loaded_bytes": "per byte loaded",
    "stored_bytes": "per byte stored",
    "accesses": "per access to a memory",
    "stacks": "per busy stack",
    "stacked_rows": "per row of a busy stack",
    "last_bytes": "per byte of its last part",
}
"""What each coefficient is, in the order of the output: a, b and c before the further terms."""
A_B_C = {"a_s_per_byte": "input_bytes", "b_s_per_byte": "output_bytes", "c_s": "runs"}
"""The coefficient of each of a, b and c in JSON."""


def overhead_json(table: Lut) -> dict[str, Any]:
    """Return what the method subtracts, then the plain fit of S1.4, then the fit with further terms."""
    fit = table.overhead
    return {
        **_a_b_c(fit),
        "model": fit.model,
        "plain": _summary(table.overhead_by("plain")),
        "extended": _summary(table.overhead_by("extended")),
        "least_squares": {
            **{name: fit.least_squares.get(column, 0.0) for name, column in A_B_C.items()},
            "r2": fit.least_squares_r2,
        },
        "coefficients": {name: asdict(fit.coefficients[name]) for name in OVERHEAD_UNITS},
        "r2": fit.r2,
        "condition": fit.condition,
        "scatter": fit.scatter,
        "probes": fit.probes,
    }


def _summary(fit: Overhead | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    facts = {name: getattr(fit, name) for name in ("r2", "condition", "scatter", "probes")}
    further = {name: fit.coefficients[name].value for name in fit.least_squares if name not in A_B_C.values()}
    return {**_a_b_c(fit), **facts, "further_terms": further}


def _a_b_c(fit: Overhead) -> dict[str, Any]:
    named = {name: fit.coefficients[column] for name, column in A_B_C.items()}
    intervals = {name: [one.low, one.high] for name, one in named.items()}
    return {**{name: one.value for name, one in named.items()}, "intervals": intervals}


def overhead_parts(table: Lut, terms: Collection[str] = OVERHEAD_UNITS) -> Iterator[Part]:
    """Yield a, b and c by least squares, then the coefficients `terms` of the fit with further terms.

    The other coefficients are only named. For an imported table, yield the values that it states.
    """
    if table.is_imported:
        fit = table.overhead
        yield f"overhead: a {fit.a.value:.3e} s/byte, b {fit.b.value:.3e} s/byte, c {fit.c.value:.3e} s, stated"
        return
    plain, extended = table.overhead_by("plain"), table.overhead_by("extended")
    if plain is not None:
        rows = [_coefficient_row(name, plain.coefficients[name]) for name in A_B_C.values()]
        yield Table(("overhead of a run, in seconds", "least squares", "95 % interval"), rows)
        yield (("fit", _quality(plain)),)
    if extended is not None:
        found = [
            (*_coefficient_row(name, extended.coefficients[name]), f"{extended.least_squares[name]:.3e}")
            for name in terms
            if name in extended.least_squares
        ]
        yield Table(("with further terms, s", "robust", "95 % interval", "least squares"), found)
        yield (("fit", _quality(extended)),)
        left = [unit for name, unit in OVERHEAD_UNITS.items() if name in extended.least_squares and name not in terms]
        if left:
            yield f"further terms, with values in `harness lut show`: {', '.join(left)}"


def _coefficient_row(name: str, fitted: Coefficient) -> tuple[str, str, str]:
    return OVERHEAD_UNITS[name], f"{fitted.value:.3e}", f"[{fitted.low:.3e}, {fitted.high:.3e}]"


def _quality(fit: Overhead) -> str:
    other = "" if fit.model == "plain" else f" (least squares {fit.least_squares_r2:.4f})"
    return (
        f"R² {fit.r2:.4f}{other}  condition number {fit.condition:.1f}"
        f"  {fit.probes} null probes, scatter {fit.scatter:.1%}"
    )


def warnings_of(table: Lut) -> Iterator[str]:
    """Yield where the device's data contradict the additive model, and what else limits the use of a table."""
    fit = table.overhead
    if fit.contradicts_model:
        yield (
            f"Runs without a layer differ from the fitted overhead by {fit.misfit:.1%}, more than noise explains;"
            " layer latencies inherit this error"
        )
    if table.machine.startswith("noisy"):
        yield f"The machine was {table.machine}. The intervals include the variation between processes"
    if table.is_comparison:
        yield f"{table.method} is for comparison: other commands use this table only with --lut {table.name}"
    # No probe of a device with its own memory has one of the added terms.
    merged = [OVERHEAD_UNITS[name] for name in fit.confounded if name not in ADDED_TERMS]
    if merged and table.clock == "device" and fit.model != "plain":  # the plain model has no such terms
        yield (
            f"Null probes on this device cannot separate a and b from the times {', '.join(merged)}: a and b include"
            " the time of the device's own memory"
        )
    if table.additivity is not None and table.additivity > MISFIT:
        yield (
            f"Probes differ from the sum of their parts by {table.additivity:.1f} times their errors: layers overlap,"
            f" or the device was disturbed. Intervals of sums are widened by {table.sum_error:.1%}"
        )
    flagged = sum(bool(entry.flags) for entry in table.entries)
    if flagged:
        yield (
            f"Another method gives another latency for {flagged} of {len(table.entries)} entries; `harness lut show`"
            " marks them"
        )


def changes_table(changes: LutChanges) -> Table:
    """Return the layers that changed between two tables."""
    rows = [
        (
            *(sizes_of(one.signature), one.op, one.context, microseconds(one.before_s), microseconds(one.after_s)),
            *(signed_percent(one.ratio - 1), f"{one.z:+.1f}"),
        )
        for one in changes.changed
    ]
    return Table(("layer", "operators", "context", "before µs", "after µs", "change", "std. errors"), rows, left=3)


def list_of_tables(tables: Sequence[StoredTable]) -> Table:
    """Return a line for each table; its name begins with the device and the date."""
    header = ("table", "method", "entries", "size", "measured with", "note")
    rows = [
        (
            *(one.name, one.method or "manifest unreadable", str(one.entries)),
            *(byte_size(float(f"{one.size_bytes:.3g}")), one.variant.options().strip()),
            ", ".join(word for word, holds in (("default", one.is_default), ("package", one.is_published)) if holds),
        )
        for one in tables
    ]
    return Table(header, rows, left=2)
