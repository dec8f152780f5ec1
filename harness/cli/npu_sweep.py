"""`harness npu sweep`: the time of a network on many machines that differ in a few parameters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import npu_options, options
from harness.cli.output import print_json


def sweep_command(
    model: npu_options.Model,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Machine parameter and its values: mfu.rows=8,16,32, nb_bytes=256K:4M:x2 (by a factor) or"
            " ddr.latency_ns=0:400:+100 (by a step); keys as in the TOML of a machine; may be repeated for a grid.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", help="Machine that comes along (default edge); may be repeated for a grid."),
    ] = None,
    machine: Annotated[
        list[Path] | None, typer.Option("--machine", help="TOML file of a machine of your own; may be repeated.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the points to this file.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this file, as SVG.")] = None,
    chains: npu_options.Chains = "auto",
    halo: npu_options.Halo = "auto",
    tile: npu_options.Tile = None,
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    fences: npu_options.Fences = False,
    conv_algorithm: npu_options.ConvAlgorithm = "auto",
    cycle_budget: npu_options.CycleBudget = None,
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Compile and time a network for many machines: over values of a parameter, over presets, or over both.

    The knee is where more of a parameter stops paying: the point farthest below the line from the first value to the
    last (Kneedle), on logarithmic axes where the values follow each other by a factor. A machine that cannot run the
    network stays in the table with the reason. With shared_buffer, nb_bytes and sb_bytes are one and set together.

    Example: harness npu sweep builtin:squeezenet --set nb_bytes=512K:8M:x2 --plot nb.svg
    """
    from harness.cli import npu_source, npu_sweep_points, npu_sweep_report
    from harness.cli.npu_files import check_folder, write_file

    choices = npu_options.read_options(
        chains=chains,
        halo=halo,
        tile=tile,
        residency=residency,
        no_reorder=no_reorder,
        fences=fences,
        conv_algorithm=conv_algorithm,
    )
    machines, axes = npu_sweep_points.read_machines(preset or [], machine or []), npu_sweep_points.read_axes(sets or [])
    candidates = npu_sweep_points.grid(machines, axes)
    if plot is not None:
        npu_sweep_points.check_drawable(machines, axes)
    for path in (csv, plot):
        if path is not None:
            check_folder(path)
    start = time.perf_counter()
    source = npu_source.load_model(model, dim)
    import_s = time.perf_counter() - start
    points = npu_sweep_points.measure(source, candidates, choices, cycle_budget)
    sweep = npu_sweep_points.Sweep(
        network=source.name,
        machines=tuple(each.name for each in machines),
        axes=axes,
        one_buffer=npu_sweep_points.with_one_buffer(candidates),
        points=points,
        import_s=import_s,
        took_s=time.perf_counter() - start,
    )
    if csv is not None:
        write_file(csv, npu_sweep_report.points_csv(sweep).encode())
    if plot is not None:
        write_file(plot, npu_sweep_report.plot(sweep).encode())
    if json:
        print_json(**npu_sweep_report.json_fields(sweep))
    else:
        npu_sweep_report.show(sweep)
