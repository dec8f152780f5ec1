"""`harness npu pipeline`: a network on core groups of the emulated NPU."""

from __future__ import annotations

import os
from typing import Annotated

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.option_groups import Heading, spread
from harness.cli.terminal.output import note, print_json, print_report
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import MachineChoice, Options, PipelineOptions


@spread
@limited(4)
def pipeline_command(
    model: arguments.Model,
    machine: MachineChoice,
    options: PipelineOptions,
    compiler: Annotated[Options, Heading("Options of the compiler")],
    dim: arguments.Dims = None,
    json: arguments.Json = False,
) -> None:
    """Divide a network over core groups, for a stream of inputs.

    Each group sends its activations to the next; the groups work on several inputs at a time. By default the network is
    divided twice, balanced by predicted time and by split score, and both are shown.

    Example: harness npu pipeline builtin:resnet50 --groups 4
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `harness npu run`
    from harness.measure.progress import begin
    from harness.npu.loading import load_model
    from harness.npu.pipeline.pipeline_run import run_pipeline
    from harness.npu.pipeline.pipeline_tables import json_fields, pipeline_tables

    options.check()
    target = machine.load()
    dims = arguments.parse_dims(dim)
    with show_progress("pipeline", quiet_s=LINE_EVERY_S, command=f"npu pipeline {model}") as observe:
        begin(observe, "importing")
        network = load_model(model, dims, note)
        run = run_pipeline(network, target, compiler, options, note, observe)
    if json:
        print_json(**json_fields(run))
    else:
        print_report(pipeline_tables(run))
