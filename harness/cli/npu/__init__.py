"""`harness npu`: one module per command, each of which parses, calls one function of `harness.npu` and prints."""

from __future__ import annotations

from harness.cli.npu import (
    assemble,
    compile as compile_module,
    disassemble,
    fit,
    pipeline,
    presets,
    run,
    split,
    sweep,
    trace,
)
from harness.cli.options.arguments import command_group

app = command_group("Compile and run networks on the emulated NPU.")
app.command("compile")(compile_module.compile_command)
app.command("run")(run.run_command)
app.command("pipeline")(pipeline.pipeline_command)
app.command("disassemble")(disassemble.disassemble_command)
app.command("assemble")(assemble.assemble_command)
app.command("trace")(trace.trace_command)
app.command("split")(split.split_command)
app.command("sweep")(sweep.sweep_command)
app.command("fit")(fit.fit_command)
app.command("presets")(presets.presets_command)
