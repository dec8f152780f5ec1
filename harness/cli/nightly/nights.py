"""Measure a lab every night, show the results, and schedule the nights by systemd or cron."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.nightly.changes import write_nights
from harness.cli.options import arguments
from harness.cli.options.option_groups import spread
from harness.cli.options.result_files import check_results
from harness.cli.terminal.output import note, print_error, print_json, print_report
from harness.cli.terminal.progress import LINE_EVERY_S, show_jobs, stop_on_interrupt
from harness.errors import CHECK_FILE, ConfigurationError, HarnessError, Interrupted, UsageError, reason_of
from harness.settings import NIGHT_DELAY, NIGHT_STARTS_AT
from harness.text import duration_s, printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.measure.request import ProfileRequest
    from harness.nightly.night_plan import NightPlan
    from harness.nightly.night_report import NightReport

PlanPath = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Plan file (default: nightly.toml).")]
Night = Annotated[
    str | None,
    typer.Option("--night", metavar="DATE", help="Date of the night, such as 2026-11-20 (default: tonight)."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="ENGINE", help="Run jobs with this engine instead of the plan's: local or dask=ADDRESS."
    ),
]
_DAY_S = 86400.0
_LINGER = "It runs while you are logged in; after `loginctl enable-linger` it always runs"


def run(
    plan: PlanPath = None,
    night: Night = None,
    engine: Engine = None,
    html: arguments.HtmlFile = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show tonight's jobs in order; contact no device, measure nothing.")
    ] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Run the remaining jobs of tonight's plan and write a report.

    The command publishes tables and compares with earlier nights. After an interruption, the same command continues.
    The reports are reports/nightly-DATE.md and .xml. --html also writes the page of `nightly history`, with tonight as
    the last night.

    Example: harness nightly run --plan nightly.toml
    """
    workspace = find_workspace(directory)

    from harness.nightly.night import current_night, engine_of, run_night

    found = _plan(workspace, plan, engine)
    check_results([html] if html is not None else [], [found.path])
    which = _night(night, current_night(found))
    if dry_run:
        _show_forecast(found, workspace, which, json)
        return
    with show_jobs(LINE_EVERY_S) as begin, _stop_on_signal() as stop:
        jobs = engine_of(found, workspace, lambda job: begin(*_label_of(job, found.scheduler)))
        report = run_night(
            found,
            workspace,
            night=which,
            engine=jobs,
            stop=stop,
            notify=note,
            publishing=lambda device: begin(f"{device}, table", f"lut build {device}"),
        )
    written = _write(report, workspace)
    if html is not None:
        write_nights(html, workspace)
        written.append(html)
    rows = [row for device in report.devices for row in device.sets]
    if all(row.status == "done" and not row.now for row in rows) and not report.stopped:
        note(f"There is nothing to measure: the night of {report.night} is complete")
    if json:
        print_json(**report.data, reports=[str(path) for path in written])
    else:
        from harness.nightly.night_tables import report_parts

        print_report(list(report_parts(report)))
    for path in written:
        note(f"Report: {path}")
    _end_with_verdict(report, written[0])


def _show_forecast(plan: NightPlan, workspace: Workspace, night: date, json: bool) -> None:
    """Print the jobs of a night in the order in which it would start them."""
    from harness.nightly.night import forecast
    from harness.nightly.night_tables import forecast_fields, forecast_table

    jobs = forecast_fields(forecast(plan, workspace, night=night))
    if json:
        print_json(night=night.isoformat(), jobs=jobs)
    else:
        print_report([forecast_table(jobs, night)])


def _label_of(job: ProfileRequest, scheduler: str | None) -> tuple[str, str]:
    """Return a job's label, and the command by which its runs of earlier nights are found."""
    from harness.nightly.due_jobs import JobName

    name, models = JobName.parse(job.name), " ".join(map(str, job.models))
    label = f"{job.device}, {name.set}" if name else job.name
    return label, " ".join(filter(None, ("nightly", job.device, models, scheduler)))


def _end_with_verdict(report: NightReport, written: Path) -> None:
    """End the command as the night ended: interrupted, or with the exit code of its verdict."""
    from harness.report.nights.nightly_markdown import verdict

    if report.stopped:
        step = "Run the same command again: it continues and replaces the report"
        raise Interrupted("The night was stopped", why="All measurements are kept and reported", next_step=step)
    if report.exit_code:
        print_error(HarnessError(verdict(report), next_step=f"See {written}"))
        raise typer.Exit(report.exit_code)
    note(verdict(report))


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; the second raises Interrupted immediately."""
    with stop_on_interrupt() as stop:
        before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, before)


def status(plan: PlanPath = None, directory: arguments.WorkspaceFolder = None, json: arguments.Json = False) -> None:
    """Show the nights, and the table and health of each device.

    Example: harness nightly status
    """
    workspace = find_workspace(directory)

    from harness.device.inventory import load_inventory
    from harness.fleet.device_selection import select
    from harness.nightly.night_plan import PLAN_NAME
    from harness.nightly.night_report import json_data
    from harness.nightly.status import night_status

    names: list[str] = []
    if plan is not None or (workspace.root / PLAN_NAME).exists():
        inventory = load_inventory(workspace.devices)
        for one in _plan(workspace, plan).sets:
            own = one.settings
            chosen = select(inventory, names=own.devices, groups=own.groups, everything=own.all)
            names += [device.name for device in chosen]
    found = night_status(workspace, names)
    if json:
        print_json(**json_data(found))
    else:
        from harness.nightly.night_tables import status_parts

        print_report(list(status_parts(found)))
        if not found.nights:
            note("No night has been reported yet; run one with `harness nightly run`")


@dataclass(frozen=True)
class StartOptions:
    """When a night starts."""

    at: Annotated[str, typer.Option("--time", metavar="HH:MM", help="Local time of day.")] = NIGHT_STARTS_AT
    randomised_delay: Annotated[
        str, typer.Option(metavar="TIME", help="Maximum random delay, so that labs do not all start at the same time.")
    ] = NIGHT_DELAY

    def parse(self) -> tuple[time, float]:
        """Return the time of day and the delay in seconds; raises UsageError."""
        from harness.nightly.plan_file import time_of_day

        text, delay = self.at, self.randomised_delay
        try:
            when, delay_s = time_of_day(text), 0.0 if delay == "0" else duration_s(delay)
        except ValueError as error:
            raise UsageError(f"--time {text[:20]} --randomised-delay {delay[:20]}: one of them {error}") from error
        if delay_s >= _DAY_S / 2:
            raise UsageError("--randomised-delay is longer than a night", next_step="Write 20m or 2h")
        return when, delay_s


@dataclass(frozen=True)
class InstallOptions:
    """The kind of schedule, and the place where it is installed."""

    cron: Annotated[bool, typer.Option("--cron", help="Print a crontab line instead of writing units.")] = False
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write units for the system manager to DIR.")] = (
        None
    )
    only_print: Annotated[bool, typer.Option("--print", help="Print the units; write nothing.")] = False
    enable: Annotated[bool, typer.Option("--enable", help="Also enable the user's timer.")] = False

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.enable and (self.cron or self.output or self.only_print):
            step = "Omit it: the commands are printed, not run"
            raise UsageError("--enable needs units in the user's unit folder", next_step=step)


@spread
def install(
    start: StartOptions, destination: InstallOptions, plan: PlanPath = None, directory: arguments.WorkspaceFolder = None
) -> None:
    """Schedule the nightly run by systemd or cron.

    The command writes a service and a timer of systemd, or prints a crontab line. For a timer it also prints how to
    enable it.

    Example: harness nightly install --time 02:30 --randomised-delay 20m
    """
    from harness.device.session import user_name
    from harness.nightly import timers

    workspace = find_workspace(directory)
    destination.check()
    found = _plan(workspace, plan)  # an invalid plan is an error today, not at night
    when, delay_s = start.parse()
    wanted = timers.NightlyTimer(workspace, plan, when, delay_s)
    timers.check_time(wanted, found.settings.day_begins)
    if destination.cron:
        print(timers.crontab_line(wanted))
        note("Add this line with `crontab -e`")
        return
    output = destination.output
    system_user = user_name() if output else None
    if destination.only_print:
        print(f"# {wanted.name}.service\n{timers.service_unit(wanted, system_user)}")
        print(f"# {wanted.name}.timer\n{timers.timer_unit(wanted)}", end="")
        return
    written = timers.write_units(wanted, output or timers.unit_folder(), system_user)
    for path in written:
        print(printable(str(path)))
    if destination.enable:
        timers.enable(wanted)
        note(f"{wanted.name}.timer is enabled. {_LINGER}")
        return
    scope = "" if output else "--user "
    note(f"Enable it: systemctl {scope}daemon-reload && systemctl {scope}enable --now {wanted.name}.timer")
    if not output:
        note(_LINGER)


def _plan(workspace: Workspace, path: Path | None, engine: str | None = None) -> NightPlan:
    """Return the plan, whose jobs run with this engine if one is given."""
    from harness.fleet.cluster.access import engine_address
    from harness.nightly.night_plan import PLAN_NAME, load_plan

    found = load_plan(path or workspace.root / PLAN_NAME)
    return found if engine is None else replace(found, scheduler=engine_address(engine))


def _night(text: str | None, tonight: date) -> date:
    if text is None:
        return tonight
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--night {text[:40]} is not a date", next_step="Write --night 2026-11-20") from error
    if found > tonight:
        raise UsageError(f"The night of {found} has not begun", next_step="Omit --night for tonight")
    return found


def _write(report: NightReport, workspace: Workspace) -> list[Path]:
    """Write both reports, whole or not at all; return their paths."""
    from harness.files import write_whole
    from harness.report.nights.nightly_junit import junit
    from harness.report.nights.nightly_markdown import markdown

    try:
        workspace.reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = reason_of(error)
        raise ConfigurationError(
            f"Reports cannot be written to {workspace.reports}", why=why, next_step=CHECK_FILE
        ) from error
    contents = {".md": markdown(report).encode(), ".xml": junit(report)}
    written = {workspace.reports / f"nightly-{report.night}{suffix}": text for suffix, text in contents.items()}
    for path, text in written.items():
        write_whole(path, text)
    return list(written)
