"""The overhead of a table, as `harness lut` prints it: a, b and c by least squares, then the fit with further terms."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.cli.terminal.output import print_line, print_table

if TYPE_CHECKING:
    from harness.latency.overhead import Coefficient, Overhead
    from harness.lut.table import Lut

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
    "loaded_bytes": "per byte loaded",
    "stored_bytes": "per byte stored",
    "accesses": "per access to a memory",
    "stacks": "per busy stack",
    "stacked_rows": "per row of a busy stack",
    "last_bytes": "per byte of its last part",
}

"""What each coefficient is, in the order of the output: a, b and c before the further terms."""
_A_B_C = {"a_s_per_byte": "input_bytes", "b_s_per_byte": "output_bytes", "c_s": "runs"}


def overhead_json(table: Lut) -> dict[str, Any]:
    """Return what the method subtracts, then the plain fit of S1.4, then the fit with further terms."""
    fit = table.overhead
    return {
        **_a_b_c(fit),
        "model": fit.model,
        "plain": _summary(table.overhead_by("plain")),
        "extended": _summary(table.overhead_by("extended")),
        "least_squares": {
            **{name: fit.least_squares.get(column, 0.0) for name, column in _A_B_C.items()},
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
    further = {name: fit.coefficients[name].value for name in fit.least_squares if name not in _A_B_C.values()}
    return {**_a_b_c(fit), **facts, "further_terms": further}


def _a_b_c(fit: Overhead) -> dict[str, Any]:
    named = {name: fit.coefficients[column] for name, column in _A_B_C.items()}
    intervals = {name: [one.low, one.high] for name, one in named.items()}
    return {**{name: one.value for name, one in named.items()}, "intervals": intervals}


def show_overhead(table: Lut) -> None:
    """Print a, b and c by least squares, then the coefficients with further terms; what was stated of other tools."""
    if table.is_imported:
        fit = table.overhead
        print_line(f"overhead: a {fit.a.value:.3e} s/byte, b {fit.b.value:.3e} s/byte, c {fit.c.value:.3e} s, stated")
        return
    plain, extended = table.overhead_by("plain"), table.overhead_by("extended")
    if plain is not None:
        rows = [_row(name, plain.coefficients[name]) for name in _A_B_C.values()]
        print_table(("overhead of a run, in seconds", "least squares", "95 % interval"), rows)
        print_line(_quality(plain))
    if extended is not None:
        found = [
            (*_row(name, extended.coefficients[name]), f"{extended.least_squares[name]:.3e}")
            for name in OVERHEAD_UNITS
            if name in extended.least_squares
        ]
        print_table(("with further terms, s", "robust", "95 % interval", "least squares"), found)
        print_line(_quality(extended))


def _row(name: str, fitted: Coefficient) -> tuple[str, str, str]:
    return OVERHEAD_UNITS[name], f"{fitted.value:.3e}", f"[{fitted.low:.3e}, {fitted.high:.3e}]"


def _quality(fit: Overhead) -> str:
    other = "" if fit.model == "plain" else f" (least squares {fit.least_squares_r2:.4f})"
    return (
        f"R² {fit.r2:.4f}{other}  condition number {fit.condition:.1f}"
        f"  {fit.probes} null probes, scatter {fit.scatter:.1%}"
    )
