"""`harness npu split`: ways to split a network over cores, as predicted and as they run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import npu_options, options
from harness.cli.output import print_json


def split_command(
    model: npu_options.Model,
    cores: Annotated[int, typer.Option("--cores", help="Cores of one chip that share the work of every layer.")],
    preset: npu_options.Preset = None,
    machine: npu_options.MachineFile = None,
    layer: Annotated[
        list[str] | None,
        typer.Option("--layer", help="Only the layer of this name, or with this ONNX node; may be repeated."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run every candidate event by event beside the prediction.")
    ] = True,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the candidates to this file.")] = None,
    halo: npu_options.Halo = "auto",
    residency: npu_options.Residency = "auto",
    no_reorder: npu_options.NoReorder = False,
    dim: options.Dims = None,
    json: options.Json = False,
) -> None:
    """Compare ways to split a network over cores: by batch, rows, output channels or input channels, or not at all.

    Times of candidates are predicted by the formula on their instructions, without a run, and verified event by event
    with contention for the memories that the cores share. Every core gets its part of them. Layers are timed alone,
    from memory to memory; the network with each kind for all layers that have it, and with the best for each layer.

    Example: harness npu split builtin:mobilenetv2 --cores 4
    """
    from harness.cli import npu_source, npu_split_report
    from harness.cli.npu_files import check_folder, write_file

    choices = npu_options.read_options(
        chains="auto", halo=halo, tile=None, residency=residency, no_reorder=no_reorder, fences=False
    )
    target = npu_options.choose_machine(preset, machine)
    npu_split_report.check_cores(cores, target)
    if csv is not None:
        check_folder(csv)
    start = time.perf_counter()
    source = npu_source.load_model(model, dim)
    split = npu_split_report.study(source, target, cores, choices, layer or [], verify)
    took_s = time.perf_counter() - start
    if csv is not None:
        write_file(csv, npu_split_report.candidates_csv(split).encode())
    if json:
        print_json(**npu_split_report.json_fields(split), took_s=took_s)
    else:
        npu_split_report.show(split)
