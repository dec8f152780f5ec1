"""`harness trace`: the layers of a network on one device or several, as a trace with the table's estimates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from harness.cli.options import arguments
from harness.cli.options.option_groups import OnlyFields, spread
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import note, print_json, print_table, write_result
from harness.cli.terminal.progress import show_progress, stop_on_interrupt
from harness.text import milliseconds
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.validation.layer_trace import DeviceTrace


@spread
def trace(
    model: arguments.Model,
    output: Annotated[Path, file_option("--output", "-o", help="Write the trace to this file.")],
    device: arguments.DeviceNames = None,
    *,
    reading: Annotated[arguments.ReadingOptions, OnlyFields(("dim", "batch", "threads"))],
    wait: arguments.Wait = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Write a Chrome trace of the layers, as devices execute them.

    Each device is a process of the trace, and a layer has the same name in each. ONNX Runtime and OpenVINO report their
    own profile, the emulated NPU its exact times. A selected layer shows its estimate and its entry. Open the file in
    https://ui.perfetto.dev.

    Example: harness trace model.onnx --device cpu01,npu01 -o trace.json
    """
    from json import dumps

    from harness.validation import layer_trace

    workspace = find_workspace(directory)
    names = arguments.parse_names(device) or (workspace.default_device,)
    with show_progress(f"trace {names[0]}") as observe, stop_on_interrupt() as stop:
        found = layer_trace.trace(
            model,
            devices=names,
            dims=reading.dims,
            batch=reading.batch,
            threads=reading.threads,
            workspace=workspace,
            wait_s=arguments.parse_wait(wait) or 0.0,
            observe=observe,
            stop=stop,
        )
    content = found.to_json()
    write_result(output, dumps(content, separators=(",", ":"), allow_nan=False))
    devices = [_fields(one) for one in found.devices]
    if json:
        print_json(trace=str(output), network=found.network, events=len(content["traceEvents"]), devices=devices)
        return
    rows = [(one["device"], str(one["layers"]), milliseconds(one["layers_s"]), one["lut"] or "none") for one in devices]
    print_table(("device", "layers", "sum ms", "table"), rows)
    note(f"Next: open {output} in https://ui.perfetto.dev")


def _fields(traced: DeviceTrace) -> dict[str, Any]:
    return {
        "device": traced.device,
        "clock": traced.clock,
        "lut": traced.lut,
        "layers": len(traced.layers),
        "layers_s": sum(layer.latency_s for layer in traced.layers),
    }
