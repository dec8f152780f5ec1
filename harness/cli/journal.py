"""`harness journal`: check the journal of samples."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import note, print_json, print_line
from harness.errors import JournalError
from harness.text import counted
from harness.workspace import find_workspace

app = arguments.command_group("Check the journal of samples.")


@app.callback()
def _journal() -> None:
    """Keep `check` a subcommand although it is the only one."""


@app.command()
def check(
    exclude: Annotated[
        bool, typer.Option("--exclude", help="Exclude altered campaigns from tables, so that `lut build` can continue.")
    ] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Verify every campaign of the workspace against its digest.

    Altered campaigns are listed, intact ones counted.

    Example: harness journal check
    """
    from harness.measure.journal.journal import Journal
    from harness.measure.journal.reader import altered

    path = find_workspace(directory).journal
    if not path.exists():
        raise JournalError(f"There is no journal at {path}", next_step="Give --workspace, or measure first")
    with Journal(path, to_read=not exclude) as journal:
        verdicts = journal.check_all()
        found = [number for number, verdict in verdicts.items() if verdict == "altered"]
        if exclude:
            journal.hold_back(found)
    if json:
        print_json(campaigns=[{"campaign": number, "state": verdict} for number, verdict in verdicts.items()])
    else:
        for number in found:
            print_line(f"campaign {number}  altered")
        print_line(f"{counted(len(verdicts) - len(found), 'campaign')} intact, {len(found)} altered")
    if found and not exclude:
        raise altered(path, found)
    if found:
        note(f"Excluded from tables: campaign {', '.join(map(str, found))}")
