"""`harness devices`: the inventory, and what is wrong with a device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness.cli import options
from harness.cli.output import print_json, print_table
from harness.errors import DeviceUnreachable
from harness.text import printable
from harness.workspace import find_workspace

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show and check devices.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a device.")]


@app.command("list")
def list_devices(workspace: options.WorkspaceFolder = None, json: options.Json = False) -> None:
    """List the built-in devices and those of devices.toml.

    Example: harness devices list
    """
    from harness.device.inventory import load_inventory

    inventory = load_inventory(find_workspace(workspace).devices)
    if json:
        print_json(devices=[_facts(device) for device in inventory.values()])
        return
    rows = [(device.name, device.backend, device.transport.kind, device.resource) for device in inventory.values()]
    print_table(("device", "backend", "transport", "resource"), rows, left=4)


@app.command()
def show(name: Name, workspace: options.WorkspaceFolder = None, json: options.Json = False) -> None:
    """Show the settings of a device.

    Example: harness devices show cpu01
    """
    from harness.device.inventory import find_device, load_inventory

    facts = _facts(find_device(load_inventory(find_workspace(workspace).devices), name))
    if json:
        print_json(**facts)
        return
    for key, value in facts.items():
        print(f"{key}: {value}")


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a device; none: all.")] = None,
    workspace: options.WorkspaceFolder = None,
    json: options.Json = False,
) -> None:
    """Check that devices are reachable and fit for measuring, and say how to mend what is not.

    Example: harness devices check cpu01
    """
    from harness.device.diagnose import check_device
    from harness.device.inventory import find_device, load_inventory

    inventory = load_inventory(find_workspace(workspace).devices)
    chosen = list(inventory.values()) if name is None else [find_device(inventory, name)]
    found = {device.name: check_device(device) for device in chosen}
    if json:
        print_json(
            devices=[{"name": device, "checks": [vars(check) for check in checks]} for device, checks in found.items()]
        )
    else:
        words = {True: "ok", False: "FAILS", None: "look"}
        for device, checks in found.items():
            print_table((device, "", "found"), [(check.name, words[check.ok], check.found) for check in checks], left=3)
            for one in checks:
                if one.mend:
                    print(f"  mend {one.name}: {printable(one.mend)}")
    failed = [device for device, checks in found.items() if any(check.ok is False for check in checks)]
    if failed:
        raise DeviceUnreachable(f"{', '.join(failed)} cannot be used as it is", next_step="See the lines marked FAILS")


def _facts(device: Any) -> dict[str, Any]:
    facts: dict[str, Any] = device.model_dump(mode="json")
    return facts
