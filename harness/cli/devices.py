"""`harness devices`: the inventory, and the health of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import print_json, print_line, print_table
from harness.errors import DeviceUnreachable
from harness.text import interval_ms
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.device.diagnose import Check

app = arguments.command_group("List, show, check and mark devices.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a device.", autocompletion=arguments.complete_device)
]
MarkedHealth = Literal["unknown", "maintenance", "retired"]
"""The health that a person may record; only the golden probe finds a device good or bad."""


@app.command("list")
def list_devices(directory: arguments.WorkspaceFolder = None, json: arguments.Json = False) -> None:
    """List all devices, with their health and its reason.

    Example: harness devices list
    """
    from harness.device.inventory import load_inventory
    from harness.fleet.store import FleetStore, never_measured

    workspace = find_workspace(directory)
    inventory = load_inventory(workspace.devices)
    if workspace.fleet.exists():
        with FleetStore(workspace.fleet, to_read=True) as store:
            health = [store.health(name) for name in inventory]
    else:
        health = [never_measured(name) for name in inventory]
    known = list(zip(inventory.values(), health, strict=True))
    if json:
        print_json(
            devices=[
                {**one.model_dump(mode="json"), "health": held.health, "health_reason": held.reason}
                for one, held in known
            ]
        )
        return
    rows = [
        (one.name, one.backend, one.transport.kind, one.board, ",".join(one.groups), held.health) for one, held in known
    ]
    print_table(("device", "backend", "transport", "board", "groups", "health"), rows, left=6)
    reasons: dict[str, list[str]] = {}
    for one, held in known:
        if held.health != "good":
            reasons.setdefault(f"{held.health}: {held.reason}", []).append(one.name)
    for reason, names in reasons.items():
        print_line(f"{reason} ({', '.join(names)})")


@app.command()
def show(name: Name, directory: arguments.WorkspaceFolder = None, json: arguments.Json = False) -> None:
    """Show the settings of a device.

    Example: harness devices show cpu01
    """
    from harness.device.inventory import find_device, load_inventory

    facts = find_device(load_inventory(find_workspace(directory).devices), name).model_dump(mode="json")
    if json:
        print_json(**facts)
        return
    for key, value in facts.items():
        if value not in (None, [], {}):
            print_line(f"{key}: {_setting(value)}")


def _setting(value: Any) -> str:
    """Return a setting as devices.toml has it, without quotes."""
    if isinstance(value, dict):
        return "  ".join(f"{key} = {_setting(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@app.command()
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of a device (default: all).", autocompletion=arguments.complete_device
        ),
    ] = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Check that devices are reachable and fit for measuring.

    For each fault, the command prints how to correct it.

    Example: harness devices check cpu01
    """
    from harness.device.diagnose import check_device
    from harness.device.inventory import find_device, load_inventory

    inventory = load_inventory(find_workspace(directory).devices)
    chosen = list(inventory.values()) if name is None else [find_device(inventory, name)]
    found = {device.name: check_device(device) for device in chosen}
    if json:
        listed = {
            device: [{"name": one.name, "ok": one.ok, "found": one.found, "mend": one.remedy} for one in checks]
            for device, checks in found.items()
        }
        print_json(devices=[{"name": device, "checks": checks} for device, checks in listed.items()])
    else:
        for device, checks in found.items():
            print_table((device, "result", "found"), [(one.name, _word(one), one.found) for one in checks], left=3)
            for one in checks:
                if one.remedy:
                    print_line(one.remedy, f"  to correct {one.name}: ")
    failed = [device for device, checks in found.items() if any(check.ok is False for check in checks)]
    if failed:
        raise DeviceUnreachable(f"{', '.join(failed)} cannot be used", next_step="See the lines marked FAILS")


def _word(check: Check) -> str:
    """Return what a check found in a word; a dash if there is nothing to correct."""
    return "ok" if check.ok else "FAILS" if check.ok is False else "check" if check.remedy else "–"


@app.command()
def mark(
    name: Name,
    health: Annotated[MarkedHealth, typer.Argument(help="Health to record.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason, shown in the device's history.")
    ] = "no reason given",
    directory: arguments.WorkspaceFolder = None,
) -> None:
    """Take a device out of service, or put it back.

    After it is put back, its health is unknown until the next golden probe.

    Example: harness devices mark board maintenance --reason "new heat sink"
    """
    from harness.device.inventory import find_device, load_inventory
    from harness.device.session import controller_name
    from harness.fleet.store import FleetStore

    workspace = find_workspace(directory)
    device = find_device(load_inventory(workspace.devices), name)
    with FleetStore(workspace.fleet) as store:
        marked = store.mark(device.name, health, f"{reason} ({controller_name()})")
    print_line(f"{marked.device}  {marked.health}  {marked.reason}")


@app.command()
def golden(
    name: Name,
    forget: Annotated[
        bool, typer.Option("--forget", help="Discard the band; the next sessions determine a new one.")
    ] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Show a device's golden probe and the history of its health.

    Example: harness devices golden npu01
    """
    from dataclasses import asdict

    from harness.device.inventory import find_device, load_inventory
    from harness.fleet.health import configured_band
    from harness.fleet.store import FleetStore

    workspace = find_workspace(directory)
    device = find_device(load_inventory(workspace.devices), name)
    with FleetStore(workspace.fleet, to_read=not forget) as store:
        if forget and store.forget_band(device.name):
            store.measured(device.name, "unknown", "its golden band was discarded")
        band = configured_band(device) or store.band(device.name)
        history = store.history(device.name)
    if json:
        print_json(device=device.name, band=asdict(band) if band else None, history=[asdict(one) for one in history])
        return
    if band is None:
        print_line(f"{device.name}  the golden probe has no band yet; the next sessions determine it")
    else:
        bounds = interval_ms((band.low_s, band.high_s))
        print_line(f"{device.name}  band of the golden probe {bounds} ms  {_origin(band)}")
    if history:
        print_table(("since", "health", "why"), [(one.since, one.health, one.reason) for one in history], left=3)


def _origin(band: Any) -> str:
    sessions = len(band.latencies_s)
    return f"from {sessions} session{'s' * (sessions > 1)}, {band.learnt}" if sessions else band.learnt
