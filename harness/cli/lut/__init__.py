"""`harness lut`: build, list, show, compare, check, export, import and prune lookup tables."""

from __future__ import annotations

from harness.cli.lut import import_table, stored_tables, tables
from harness.cli.options.arguments import command_group

app = command_group("Build, show, compare, check, export and import tables.")
for command in (
    tables.build,
    stored_tables.list_tables,
    tables.show,
    tables.diff,
    tables.check,
    tables.export,
    stored_tables.prune,
):
    app.command("list" if command is stored_tables.list_tables else None)(command)
app.command("import")(import_table.import_table)
