"""`harness nightly`: measure a lab every night, show and compare the nights, and schedule them."""

from __future__ import annotations

from harness.cli.nightly import changes, nights
from harness.cli.options.arguments import command_group

app = command_group("Measure a lab every night, and list what became slower.")
app.command()(nights.run)
app.command()(nights.status)
app.command()(changes.history)
app.command()(changes.accept)
app.command("try")(changes.try_slower)
app.command()(nights.install)
