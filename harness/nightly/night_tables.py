"""What the commands of `harness nightly` print, as tables and lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from harness.fleet.store import Acceptance
from harness.nightly.night import JobForecast
from harness.nightly.night_report import NightReport, by_reason
from harness.nightly.status import NightStatus
from harness.slowdowns.findings import UNCHANGED
from harness.text import Part, Table, counted, milliseconds, signed_percent

if TYPE_CHECKING:
    from harness.nightly.night_rehearsal import Rehearsal
    from harness.nightly.set_history import SetHistory

_DAY_S = 86400.0
_MOST_NAMES = 6


def report_parts(report: NightReport) -> Iterator[Part]:
    """Yield the result of each set, table and comparison, and what needs attention; each reason once."""
    shown_below = {item.what for item in report.attention}
    rows = [
        (device.device, device.health, row.set, row.status, f"{row.device_s:.1f}", reason)
        for device in report.devices
        for row in device.sets
        for reason in ["" if row.reason in shown_below else row.reason]
    ]
    header = ("device", "health", "set", "status", "on the device s", "why")
    yield Table(header, rows, left=4)
    machines = ((row.machine, f"{row.set} on {device.device}") for device in report.devices for row in device.sets)
    for machine, names in by_reason(machines).items():
        yield f"machine: {machine} ({_several(names)})"
    for device in report.devices:
        table, because = device.published.table, device.published.kept_because
        kept = f"  {'kept' if table else 'none made'}: {because}" if because else ""
        yield f"{device.device}  table {table or 'none'}{kept}"
    for change in report.changes:
        accepted = f" (accepted: {change.accepted})" if change.accepted else ""
        yield f"{change.device}: {change.summary}{accepted}"
    for reason, names in report.not_compared_by_reason.items():
        yield f"not compared: {_several(names)}: {reason}"
    for item in report.attention:
        where = f"{item.device}: " if item.device else ""
        yield f"needs attention: {where}{item.what}{item.why and f'. {item.why}'}"
        if item.next_step:
            yield f"  next: {item.next_step}"


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def forecast_fields(jobs: Sequence[JobForecast]) -> list[dict[str, Any]]:
    """Return the jobs of a night as JSON, in the order in which it would start them."""
    return [
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
        for one in jobs
    ]


def forecast_table(jobs: Sequence[Mapping[str, Any]], night: date) -> Table:
    """Return the table of `forecast_fields`."""
    rows = [
        (
            one["device"],
            one["set"],
            one["state"],
            "never" if one["nights"] is None else f"{one['nights']} nights",
            "" if one["nights"] is None else f"{one['uncertainty']:.1%}",
            "unknown" if one["cost_s"] is None else f"{one['cost_s']:.1f} s",
            one["reason"],
        )
        for one in jobs
    ]
    return Table(("device", "set", f"night of {night}", "measured before", "uncertainty", "takes", "why"), rows, left=3)


def status_parts(state: NightStatus) -> Iterator[Part]:
    """Yield the running night, the last nights, and the devices."""
    if state.running is not None:
        where = f"process {state.running.pid} on {state.running.host}"
        yield f"running: the night of {state.running.night}, {where}, since {state.running.since}"
    else:
        yield "running: none"
    nights = []
    for one in state.nights:
        jobs = ", ".join(f"{count} {status}" for status, count in one.jobs.items())
        finished = one.finished[:16].replace("T", " ")
        nights.append((one.night, str(one.exit_code), jobs, str(one.regressions), str(one.attention), finished))
    if nights:
        yield Table(("night", "exit code", "sets", "slower", "need attention", "finished, UTC"), nights, left=3)
    devices = []
    for device in state.devices:
        age = "" if device.age_s is None else f"{device.age_s / _DAY_S:.1f} d" if device.age_s >= 0 else "in the future"
        health, deferred = device.health, ", ".join(device.deferred)
        why = "" if health.health == "good" else health.reason
        devices.append((device.device, health.health, device.table or "none", age, deferred, why))
    if devices:
        yield Table(("device", "health", "newest table", "age", "deferred", "because"), devices, left=3)


def history_parts(histories: Sequence[SetHistory]) -> Iterator[Part]:
    """Yield the steps of all subjects, and how many there are."""
    rows = [
        (
            one.device,
            one.set,
            str(subject.subject),
            step.night,
            signed_percent(step.change),
            ", ".join(step.causes) or UNCHANGED,
        )
        for one in histories
        for subject in one.subjects
        for step in subject.steps
    ]
    if rows:
        yield Table(("device", "set", "subject", "step on", "change", "likely cause"), rows, left=4)
    yield f"{counted(len(rows), 'step')} of {sum(len(one.subjects) for one in histories)} subjects"


def accepted_table(accepted: Sequence[Acceptance]) -> Table:
    """Return the changes that were accepted, with the reason."""
    rows = [(one.device, one.set, one.subject, one.night, signed_percent(one.change), one.reason) for one in accepted]
    return Table(("device", "set", "subject", "night", "change", "because"), rows, left=4)


def rehearsal_table(rehearsed: Sequence[Rehearsal], factors: Mapping[str, float]) -> Table:
    """Return what a report would list of each subject with a factor, and what it detects, rounded up."""
    rows = []
    for one in rehearsed:
        listed = {change.name: change for change in one.compared.changes if change.state != "passed"}
        for name, factor in factors.items():
            change = listed.get(name)
            least = math.ceil(1000 * one.least[name]) / 1000 if name in one.least else math.inf
            found = ("not found", "", "")
            if change is not None:
                found = (signed_percent(change.change), milliseconds(change.before_s), milliseconds(change.after_s))
            at_least = signed_percent(least) if math.isfinite(least) else ""
            rows.append((one.compared.set, name, signed_percent(factor - 1), *found, at_least))
    header = ("set", "subject", "invented", "found", "before ms", "now ms", "detectable from")
    return Table(header, rows, left=2)
