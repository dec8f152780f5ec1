"""`harness npu split`: ways to split a network over cores, as predicted and as they run."""

from __future__ import annotations

import time
from typing import Annotated

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.option_groups import OnlyFields, spread
from harness.cli.terminal.output import note, print_json, print_report
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.npu.npu_options import MachineChoice, Options, SplitOptions


@spread
@limited(4)
def split_command(
    model: arguments.Model,
    options: SplitOptions,
    machine: MachineChoice,
    *,
    compiler: Annotated[Options, OnlyFields(("halo", "residency", "reorder"))],
    dim: arguments.Dims = None,
    json: arguments.Json = False,
) -> None:
    """Compare ways to split a network over cores.

    A layer is split by batch, rows, output channels or input channels, or not at all. The time of each candidate is
    predicted by a formula over its instructions, and verified event by event, with contention for the memories that the
    cores share. Each layer is timed by itself, from memory to memory. The whole network is timed once per kind of
    split, applied to every layer that supports it, and once with the best split of each layer.

    Example: harness npu split builtin:mobilenetv2 --cores 4
    """
    from harness.measure.progress import begin
    from harness.npu.loading import load_model
    from harness.npu.split.split_study import check_cores, compare_splits
    from harness.npu.split.split_tables import json_fields, split_tables

    target = machine.load()
    check_cores(options.cores, target)
    start = time.perf_counter()
    dims = arguments.parse_dims(dim)
    with show_progress("split", quiet_s=LINE_EVERY_S, command=f"npu split {model}") as observe:
        begin(observe, "importing")
        network = load_model(model, dims, note)
        split = compare_splits(network, target, compiler, options, observe)
    took_s = time.perf_counter() - start
    if json:
        print_json(**json_fields(split), took_s=took_s)
    else:
        print_report(split_tables(split))
