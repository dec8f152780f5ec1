"""`harness nightly`: measure a lab every night, look at what came of it, and have it done by systemd or cron."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.nightly_output import show_foreseen, show_night, show_status
from harness.cli.output import note, print_error, print_json
from harness.cli.progress import stop_on_interrupt
from harness.errors import ConfigurationError, HarnessError, Interrupted, UsageError, reason_of
from harness.text import duration_s, printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.nightly.night_plan import NightPlan
    from harness.nightly.night_report import NightReport

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure a lab every night, compare, and say what needs a hand."
)

PlanPath = Annotated[Path | None, typer.Option("--plan", help="Plan of the nights (default: nightly.toml).")]
_DAY_S = 86400.0


@app.command()
def run(
    plan: PlanPath = None,
    night: Annotated[
        str | None, typer.Option("--night", metavar="DATE", help="The night, like 2026-11-20 (default: tonight).")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="local, or dask=ADDRESS, in place of the plan's engine.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the report here, too.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the report as JUnit XML here, too.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show tonight's jobs in their order; ask no device, measure nothing.")
    ] = False,
    workspace: options.WorkspaceFolder = None,
    json: options.Json = False,
) -> None:
    """Measure what tonight's plan still lacks, publish tables, compare with earlier nights, write a report.

    The same command goes on where it was cut short. Reports: reports/nightly-DATE.md and .xml.

    Example: harness nightly run --plan nightly.toml
    """
    place = find_workspace(workspace)

    from harness.nightly.night import current_night, run_night
    from harness.report.nightly_markdown import verdict

    found = _plan(place, plan)
    _check_outputs(found.path, markdown, junit)
    if engine is not None:
        found = _with_engine(found, engine)
    which = _night(night, current_night(found))
    if dry_run:
        show_foreseen(found, place, which, json)
        return
    with _stop_on_signal() as stop:
        report = run_night(found, place, night=which, stop=stop, notify=note)
    written = _write(report, place, markdown, junit)
    if not any(row.now for device in report.devices for row in device.sets) and not report.stopped:
        note(f"Nothing was left to measure: the night of {report.night} was measured before")
    if json:
        print_json(**report.data, reports=[str(path) for path in written])
    else:
        show_night(report)
    for path in written:
        note(f"Report: {path}")
    if report.stopped:
        step = "Run the same command again: it goes on from here, and replaces the report"
        raise Interrupted("The night was stopped", why="All that was measured is kept, and reported", next_step=step)
    if report.exit_code:
        step = f"See {written[0]}"
        print_error(HarnessError(printable(verdict(report).replace("*", "").replace("\\", "")), next_step=step))
        raise typer.Exit(report.exit_code)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second raises at once."""
    with stop_on_interrupt() as stop:
        before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, before)


@app.command()
def status(plan: PlanPath = None, workspace: options.WorkspaceFolder = None, json: options.Json = False) -> None:
    """Show the last nights, the one that runs, and every device's table and health.

    Example: harness nightly status
    """
    place = find_workspace(workspace)

    from harness.device.inventory import load_inventory
    from harness.fleet.selection import select
    from harness.nightly.night_plan import PLAN_NAME
    from harness.nightly.night_report import json_data
    from harness.nightly.status import night_status

    names: list[str] = []
    if plan is not None or (place.root / PLAN_NAME).exists():
        inventory = load_inventory(place.devices)
        for one in _plan(place, plan).sets:
            own = one.settings
            chosen = select(inventory, names=own.devices, groups=own.groups, everything=own.all)
            names += [device.name for device in chosen]
    found = night_status(place, names)
    if json:
        print_json(**json_data(found))
    else:
        show_status(found)


@app.command()
def install(
    systemd: Annotated[bool, typer.Option("--systemd", help="A systemd service and timer (the default).")] = False,
    cron: Annotated[bool, typer.Option("--cron", help="A line of a crontab, printed.")] = False,
    at: Annotated[str, typer.Option("--time", metavar="HH:MM", help="Time of day, local.")] = "02:30",
    delay: Annotated[
        str, typer.Option("--randomised-delay", help="At most so much later, so that labs do not all begin at once.")
    ] = "20m",
    user: Annotated[bool, typer.Option("--user", help="Into the user's unit folder (the default).")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Into DIR, as units of the system's manager.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print it; write nothing.")] = False,
    enable: Annotated[bool, typer.Option("--enable", help="Enable the user's timer, too.")] = False,
    plan: PlanPath = None,
    workspace: options.WorkspaceFolder = None,
) -> None:
    """Write a systemd service and timer, or a crontab line, that runs the nightly; says how to enable it.

    Example: harness nightly install --time 02:30 --randomised-delay 20m
    """
    place = find_workspace(workspace)
    for given, other in (((systemd, "--systemd"), (cron, "--cron")), ((user, "--user"), (output, "--output"))):
        if given[0] and other[0]:
            raise UsageError(f"{given[1]} and {other[1]} are given together", next_step="Give the one or the other")
    if enable and (cron or output or only_print):
        raise UsageError("--enable goes with the user's units alone", next_step="Leave it out: the commands are told")

    from harness.nightly import timers
    from harness.nightly.plan_file import time_of_day

    found = _plan(place, plan)  # a night that cannot begin is better told now
    try:
        when, delay_s = time_of_day(at), 0.0 if delay == "0" else duration_s(delay)
    except ValueError as error:
        raise UsageError(f"--time {at[:20]} --randomised-delay {delay[:20]}: one of them {error}") from error
    if delay_s >= _DAY_S / 2:
        raise UsageError("--randomised-delay is longer than a night", next_step="Write 20m or 2h")
    wanted = timers.Installation(place, plan, when, delay_s)
    timers.check_time(wanted, found.settings.day_begins)
    if cron:
        print(timers.crontab_line(wanted))
        note("Add this line by `crontab -e`")
        return
    system_user = timers.current_user() if output else None
    if only_print:
        print(f"# {wanted.name}.service\n{timers.service_unit(wanted, system_user)}")
        print(f"# {wanted.name}.timer\n{timers.timer_unit(wanted)}", end="")
        return
    written = timers.write_units(wanted, output or timers.unit_folder(), system_user)
    for path in written:
        print(path)
    if enable:
        timers.enable(wanted)
        note(f"{wanted.name}.timer is enabled; it runs while you are logged in, always after: loginctl enable-linger")
        return
    scope = "" if output else "--user "
    note(f"Enable it: systemctl {scope}daemon-reload && systemctl {scope}enable --now {wanted.name}.timer")
    if not output:
        note("It runs while you are logged in, and always after: loginctl enable-linger")


def _plan(place: Workspace, path: Path | None) -> NightPlan:
    from harness.nightly.night_plan import PLAN_NAME, load_plan

    return load_plan(path or place.root / PLAN_NAME)


def _with_engine(plan: NightPlan, text: str) -> NightPlan:
    from harness.fleet.cluster.access import dask_address

    kind, _, address = text.partition("=")
    if text == "local":
        return replace(plan, scheduler=None)
    try:
        if kind != "dask":
            raise ValueError("is neither local nor dask=ADDRESS")
        return replace(plan, scheduler=dask_address(address))
    except ValueError as error:
        raise UsageError(f"--engine {text[:80]} {error}", next_step="Write --engine dask=tcp://HOST:8786") from error


def _night(text: str | None, tonight: date) -> date:
    if text is None:
        return tonight
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--night {text[:40]} is not a date", next_step="Write it like 2026-11-20") from error
    if found > tonight:
        raise UsageError(f"The night of {found} has not begun", next_step="Leave --night out for tonight")
    return found


def _check_outputs(plan: Path, *outputs: Path | None) -> None:
    for path in outputs:
        if path is not None and path.resolve() == plan.resolve():
            raise UsageError(f"{path} is the plan itself", next_step="Write the report to another file")


def _write(report: NightReport, place: Workspace, *also: Path | None) -> list[Path]:
    """Writes both reports, whole or not at all; returns their paths."""
    from harness.files import write_whole
    from harness.report.nightly_junit import junit
    from harness.report.nightly_markdown import markdown

    try:
        place.reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = reason_of(error)
        raise ConfigurationError(f"Reports cannot be written to {place.reports}", why=why) from error
    written: list[Path] = []
    for (suffix, content), beside in zip(
        ((".md", markdown(report).encode()), (".xml", junit(report))), also, strict=True
    ):
        own = place.reports / f"nightly-{report.night}{suffix}"
        for path in (own, *([beside] if beside else [])):
            write_whole(path, content)
            written.append(path)
    return written
