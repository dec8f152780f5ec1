"""`harness lut list` and `harness lut prune`: the tables of a workspace and of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import print_json, print_line, print_report
from harness.errors import LutNotFound
from harness.text import byte_size, printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.lut.stored_tables import StoredTable

OneDevice = Annotated[str | None, arguments.device_option("Tables of this device only.")]


def list_tables(
    device: OneDevice = None, directory: arguments.WorkspaceFolder = None, json: arguments.Json = False
) -> None:
    """List the tables of the workspace and of the package.

    The newest of each device comes first. `default` marks the table that commands use for a device, a batch and a
    number of threads, unless --lut selects a different one. `package` marks tables that are part of harness; one is the
    default if the workspace has no table of its device.

    Example: harness lut list --device cpu01
    """
    from harness.lut import stored_tables
    from harness.lut.lut_tables import list_of_tables

    workspace = find_workspace(directory)
    tables = stored_tables.list_tables(workspace, device)
    if not tables:
        raise _no_table(workspace, device)
    if json:
        print_json(tables=[_json(one) for one in tables])
        return
    print_report([list_of_tables(tables)])


def prune(
    keep: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of tables to keep of each device, method and variant.")
    ],
    device: OneDevice = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Remove old tables.

    The N newest of each device, method, batch and number of threads are kept, and the default of each device.

    Example: harness lut prune --keep 5 --dry-run
    """
    from harness.lut import stored_tables
    from harness.lut.lut_tables import list_of_tables

    workspace = find_workspace(directory)
    plan = stored_tables.plan_pruning(workspace, keep, device)
    if device is not None and not plan.removed and not plan.kept:
        raise _no_table(workspace, device)
    if not dry_run:
        stored_tables.remove_tables(plan.removed)
    if json:
        print_json(
            removed=[one.name for one in plan.removed],
            removed_bytes=sum(one.size_bytes for one in plan.removed),
            kept=plan.kept,
            dry_run=dry_run,
        )
        return
    if plan.removed:
        print_report([list_of_tables(plan.removed)])
    size = f" ({byte_size(sum(one.size_bytes for one in plan.removed))})" if plan.removed else ""
    print_line(f"{'would remove' if dry_run else 'removed'} {len(plan.removed)} tables{size}, {plan.kept} stay")


def _no_table(workspace: Workspace, device: str | None) -> LutNotFound:
    whose = "" if device is None else f" of {device}"
    step = f"Measure and build one: harness profile, then harness lut build{f' --device {device}' if device else ''}"
    return LutNotFound(f"There is no table{whose} in {workspace.lut}", next_step=step)


def _json(table: StoredTable) -> dict[str, Any]:
    return {
        "lut": str(table.path),
        "name": printable(table.name),
        "device": table.device,
        "created": table.created,
        "method": table.method,
        "entries": table.entries,
        "bytes": table.size_bytes,
        "batch": table.variant.batch,
        "threads": table.variant.threads,
        "default": table.is_default,
        "published": table.is_published,
    }
