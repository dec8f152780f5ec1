"""`harness journal`: check the journal of samples."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import arguments
from harness.cli.output import note, print_json
from harness.errors import JournalError
from harness.workspace import find_workspace

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check the journal of samples.")

ALTERED = "altered on disk"
"""The reason that excludes a campaign that is not what was measured."""


@app.callback()
def _journal() -> None:
    """Keep `check` a command of its own while it is the only one."""


@app.command()
def check(
    exclude: Annotated[
        bool, typer.Option("--exclude", help="Keep altered campaigns out of tables; `lut build` then goes on without.")
    ] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Compare every campaign of the workspace with the digest of what was measured.

    A campaign is intact, altered, or not covered: it was measured with a version that wrote no digests.

    Example: harness journal check
    """
    from harness.measure.journal import Journal

    path = find_workspace(directory).journal
    if not path.exists():
        raise JournalError(f"There is no journal at {path}", next_step="Give --workspace, or measure first")
    with Journal(path) as journal:
        verdicts = journal.check_all()
        altered = [number for number, verdict in verdicts.items() if verdict == "altered"]
        held = {one: journal.campaign(one) for one in altered if one in journal.numbers()}
        for number, campaign in held.items() if exclude else ():
            if campaign.excluded != ALTERED:
                journal.exclude(number, campaign.token, ALTERED)
    if json:
        print_json(campaigns=[{"campaign": number, "state": verdict} for number, verdict in verdicts.items()])
    else:
        for number, verdict in verdicts.items():
            print(f"campaign {number}  {verdict}")
    if altered and not exclude:
        named = ", ".join(map(str, altered))
        step = (
            "Restore the file from a backup, or keep these campaigns out of tables with"
            " `harness journal check --exclude` and measure again"
        )
        raise JournalError(f"{path} was altered on disk: campaign {named}", next_step=step)
    if altered:
        note(f"Excluded from tables: campaign {', '.join(map(str, held))}")
