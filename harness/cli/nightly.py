"""`harness nightly`: measure a lab every night, look at what came of it, and have it done by systemd or cron."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.output import note, print_error, print_json, print_table
from harness.cli.progress import stop_on_interrupt
from harness.errors import ConfigurationError, HarnessError, UsageError
from harness.text import printable
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.nightly.outcome import NightReport
    from harness.nightly.plan import NightPlan
    from harness.nightly.status import NightStatus

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

    from harness.nightly.night import report_data, run_night, tonight
    from harness.report.nightly import verdict

    found = _plan(place, plan)
    if engine is not None:
        found = _with_engine(found, engine)
    which = _night(night, tonight(found))
    if dry_run:
        _show_foreseen(found, place, which, json)
        return
    with stop_on_interrupt() as stop:
        report = run_night(found, place, night=which, stop=stop, observe=note)
    written = _write(report, place, markdown, junit)
    if not report.measured:
        note(f"Nothing was left to measure: the night of {report.night} was measured before")
    if json:
        print_json(**report_data(report), reports=[str(path) for path in written])
    else:
        _show(report)
    for path in written:
        note(f"Report: {path}")
    if report.exit_code:
        step = f"See {written[0]}"
        print_error(HarnessError(printable(verdict(report).replace("*", "").replace("\\", "")), next_step=step))
        raise typer.Exit(report.exit_code)


@app.command()
def status(plan: PlanPath = None, workspace: options.WorkspaceFolder = None, json: options.Json = False) -> None:
    """Show the last nights, the one that runs, and every device's table and health.

    Example: harness nightly status
    """
    place = find_workspace(workspace)

    from harness.device.inventory import load_inventory
    from harness.fleet.selection import select
    from harness.nightly.plan import PLAN_FILE
    from harness.nightly.status import night_status

    names: list[str] = []
    if plan is not None or (place.root / PLAN_FILE).exists():
        inventory = load_inventory(place.devices)
        for one in _plan(place, plan).sets:
            chosen = select(inventory, names=one.devices, groups=one.groups, everything=one.everything)
            names += [device.name for device in chosen]
    found = night_status(place, names)
    if json:
        print_json(**asdict(found))
    else:
        _show_status(found)


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

    from harness.nightly import schedule
    from harness.nightly.planfile import duration_s, time_of_day

    _plan(place, plan)  # a night that cannot begin is better told now
    try:
        when, delay_s = time_of_day(at), 0.0 if delay == "0" else duration_s(delay)
    except ValueError as error:
        raise UsageError(f"--time {at[:20]} --randomised-delay {delay[:20]}: one of them {error}") from error
    if delay_s >= _DAY_S / 2:
        raise UsageError("--randomised-delay is longer than a night", next_step="Write 20m or 2h")
    wanted = schedule.Installation(place, plan, when, delay_s)
    if cron:
        print(schedule.crontab_line(wanted))
        note("Add this line by `crontab -e`")
        return
    system_user = schedule.current_user() if output else None
    if only_print:
        print(f"# {wanted.name}.service\n{schedule.service_unit(wanted, system_user)}")
        print(f"# {wanted.name}.timer\n{schedule.timer_unit(wanted)}", end="")
        return
    written = schedule.write_units(wanted, output or schedule.unit_folder(), system_user)
    for path in written:
        print(path)
    if enable:
        schedule.enable(wanted)
        note(f"{wanted.name}.timer is enabled; it runs while you are logged in, always after: loginctl enable-linger")
        return
    scope = "" if output else "--user "
    note(f"Enable it: systemctl {scope}daemon-reload && systemctl {scope}enable --now {wanted.name}.timer")
    if not output:
        note("It runs while you are logged in, and always after: loginctl enable-linger")


def _plan(place: Workspace, path: Path | None) -> NightPlan:
    from harness.nightly.plan import PLAN_FILE, load_plan

    return load_plan(path or place.root / PLAN_FILE)


def _with_engine(plan: NightPlan, text: str) -> NightPlan:
    from harness.nightly.planfile import dask_address

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


def _write(report: NightReport, place: Workspace, *also: Path | None) -> list[Path]:
    """Writes both reports, whole or not at all; returns their paths."""
    from harness.report.files import write_whole
    from harness.report.nightly import markdown
    from harness.report.nightly_junit import junit

    try:
        place.reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
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


def _show(report: NightReport) -> None:
    rows = [
        (device.device, device.health, row.set, row.status, f"{row.device_s:.1f}", row.reason)
        for device in report.devices
        for row in device.sets
    ]
    print_table(("device", "health", "set", "", "s on the device", "why"), rows, left=4)
    for device in report.devices:
        kept = f"  kept: {device.published.kept_because}" if device.published.kept_because else ""
        print(printable(f"{device.device}  table {device.published.table or 'none'}{kept}"))
    for change in report.changes:
        print(printable(f"{change.device}: {change.told}", 500))
    for chore in report.chores:
        where = f"{chore.device}: " if chore.device else ""
        print(printable(f"needs a hand: {where}{chore.what}. {chore.why}"))
        if chore.next_step:
            print(printable(f"  next: {chore.next_step}"))


def _show_foreseen(plan: NightPlan, place: Workspace, night: date, json: bool) -> None:
    from harness.nightly.night import foresee

    found = [
        {
            "job": one.candidate.job.name,
            "device": one.candidate.device.name,
            "set": one.candidate.set.name,
            "nights": one.candidate.staleness.nights,
            "uncertainty": one.candidate.staleness.uncertainty,
            "cost_s": one.candidate.cost_s,
            "state": "done" if one.done else "starts" if one.starts else "waits" if not one.reason else "skipped",
            "reason": one.reason,
        }
        for one in foresee(plan, place, night=night)
    ]
    if json:
        print_json(night=night.isoformat(), jobs=found)
        return
    rows = [
        (
            str(one["device"]),
            str(one["set"]),
            str(one["state"]),
            "never" if one["nights"] is None else f"{one['nights']} nights",
            f"{one['uncertainty']:.1%}",
            "unknown" if one["cost_s"] is None else f"{one['cost_s']:.1f} s",
            str(one["reason"]),
        )
        for one in found
    ]
    print_table(("device", "set", f"night of {night}", "measured before", "uncertainty", "takes", "why"), rows, left=3)


def _show_status(found: NightStatus) -> None:
    if found.running is not None:
        print(printable(f"running: the night of {found.running.night}, process {found.running.pid} on"
                        f" {found.running.host}, since {found.running.since}"))  # fmt: skip
    else:
        print("running: none")
    rows = [
        (one.night, str(one.exit_code), ", ".join(f"{count} {status}" for status, count in one.jobs.items()),
         str(one.regressions), str(one.chores), one.finished)
        for one in found.nights
    ]  # fmt: skip
    if rows:
        print_table(("night", "exit", "sets", "slower", "need a hand", "finished"), rows, left=3)
    else:
        note("No night was reported yet; run one by `harness nightly run`")
    devices = [
        (one.device, one.health.health, one.table or "none", "" if one.age_s is None else f"{one.age_s / _DAY_S:.1f} d",
         ", ".join(one.deferred), one.health.reason)
        for one in found.devices
    ]  # fmt: skip
    if devices:
        print_table(("device", "health", "newest table", "age", "deferred", "because"), devices, left=3)
