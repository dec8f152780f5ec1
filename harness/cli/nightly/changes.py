"""`harness nightly history`, `accept` and `try`: changes over the nights, the intended ones, and rehearsed ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.arguments import command_line
from harness.cli.terminal.output import note, print_json, print_report
from harness.errors import UsageError
from harness.text import printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.nightly.plan_file import NightSettings
    from harness.nightly.set_history import SetHistory

_MOST_NIGHTS = 60
_LARGEST_FACTOR = 100.0


def history(
    devices: Annotated[
        str | None, arguments.device_option("Names of devices (default: all of the reported nights).", "NAME[,NAME…]")
    ] = None,
    html: arguments.HtmlFile = None,
    nights: Annotated[
        int, typer.Option(metavar="N", min=2, max=1000, help="Show at most the last N nights.")
    ] = _MOST_NIGHTS,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Write a page of all nights, with the steps marked.

    It shows the latency of every watched network and layer. The page is reports/nights.html, unless --html names
    another file.

    Example: harness nightly history --device npu01
    """
    workspace = find_workspace(directory)
    path = html or workspace.reports / "nights.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = write_nights(path, workspace, arguments.parse_names(devices), nights)
    if json:
        print_json(sets=[asdict(one) for one in found], html=str(path))
    else:
        from harness.nightly.night_tables import history_parts

        print_report(list(history_parts(found)))
    note(f"Page: {path}")


def write_nights(
    path: Path, workspace: Workspace, devices: tuple[str, ...] = (), nights: int = _MOST_NIGHTS
) -> tuple[SetHistory, ...]:
    """Write the page of the last nights; return its sets."""
    from harness.nightly.set_history import set_histories
    from harness.report.nights.night_history import write_history

    found = set_histories(workspace, devices, nights, _settings(workspace).threshold)
    write_history(path, found, command_line())
    return found


def accept(
    subjects: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Layers or networks, as the report names them.")
    ],
    device: arguments.DeviceName = None,
    reason: Annotated[
        str, typer.Option("--because", metavar="TEXT", help="The reason, which later reports show.")
    ] = "intended",
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Accept changes that the newest report lists.

    Later reports do not count them as regressions. A further change of the same layer or network is reported again.

    Example: harness nightly accept conv1 --device npu01 --because compiler-2.1
    """
    from harness.nightly.set_history import accept_changes

    if not reason.strip():
        raise UsageError("The reason is empty", next_step='Write --because "compiler 2.1"')
    workspace = find_workspace(directory)
    found = accept_changes(workspace, device or workspace.default_device, subjects, printable(reason, 200))
    if json:
        print_json(accepted=[asdict(one) for one in found])
        return
    from harness.nightly.night_tables import accepted_table

    print_report([accepted_table(found)])
    note("`harness nightly run` in the same night writes the report again, without these regressions")


def try_slower(
    slow: Annotated[
        list[str], typer.Option(metavar="NAME:FACTOR", help="Layer or network and its factor; may be repeated.")
    ],
    device: arguments.DeviceName = None,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Show whether a night would notice a slow-down.

    The last night is compared again, as if layers or networks had been slower. No device is contacted, and nothing is
    recorded. Slowing a layer does not slow its network in this rehearsal; list both with --slow.

    Example: harness nightly try --slow conv1:1.05 --device npu01
    """
    factors = dict(map(parse_slow, slow))

    from harness.nightly.night_rehearsal import rehearse
    from harness.nightly.night_report import json_data
    from harness.nightly.set_comparison import ComparisonRules
    from harness.slowdowns.detection_power import LEVEL

    workspace = find_workspace(directory)
    settings = _settings(workspace)
    rules = ComparisonRules(settings.keep, settings.threshold, LEVEL)
    found = rehearse(workspace, device or workspace.default_device, factors, rules)
    if json:
        print_json(compared=json_data([one.compared for one in found]))
        return
    from harness.nightly.night_tables import rehearsal_table

    print_report([rehearsal_table(found, factors)])
    for one in found:
        for change in one.compared.changes:
            if change.state != "passed" and change.name not in factors:
                note(f"Also listed: {printable(change.summary, 300)}")


def _settings(workspace: Workspace) -> NightSettings:
    """Return the settings of the workspace's plan, the defaults without a plan."""
    from harness.nightly.night_plan import PLAN_NAME
    from harness.nightly.plan_file import NightSettings, read_plan_file

    path = workspace.root / PLAN_NAME
    return read_plan_file(path).nightly if path.exists() else NightSettings()


def parse_slow(text: str) -> tuple[str, float]:
    """Return the name and the factor of `NAME:FACTOR`; raises UsageError."""
    name, separator, factor = text.rpartition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not separator or not name or not 0 < value <= _LARGEST_FACTOR:
        why = f"FACTOR is a number above 0 and at most {_LARGEST_FACTOR:g}"
        raise UsageError(f"--slow {text[:80]} is not NAME:FACTOR", why=why, next_step="Write --slow conv1:1.05")
    return name, value
