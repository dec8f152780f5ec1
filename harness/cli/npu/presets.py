"""`harness npu presets`: the built-in machines."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import print_json, print_report


def presets_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Print this machine's file.", autocompletion=arguments.complete_preset),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """List the built-in machines of the emulated NPU, or print the file of one.

    A file is a start for a machine of your own. The table shows the data type of each machine, its multiply-adds in a
    cycle, clock and cores. It also shows the buffers NB and SB, the last-level cache, the bandwidth of DDR, and the
    source of the numbers. `--preset NAME` of the other commands selects a machine.

    Example: harness npu presets ethos-u55-256 > mine.toml
    """
    from harness.npu.error_translation import errors_of_user
    from harness.npu.preset_list import preset_fields, preset_table, presets

    with errors_of_user():
        found = presets(name)
    if name is not None and not json:
        print(found[0].text, end="")
    elif json:
        print_json(presets=[preset_fields(preset) for preset in found])
    else:
        print_report(preset_table(found))
