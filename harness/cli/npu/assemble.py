"""`harness npu assemble`: a program from an edited listing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import note, print_json, write_result
from harness.errors import UsageError


def assemble_command(
    listing: Annotated[Path, typer.Argument(metavar="LISTING", help="The output of `npu disassemble`, edited.")],
    base: Annotated[Path, typer.Option(metavar="PROGRAM", help="The program file that the listing came from.")],
    output: Annotated[Path, file_option("--output", "-o", help="Write the program to this file.")],
    json: arguments.Json = False,
) -> None:
    """Assemble an edited listing to a program file.

    Inputs, outputs, memories and the setup are those of --base. `npu run` checks every access of the new program.

    Example: harness npu assemble edited.txt --base dscnn.npu -o edited.npu
    """
    from harness.npu.listing import assembled
    from harness.npu.loading import is_program, read_program

    if not is_program(str(base)):
        raise UsageError("--base is not a program file", next_step="Give a file of `harness npu compile -o`")
    program = assembled(listing, read_program(base))
    write_result(output, program.to_bytes())
    instructions = len(program.layer_of)
    if json:
        print_json(program=str(output), machine=program.machine, instructions=instructions)
    else:
        note(f"{instructions:,} instructions for {program.machine}")
