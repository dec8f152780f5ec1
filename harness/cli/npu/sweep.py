"""`harness npu sweep`: the time of a network on many machines that differ in a few parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.options.option_groups import Heading, OnlyFields, spread
from harness.cli.options.result_files import page_option
from harness.cli.terminal.output import note, print_json, print_report, write_csv
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import Options, RunOptions


@dataclass(frozen=True)
class GridOptions:
    """The machines of a sweep."""

    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUES",
            help="Machine parameter and its values: mfu.rows=8,16,32, nb_bytes=256K:4M:x2 (by a factor) or"
            " ddr.latency_ns=0:400:+100 (by a step); keys as in a machine's TOML file; may be repeated for a grid.",
        ),
    ] = None
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Built-in machine (default edge); may be repeated for a grid.",
            autocompletion=arguments.complete_preset,
        ),
    ] = None
    machine: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="TOML file of your own machine; may be repeated.")
    ] = None


@dataclass(frozen=True)
class SweepResults:
    """The second objective of the front, and the files that the command writes."""

    cost: Annotated[
        Literal["area", "energy"], typer.Option(help="Second objective of the Pareto front: area, or energy per run.")
    ] = "area"
    csv: arguments.CsvFile = None
    plot: Annotated[Path | None, page_option("--plot", "Write a plot to this page.")] = None


@spread
@limited(8)
def sweep_command(
    model: arguments.Model,
    machines: GridOptions,
    results: SweepResults,
    *,
    compiler: Annotated[Options, Heading("Options of the compiler")],
    limits: Annotated[RunOptions, OnlyFields(("cycle_budget",))],
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Number of parallel processes.")] = 1,
    dim: arguments.Dims = None,
    json: arguments.Json = False,
) -> None:
    """Compile and time a network for many machines.

    They differ in the values of parameters, in presets, or in both. Sizes that belong together scale together, unless
    you set them: nb_bytes and sb_bytes with shared_buffer; halo_bytes with nb_bytes. A machine that cannot run the
    network stays in the table with the reason.

    The knee is the value beyond which more of a parameter gains little. It is the point farthest below the line from
    the first value to the last (Kneedle), on logarithmic axes if the values are spaced by a factor. Machines on the
    Pareto front are marked: no other machine is both faster and smaller, or, with --cost energy, both faster and lower
    in energy.

    If a larger machine is slower than a smaller one, the sweep also runs the smaller machine's program on it, to
    separate effects of the compiler from those of the hardware. The limit of processor time (HARNESS_NPU_SECONDS)
    applies to each process separately.

    Example: harness npu sweep model.onnx --set nb_bytes=512K:8M:x2
    """
    from harness.npu.loading import load_model
    from harness.npu.sweep import grid, points, sweep_tables

    swept = grid.read_grid(machines.preset or [], machines.machine or [], machines.sets or [])
    if results.plot is not None:
        swept.check_drawable()
    dims, budget, cost = arguments.parse_dims(dim), limits.cycle_budget, results.cost
    with show_progress("sweep", quiet_s=LINE_EVERY_S, command=f"npu sweep {model}") as observe:
        sweep = points.run_sweep(lambda: load_model(model, dims, note), swept, compiler, budget, observe, jobs, cost)
    if results.csv is not None:
        write_csv(results.csv, sweep_tables.point_rows(sweep))
    if results.plot is not None:
        from harness.report.html import write_figure

        write_figure(results.plot, *sweep_tables.sweep_plot(sweep), command_line())
    if json:
        print_json(**sweep_tables.json_fields(sweep))
    else:
        print_report(sweep_tables.sweep_tables(sweep))
