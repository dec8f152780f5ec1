"""`harness npu disassemble`: the instructions of a program."""

from __future__ import annotations

from typing import Annotated

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.option_groups import Heading, spread
from harness.cli.terminal.output import note, print_json
from harness.npu.npu_options import MachineChoice, Options


@spread
@limited()
def disassemble_command(
    model: arguments.ModelOrProgram,
    machine: MachineChoice,
    compiler: Annotated[Options, Heading("Options of the compiler")],
    network: arguments.NetworkOptions,
    json: arguments.Json = False,
) -> None:
    """Print the instructions of a network or program file.

    docs/isa.md explains them.

    Example: harness npu disassemble resnet50.npu
    """
    from harness.npu.listing import as_comments, listing
    from harness.npu.loading import load

    loaded = load(model, machine, compiler, *network.read, note)
    program = loaded.program
    text, setup = listing(program), listing(program.setup)
    if json:
        layers, size = list(program.layers), len(program.code)
        print_json(machine=loaded.machine.name, code_bytes=size, layers=layers, text=text, setup_text=setup)
    else:
        print(text + as_comments(setup), end="")
