"""`harness npu fit`: a machine of the emulated NPU from the samples of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import note, print_json, print_report, write_result
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import DEFAULT_PRESET, MachineChoice
from harness.text import printable
from harness.workspace import find_workspace


def fit_command(
    device: arguments.OptionalDevice = None,
    lut: arguments.LutFolder = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Built-in machine that supplies what the samples do not identify.",
            autocompletion=arguments.complete_preset,
        ),
    ] = DEFAULT_PRESET,
    output: Annotated[Path | None, file_option("--output", "-o", help="Write the machine to this TOML file.")] = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Fit a machine to the measured layers of a device.

    The command finds rates, bandwidths, start-ups and overlap, with intervals. The samples are those of the device's
    table, from `harness profile` and `harness lut build`. A parameter that they do not identify is listed with the
    reason, and gets the preset's value in the machine file. The residuals show what the machine does not explain.

    Example: harness npu fit --device cpu01 --output cpu01.toml
    """
    from harness.lut.table_choice import open_table
    from harness.measure.progress import DONE
    from harness.npu.fit.fit_tables import fit_tables, json_fields
    from harness.npu.fit.fitted_machine import machine_of, machine_text
    from harness.npu.fit.machine_fit import DeviceSamples, fit_machine

    base = MachineChoice(preset=preset).load()
    table = open_table(device, lut, find_workspace(directory))
    with show_progress("npu fit", quiet_s=LINE_EVERY_S) as observe:
        fit = fit_machine(DeviceSamples.of(table), observe)
        observe(DONE)
    found = machine_of(fit, base, table.device if output is None else output.stem)
    if output is not None:
        heading = f"Fitted to the table {printable(table.name)} on top of the preset {preset}, by `harness npu fit`."
        write_result(output, machine_text(found, heading))
    if json:
        print_json(**json_fields(fit, found), lut=str(table.path), machine=None if output is None else str(output))
        return
    print_report(fit_tables(fit, found))
    if output is not None:
        note(f"{output}: run it with `harness npu run MODEL --machine {output}`")
