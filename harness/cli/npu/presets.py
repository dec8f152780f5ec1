"""`harness npu presets`: the built-in machines."""

from __future__ import annotations

from harness.cli.options import arguments
from harness.cli.terminal.output import print_json, print_report


def presets_command(json: arguments.Json = False) -> None:
    """List the built-in machines of the emulated NPU.

    The table shows the data type of each machine, its multiply-adds in a cycle, its clock, its cores, its buffers NB
    and SB, its last-level cache, the bandwidth of its DDR, and the source of its numbers. `--preset NAME` of the other
    commands selects a machine.

    Example: harness npu presets
    """
    from harness.npu.preset_list import preset_fields, preset_table, presets

    found = presets()
    if json:
        print_json(presets=[preset_fields(preset) for preset in found])
    else:
        print_report(preset_table(found))
