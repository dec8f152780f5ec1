"""`harness npu compile`: a network as a binary program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.option_groups import Heading, spread
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import note, print_json, print_line, print_report, write_result
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import MachineChoice, Options


@spread
@limited()
def compile_command(
    model: arguments.Model,
    machine: MachineChoice,
    output: Annotated[Path | None, file_option("--output", "-o", help="Write the program to this file.")] = None,
    image: Annotated[
        Path | None,
        file_option(
            "--image", metavar="FILE.bin", help="Write a memory image of the network's constants, laid out as in DDR."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the alternatives considered for each chain, with predicted times.")
    ] = False,
    *,
    compiler: Annotated[Options, Heading("Options of the compiler")],
    network: arguments.NetworkOptions,
    json: arguments.Json = False,
) -> None:
    """Compile a network to a binary program without the weights.

    To compute the outputs of a program file, pass the image that --image writes: `harness npu run FILE.npu --image
    FILE.bin`. This works for edited programs, too.

    Example: harness npu compile builtin:resnet50 --explain -o resnet50.npu
    """
    from harness.measure.progress import DONE
    from harness.npu.loading import LoadedProgram, compile_reference
    from harness.npu.run.core_run import setup_cycles
    from harness.npu.run.run_fields import compile_fields
    from harness.npu.run.run_tables import compile_tables

    with show_progress("compile", quiet_s=LINE_EVERY_S, command=f"npu compile {model}") as observe:
        made = compile_reference(model, machine, compiler, *network.read, note, observe)
        observe(DONE)
    cycles = setup_cycles(LoadedProgram.of(made))
    if output is not None:
        write_result(output, made.compiled.program.to_bytes())
    if image is not None:
        from harness.npu.memory_image import image_of

        write_result(image, image_of(model, made))
    if json:
        print_json(program=None if output is None else str(output), **compile_fields(made, cycles, explain))
    else:
        print_report(compile_tables(made, cycles, explain))
        for path in filter(None, (output, image)):
            print_line(str(path), f"{'written':<13}")
