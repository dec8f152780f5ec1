"""Commands of `harness lut` on a table: build, show, compare, check and export."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.options.option_groups import spread
from harness.cli.options.result_files import result_file
from harness.cli.terminal.layer_table import LayerView, ShownLayer, show_layers, work_fields
from harness.cli.terminal.output import note, print_json, print_line, print_table, signed_percent
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.errors import LutNotFound
from harness.latency.method_names import DEFAULT_METHOD, LatencyMethod
from harness.text import clock_name, microseconds
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.latency.overhead import Coefficient, Overhead
    from harness.lut.layer_work import LayerWork
    from harness.lut.table import Entry, Lut

SHOWN_ENTRIES = 20
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


def _table(metavar: str, help: str = "Folder of a table, or its name DEVICE/TABLE.") -> Any:
    """Return the argument that names a table."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=arguments.complete_table)


def build(
    device: arguments.DeviceName = None,
    method: Annotated[
        LatencyMethod, typer.Option(help="Estimator of layer latencies; docs/method.md explains them.")
    ] = DEFAULT_METHOD,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65536, help="Use the campaigns of `profile --batch N`.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1024, help="Use the campaigns of `profile --threads N`.")
    ] = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Build a table from the measurements of `harness profile`.

    Campaigns measured with --batch or --threads go into separate tables; pass the same option here.

    Example: harness lut build --device cpu01
    """
    from harness.lut.build import build_lut

    workspace = find_workspace(directory)
    device = device or workspace.default_device
    with show_progress(f"lut build {device}", quiet_s=LINE_EVERY_S, by_thread=False) as observe:
        table = build_lut(
            device, workspace=workspace, method=method, batch=batch, threads=threads, note=note, observe=observe
        )
    if json:
        print_json(
            lut=str(table.path),
            entries=len(table.entries),
            method=table.method,
            overhead=overhead_json(table),
            additivity=table.additivity,
            sum_error=table.sum_error,
            misfit=table.overhead.misfit,
            flagged=sum(bool(entry.flags) for entry in table.entries),
            repeatability=table.repeatability,
            machine=table.machine,
        )
    else:
        what = f"{len(table.entries)} entries  method {table.method}  clock {clock_name(table.clock)}"
        print_line(f"{table.path}  {what}")
        show_overhead(table)
        _warn(table)


@spread
def show(
    folder: Annotated[Path | None, _table("DIR")] = None,
    device: arguments.OptionalDevice = None,
    *,
    view: LayerView,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Show a table: the overhead, the device, the slowest layers.

    Example: harness lut show --device cpu01 --sort macs --top 0
    """
    from harness.lut.layer_work import entry_works
    from harness.lut.table_choice import open_table

    table = open_table(device, folder, find_workspace(directory))
    works = entry_works(table, table.entries)
    if json:
        print_json(
            lut=str(table.path),
            **{name: getattr(table, name) for name in ("device", "created", "clock", "method", "visits", "machine")},
            fingerprint=dict(table.fingerprint),
            overhead=overhead_json(table),
            rules=[asdict(rule) for rule in table.rules],
            entries=[{**asdict(entry), **work_fields(work)} for entry, work in zip(table.entries, works, strict=True)],
        )
        return
    how = f"method {table.method}  clock {clock_name(table.clock)}  visits {table.visits}"
    print_line(f"{table.path}  {table.created}  {how}")
    print_line("  ".join(f"{name}: {value}" for name, value in sorted(table.fingerprint.items())))
    show_overhead(table)
    rows = [_row(entry, work, view) for entry, work in zip(table.entries, works, strict=True)]
    show_layers(rows, view, sort="latency", top=SHOWN_ENTRIES, last="; --top 0 shows all")
    unresolved = sum(not entry.resolved for entry in table.entries)
    print_line(f"{len(rows)} entries, {unresolved} below resolution: too short to distinguish from noise")


def _row(entry: Entry, work: LayerWork | None, view: LayerView) -> ShownLayer:
    """Return the row of an entry; estimators that disagree are named in a wide view."""
    note = "" if entry.resolved else "below resolution"
    if entry.flags and entry.resolved:
        note = entry.flags if view.wide else "disputed"
    place = (entry.key, entry.context)
    return ShownLayer("", entry.op, entry.latency_s, entry.stderr_s, work, *place, samples=entry.samples, note=note)


def diff(
    before: Annotated[Path, _table("A")],
    after: Annotated[Path, _table("B", "The same.")],
    html: arguments.HtmlFile = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Compare two tables, and list the layers that changed.

    A layer has changed if it differs by more than 2 % and three standard errors (z).

    Example: harness lut diff lut/cpu01/2026-01-01-0a1b2c3d lut/cpu01/2026-01-02-4e5f6a7b
    """
    from harness.lut.layer_diff import compare
    from harness.lut.table_choice import open_table

    workspace = find_workspace(directory)
    old, new = (open_table(None, folder, workspace) for folder in (before, after))
    if old.device != new.device:
        note(f"The tables are of different devices, {old.device} and {new.device}")
    changes = compare(old, new)
    if html is not None:
        from harness.report.comparison_page import write_comparison

        write_comparison(html, old, new, command_line())
    if json:
        print_json(**asdict(changes))
        return
    rows = []
    for one in changes.changed:
        times = microseconds(one.before_s), microseconds(one.after_s)
        rows.append((one.key, one.op, one.context, *times, signed_percent(one.ratio - 1), f"{one.z:+.1f}"))
    if rows:
        print_table(("key", "operators", "context", "before µs", "after µs", "change", "z"), rows, left=3)
    print_line(
        f"{len(changes.changed)} of {changes.common} common layers changed; {len(changes.added)} added,"
        f" {len(changes.removed)} removed; in total {signed_percent(changes.total_ratio - 1)}"
    )
    for name, (was, is_now) in changes.fingerprint.items():
        note(f"{name}: {was} -> {is_now}")


def check(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="Folders of tables.")] = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Check hashes, schema and values of tables.

    By default, all tables of the workspace are checked; the cache is not used.

    Example: harness lut check
    """
    from harness import cache
    from harness.lut.table_files import MANIFEST, read_lut

    root = find_workspace(directory).lut
    chosen = folders or sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))
    if not chosen:
        raise LutNotFound(f"There is no table in {root}", next_step="Give --workspace, or the folders of tables")
    with cache.unused():
        tables = [read_lut(folder) for folder in chosen]
    for table in tables:
        _ = table.loaded_predictor  # raises where it is none
    if json:
        print_json(
            tables=[{"lut": str(table.path), "device": table.device, "entries": len(table.entries)} for table in tables]
        )
        return
    for table in tables:
        print_line(f"{table.path}  {len(table.entries)} entries  intact")
    print_line(f"{len(tables)} tables intact")


def export(
    output: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write: .csv, .json or .parquet.", callback=result_file)
    ],
    folder: arguments.LutFolder = None,
    device: arguments.OptionalDevice = None,
    directory: arguments.WorkspaceFolder = None,
) -> None:
    """Write the entries of a table to one file.

    The extension of the file selects the format.

    Example: harness lut export layers.csv --device cpu01
    """
    from harness.lut.table_choice import open_table
    from harness.lut.table_files import export_entries

    table = open_table(device, folder, find_workspace(directory))
    export_entries(table, output)
    print_line(f"{output}  {len(table.entries)} entries of {table.name}")


def _warn(table: Lut) -> None:
    """Note where the device's data contradict the additive model."""
    from harness.latency.joint import MISFIT

    if table.overhead.contradicts_model:
        note(
            f"Runs without a layer differ from the fitted overhead by {table.overhead.misfit:.1%}, more than noise"
            " explains; layer latencies inherit this error"
        )
    if table.machine.startswith("noisy"):
        note(f"The machine was {table.machine}. The intervals include the variation between processes")
    if table.is_comparison:
        note(f"{table.method} is for comparison: other commands use this table only with --lut {table.name}")
    merged = [OVERHEAD_UNITS[name] for name in table.overhead.confounded if table.clock == "device"]
    if table.overhead.model == "plain":
        merged = []  # the plain model has no such terms
    if merged:
        note(
            f"Null probes cannot separate {' and '.join(merged)} from a and b on this device: a and b include the time"
            " of its own memory"
        )
    if table.additivity is not None and table.additivity > MISFIT:
        note(
            f"Probes differ from the sum of their parts by {table.additivity:.1f} times their errors: layers overlap,"
            f" or the device was disturbed. Intervals of sums are widened by {table.sum_error:.1%}"
        )
    flagged = sum(bool(entry.flags) for entry in table.entries)
    if flagged:
        note(
            f"{flagged} of {len(table.entries)} entries have another latency by another method; `harness lut show`"
            " marks them"
        )


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
        rows = [_coefficient_row(name, plain.coefficients[name]) for name in _A_B_C.values()]
        print_table(("overhead of a run, in seconds", "least squares", "95 % interval"), rows)
        print_line(_quality(plain))
    if extended is not None:
        found = [
            (*_coefficient_row(name, extended.coefficients[name]), f"{extended.least_squares[name]:.3e}")
            for name in OVERHEAD_UNITS
            if name in extended.least_squares
        ]
        print_table(("with further terms, s", "robust", "95 % interval", "least squares"), found)
        print_line(_quality(extended))


def _coefficient_row(name: str, fitted: Coefficient) -> tuple[str, str, str]:
    return OVERHEAD_UNITS[name], f"{fitted.value:.3e}", f"[{fitted.low:.3e}, {fitted.high:.3e}]"


def _quality(fit: Overhead) -> str:
    other = "" if fit.model == "plain" else f" (least squares {fit.least_squares_r2:.4f})"
    return (
        f"R² {fit.r2:.4f}{other}  condition number {fit.condition:.1f}"
        f"  {fit.probes} null probes, scatter {fit.scatter:.1%}"
    )
