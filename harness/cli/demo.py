"""`harness demo`: the whole procedure on built-in networks, from the first measurement to a report."""

from __future__ import annotations

import time
from typing import Annotated

from harness.cli.options import arguments
from harness.cli.options.arguments import command_words
from harness.cli.terminal.output import note, print_json
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress, stop_on_interrupt
from harness.workspace import find_workspace

DEMO_DEVICE = "npu01"
DEMO_NETWORKS = ("builtin:squeezenet", "builtin:mobilenetv2", "builtin:resnet50")


def demo(
    device: Annotated[str, arguments.device_option("Name of the device.")] = DEMO_DEVICE,
    wait: arguments.Wait = None,
    workspace: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Profile, estimate and measure three networks; write a report.

    Example: harness demo --device cpu01
    """
    from dataclasses import asdict

    from harness.cli.validate import show_validation
    from harness.device.inventory import find_device, load_inventory
    from harness.fleet.profile import profile
    from harness.lut.build import build_lut
    from harness.network.keyed_reading import read_keyed_networks
    from harness.report.html import report_networks
    from harness.validation.network_validation import validate

    found, wait_s = find_workspace(workspace), arguments.parse_wait(wait) or 0.0
    find_device(load_inventory(found.devices), device)
    started_s = time.monotonic()
    with stop_on_interrupt() as stop:
        note(f"1/4 profile: every layer of {', '.join(DEMO_NETWORKS)} on {device}, each with an auxiliary layer")
        with show_progress(f"profile {device}") as observe:
            measured = profile(DEMO_NETWORKS, device=device, workspace=found, wait_s=wait_s, observe=observe, stop=stop)
        note(
            f"2/4 lut build: {measured.samples:,} samples of {measured.probes} probes,"
            f" {measured.device_seconds:.1f} s on the device"
        )
        with show_progress(f"lut build {device}", quiet_s=LINE_EVERY_S, is_first=False) as observe:
            table = build_lut(device, workspace=found, observe=observe)
        note(f"3/4 estimate and validate: {len(table.entries)} entries in {table.path}")
        with show_progress(f"validate {device}", is_first=False) as observe:
            result = validate(
                DEMO_NETWORKS, device=device, workspace=found, naive=True, wait_s=wait_s, observe=observe, stop=stop
            )
    path = found.reports / "demo.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    networks = read_keyed_networks(DEMO_NETWORKS, table.rules)
    report_networks(path, found, table, networks, command_words(), result)
    note(f"4/4 report: {path}  ({time.monotonic() - started_s:.0f} s in total)")
    if json:
        print_json(**asdict(result), report=str(path))
    else:
        show_validation(result)
