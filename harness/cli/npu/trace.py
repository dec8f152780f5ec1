"""`harness npu trace`: a run as Chrome trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from harness.cli.npu.limited import limited
from harness.cli.options import arguments
from harness.cli.options.option_groups import Heading, OnlyFields, spread
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import note, print_json, print_line, write_result
from harness.npu.npu_options import MachineChoice, Options, RunOptions


@spread
@limited()
def trace_command(
    model: arguments.ModelOrProgram,
    output: Annotated[Path, file_option("--output", "-o", help="Write the trace to this file.")],
    machine: MachineChoice,
    limits: Annotated[RunOptions, OnlyFields(("cycle_budget",))],
    compiler: Annotated[Options, Heading("Options of the compiler")],
    dim: arguments.Dims = None,
    json: arguments.Json = False,
) -> None:
    """Write a run as a Chrome trace.

    Perfetto (ui.perfetto.dev) shows it next to a profile of ONNX Runtime.

    Example: harness npu trace builtin:squeezenet -o squeezenet.trace.json
    """
    from json import dumps

    from harness.npu.loading import load
    from harness.npu.run.core_run import trace

    loaded = load(model, machine, compiler, arguments.parse_dims(dim), note=note)
    timed, traced = trace(loaded, limits.cycle_budget)
    write_result(output, dumps(traced, separators=(",", ":"), allow_nan=False))
    events = len(traced["traceEvents"])
    if json:
        print_json(trace=str(output), events=events, cycles=timed.cycles, machine=loaded.machine.name)
    else:
        print_line(f"{events:,} events of {timed.cycles:,.0f} cycles on {loaded.machine.name} written")
        note(f"Next: open {output} in https://ui.perfetto.dev")
