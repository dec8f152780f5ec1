"""`harness agent`: install the agent on a device."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import note, print_json
from harness.text import printable
from harness.workspace import find_workspace

app = arguments.command_group("Install the agent on a device.")


@app.callback()
def _agent() -> None:
    """Keep `install` a subcommand although it is the only one."""


@app.command()
def install(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of an SSH device.", autocompletion=arguments.complete_device)
    ],
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Copy the agent to an SSH device.

    The command prints the authorized_keys line that starts it.

    Example: harness agent install board
    """
    from harness.device.inventory import find_device, load_inventory
    from harness.device.ssh.install import install_agent

    device = find_device(load_inventory(find_workspace(directory).devices), name)
    done = install_agent(device)
    if json:
        print_json(**{key: value if isinstance(value, bool) else str(value) for key, value in vars(done).items()})
        return
    for key, value in vars(done).items():
        print(f"{key}: {printable(str(value))}")  # never folded: a line of authorized_keys is copied from here
    note(f"Next: replace the line of this key in ~/.ssh/authorized_keys on {name} with the one above")
    note(f"Then: harness devices check {name}")
