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
from harness.cli.terminal.output import note, print_json, print_line, print_report
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.errors import LutNotFound
from harness.latency.method_names import DEFAULT_METHOD, LatencyMethod
from harness.text import clock_name, counted, signed_percent
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.lut.layer_work import LayerWork
    from harness.lut.table import Entry

SHOWN_ENTRIES = 20


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
    from harness.lut.lut_tables import A_B_C, overhead_json, overhead_parts, warnings_of

    workspace = find_workspace(directory)
    device = device or workspace.default_device
    with show_progress(f"lut build {device}", quiet_s=LINE_EVERY_S) as observe:
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
        print_report(list(overhead_parts(table, A_B_C.values())))
        note("`harness lut show` lists the layers")
        for warning in warnings_of(table):
            note(warning)


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
    from harness.lut.lut_tables import overhead_json, overhead_parts
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
    print_report(list(overhead_parts(table)))
    rows = [_row(entry, work, view) for entry, work in zip(table.entries, works, strict=True)]
    show_layers(rows, view, sort="latency", top=SHOWN_ENTRIES, last="; --top 0 shows all")
    unresolved = sum(not entry.resolved for entry in table.entries)
    print_line(f"{len(rows)} entries, {unresolved} below resolution: too short to distinguish from noise")


def _row(entry: Entry, work: LayerWork | None, view: LayerView) -> ShownLayer:
    """Return the row of an entry; estimators that disagree are named in a wide view."""
    note = "" if entry.resolved else "below resolution"
    if entry.flags and entry.resolved:
        note = entry.flags if view.wide else "disputed"
    known = (entry.latency_s, entry.stderr_s, work, entry.key, entry.context)
    return ShownLayer("", entry.op, *known, samples=entry.samples, note=note, signature=entry.signature)


def diff(
    before: Annotated[Path, _table("A")],
    after: Annotated[Path, _table("B", "The same.")],
    html: arguments.HtmlFile = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Compare two tables, and list the layers that changed.

    A layer has changed if it differs by more than 2 % and three standard errors.

    Example: harness lut diff cpu01/2026-01-01-0a1b cpu01/2026-01-02-4e5f
    """
    from harness.lut.layer_diff import compare
    from harness.lut.lut_tables import changes_table
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
    if changes.changed:
        print_report([changes_table(changes)])
    print_line(
        f"{len(changes.changed)} of {changes.common} common entries changed; {len(changes.added)} added,"
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
    print_line(f"{counted(len(tables), 'table')} intact")


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
