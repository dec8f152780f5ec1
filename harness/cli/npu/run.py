"""`harness npu run`: a network on one core of the emulated NPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.options.option_groups import Heading, spread
from harness.cli.terminal.output import note, print_json, print_report, write_csv
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import MachineChoice, Options, RowSort, RunOptions


@dataclass(frozen=True)
class RowOptions:
    """Which layers the table shows, in which order."""

    sort: Annotated[RowSort, typer.Option(help="Order of the layers: as they run, by name, or the largest first.")] = (
        "order"
    )
    top: Annotated[int, typer.Option(metavar="N", min=0, help="Show the first N layers only; 0 shows all.")] = 0


@dataclass(frozen=True)
class RunFiles:
    """The files that the command writes."""

    csv: arguments.CsvFile = None
    html: arguments.HtmlFile = None


@spread
@limited(2)
def run_command(
    model: arguments.ModelOrProgram,
    machine: MachineChoice,
    options: RunOptions,
    files: RunFiles,
    *,
    compiler: Annotated[Options, Heading("Options of the compiler")],
    shown: RowOptions,
    network: arguments.NetworkOptions,
    json: arguments.Json = False,
) -> None:
    """Run a network on one core of the emulated NPU.

    The command prints the time of each layer, and compares the values of the network with ONNX Runtime's. Large weights
    are generated from a seed, as on a device; small ones are read from the file. Program files without --image, and
    float32 networks on machines with a different data type, can be timed but not evaluated.

    The command times only the machine. The device npu01 adds host and transfers to each run: 70 µs, 1 ns for each
    byte of inputs and 0.75 ns for each byte of outputs.

    Example: harness npu run builtin:squeezenet --marginal
    """
    # More threads gain little on matrices of this size, and stall each other on a busy machine; numpy reads it once.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from harness.measure.progress import DONE
    from harness.npu.loading import load
    from harness.npu.run.core_run import run_on_one_core
    from harness.npu.run.run_fields import json_fields, layer_rows
    from harness.npu.run.run_tables import run_tables

    options.check(compiler)
    with show_progress("run", quiet_s=LINE_EVERY_S, command=f"npu run {model}") as observe:
        loaded = load(model, machine, compiler, *network.read, note, observe)
        run = run_on_one_core(loaded, options, note, observe)
        observe(DONE)
    if files.csv is not None:
        write_csv(files.csv, layer_rows(run))
    if files.html is not None:
        from harness.npu.run.run_page import write_run

        write_run(files.html, run, command_line())
    if json:
        print_json(**json_fields(run))
    else:
        print_report(run_tables(run, shown.sort, shown.top))
