"""`harness nightly`: measure a lab every night, show and compare the nights, and schedule them."""

from __future__ import annotations

import typer

from harness.cli.nightly import changes, nights

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a lab every night, compare the nights, and list what needs attention.",
)
app.command()(changes.history)
app.command()(changes.accept)
app.command("try")(changes.try_slower)
app.command()(nights.run)
app.command()(nights.status)
app.command()(nights.install)
