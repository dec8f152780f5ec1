"""`harness lut`: build, list, show, compare, check, export, import and prune lookup tables."""

from __future__ import annotations

import typer

from harness.cli.lut import import_table, shelf, tables

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Build, list, show, compare, check, export, import and prune tables.",
)
for command in (tables.build, shelf.list_tables, tables.show, tables.diff, tables.check, tables.export, shelf.prune):
    app.command("list" if command is shelf.list_tables else None)(command)
app.command("import")(import_table.import_table)
