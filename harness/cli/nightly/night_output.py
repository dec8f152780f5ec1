"""The output of `harness nightly` on a terminal."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from harness.cli.terminal.output import note, print_json, print_line, print_table
from harness.workspace import Workspace

if TYPE_CHECKING:
    from harness.nightly.night_plan import NightPlan
    from harness.nightly.night_report import NightReport
    from harness.nightly.status import NightStatus

_DAY_S = 86400.0


def show_night(report: NightReport) -> None:
    """Print the result of each set, table and comparison, and what needs attention."""
    rows = [
        (device.device, device.health, row.set, row.status, f"{row.device_s:.1f}", row.reason)
        for device in report.devices
        for row in device.sets
    ]
    print_table(("device", "health", "set", "", "s on the device", "why"), rows, left=4)
    for device in report.devices:
        for row in device.sets:
            if row.machine:
                print_line(f"{device.device}: {row.set}: machine: {row.machine}")
    for device in report.devices:
        kept = f"  kept: {device.published.kept_because}" if device.published.kept_because else ""
        print_line(f"{device.device}  table {device.published.table or 'none'}{kept}")
    for change in report.changes:
        print_line(f"{change.device}: {change.summary}")
    for one in report.not_compared:
        print_line(f"{one.device}: {one.set} is not compared: {one.not_compared}")
    for item in report.attention:
        where = f"{item.device}: " if item.device else ""
        print_line(f"needs attention: {where}{item.what}. {item.why}")
        if item.next_step:
            print_line(item.next_step, "  next: ")


def show_forecast(plan: NightPlan, workspace: Workspace, night: date, json: bool) -> None:
    """Print the jobs of a night in the order in which it would start them."""
    from harness.nightly.night import forecast

    found = [
        {
            "job": one.due.job.name,
            "device": one.due.device.name,
            "set": one.due.set.name,
            "nights": one.due.staleness.nights,
            "uncertainty": one.due.staleness.uncertainty,
            "cost_s": one.due.cost_s,
            "state": "done" if one.done else "starts" if one.starts else "waits" if not one.reason else "skipped",
            "reason": one.reason,
        }
        for one in forecast(plan, workspace, night=night)
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


def show_status(state: NightStatus) -> None:
    """Print the running night, the last nights, and the devices."""
    if state.running is not None:
        where = f"process {state.running.pid} on {state.running.host}"
        print_line(f"running: the night of {state.running.night}, {where}, since {state.running.since}")
    else:
        print_line("running: none")
    rows = []
    for one in state.nights:
        jobs = ", ".join(f"{count} {status}" for status, count in one.jobs.items())
        finished = one.finished[:16].replace("T", " ")
        rows.append((one.night, str(one.exit_code), jobs, str(one.regressions), str(one.attention), finished))
    if rows:
        print_table(("night", "exit", "sets", "slower", "need attention", "finished, UTC"), rows, left=3)
    else:
        note("No night has been reported yet; run one with `harness nightly run`")
    devices = []
    for device in state.devices:
        age = "" if device.age_s is None else f"{device.age_s / _DAY_S:.1f} d" if device.age_s >= 0 else "in the future"
        health, deferred = device.health, ", ".join(device.deferred)
        devices.append((device.device, health.health, device.table or "none", age, deferred, health.reason))
    if devices:
        print_table(("device", "health", "newest table", "age", "deferred", "because"), devices, left=3)
