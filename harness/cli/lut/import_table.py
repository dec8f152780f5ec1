"""`harness lut import`: a table from measurements of another tool."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_words
from harness.cli.options.option_groups import spread
from harness.cli.terminal.output import note, print_json, print_line, progress_note
from harness.text import printable
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.table_import.importing import TableImport


@dataclass(frozen=True)
class RowSample:
    """Which rows become entries."""

    sample: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Take N random rows of operators; by default all rows.")
    ] = None
    held_out: Annotated[
        int, typer.Option(metavar="N", min=0, help="Predict N other rows from the sample, and print the errors.")
    ] = 0
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sample.")] = 0


@spread
def import_table(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Latencies that another tool measured.")],
    mapping: Annotated[
        Path, typer.Option(metavar="FILE.toml", help="What the columns mean; docs/import.md describes it.")
    ],
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Skip invalid rows and report how many there were.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and compute everything, and write no table.")] = (
        False
    ),
    *,
    sample: RowSample,
    html: arguments.HtmlFile = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Make a table from a CSV file of latencies.

    The latencies were measured by another tool. A row describes a layer, names the nodes of a kernel, or names a whole
    network, which is only used to check the estimates. The table is named DEVICE/DATE-import-HASH; measured tables take
    precedence over imported ones.

    Example: harness lut import conv.csv --mapping conv.toml --sample 3000
    """
    from harness.table_import.importing import Sampling, import_lut

    imported = import_lut(
        file,
        mapping,
        workspace=find_workspace(directory),
        skip_invalid=skip_invalid,
        sampling=Sampling(sample.sample, sample.held_out, sample.seed),
        write=not dry_run,
        note=progress_note,
    )
    if html is not None:
        from harness.report.html import ReportSource, write_report

        write_report(html, imported.table, imported.estimates, imported.validation, ReportSource(command_words()))
    if json:
        print_json(**_json(imported, dry_run))
    else:
        _show(imported, dry_run)


def _json(imported: TableImport, dry_run: bool) -> dict[str, Any]:
    counts = imported.counts
    return {
        "lut": None if dry_run else str(imported.table.path),
        "entries": len(imported.table.entries),
        "rows": {
            "read": counts.read,
            "not_measured": counts.not_measured,
            "unselected": counts.unselected,
            "invalid": counts.invalid_count,
        },
        "invalid": [{"line": line, "reason": reason} for line, reason in sorted(counts.invalid)],
        "predictor": bool(imported.table.predictor),
        "provenance": dict(imported.table.fingerprint),
        "held_out": None if imported.held_out is None else asdict(imported.held_out),
        "validation": None if imported.validation is None else asdict(imported.validation),
        "uncovered": list(imported.uncovered),
    }


def _show(imported: TableImport, dry_run: bool) -> None:
    from harness.cli.validate import show_validation

    table, counts = imported.table, imported.counts
    where = "nothing written" if dry_run else printable(str(table.path))
    print_line(f"{where}  {len(table.entries)} entries from {counts.read} rows  method {table.method}")
    left = {"not measured": counts.not_measured, "in no section": counts.unselected, "invalid": counts.invalid_count}
    if any(left.values()):
        print_line("rows left out: " + ", ".join(f"{count} {name}" for name, count in left.items() if count))
    for line, reason in sorted(counts.invalid):
        note(f"line {line}: {reason}")
    if not table.predictor:
        note("The layers are too few for a predictor: only networks of exactly these layers can be estimated")
    if imported.held_out is not None:
        one = imported.held_out
        unknown = f", {one.unpredicted} of operators without entries" if one.unpredicted else ""
        print_line(
            f"held out: {one.layers} layers predicted{unknown}; median error {one.median_error:.1%},"
            f" mean {one.mean_error:.1%}, within 5 %: {one.within_5:.0%}, within 10 %: {one.within_10:.0%},"
            f" inside the 90 % interval: {one.interval_coverage:.0%}"
        )
    if imported.validation is not None:
        show_validation(imported.validation)
    for name in imported.uncovered:
        note(f"{name} is not compared: the table does not cover it")
