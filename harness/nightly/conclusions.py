"""What follows from a night's samples: tables, what became slower, and what needs a hand."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from harness.errors import HarnessError, OutOfService
from harness.fleet.health import configured_band
from harness.fleet.profile_outcome import Failure
from harness.fleet.store import now
from harness.nightly.comparison import Report, Rules, compare_set
from harness.nightly.due_jobs import Candidate
from harness.nightly.job_queue import Course
from harness.nightly.outcome import Chore, Compared, DeviceRow, NightReport, SetRow, bug
from harness.nightly.plan import NightPlan
from harness.nightly.publishing import publish_table

LOW_DISK_BYTES = 1 << 30
"""Free space below which the next nights may not find room."""
_DAY_S = 86400.0


def conclude(course: Course) -> NightReport:
    """Publishes tables, compares with earlier nights, and gathers what needs a hand."""
    devices = [_device_row(course, device) for device in course.devices]
    compared: list[Compared] = []
    chores: list[Chore] = []
    rules, reports = _rules(course.plan, devices), course.store.reports(2 * course.plan.keep)
    for row in devices:
        for one in row.sets:
            found = _compared(course, row.device, one, rules, reports)
            if isinstance(found, Compared):
                compared.append(found)
            elif found is not None:
                chores.append(_chore(row.device, f"comparing {one.set}", found))
        chores.extend(_chores(row, _overdue(course, row)))
    chores.extend(_chores_of_the_host(course))
    started = [row.started for row in course.rows.values() if row.started]
    return NightReport(
        night=course.night.isoformat(),
        plan=str(course.plan.path),
        started=min(started, default=now()),
        finished=now(),
        measured=sum(row.now and row.status == "done" for row in course.rows.values()),
        devices=tuple(devices),
        chores=tuple(chores),
        compared=tuple(compared),
        stopped=course.stopped,
    )


def _rules(plan: NightPlan, devices: Sequence[DeviceRow]) -> Rules:
    """How sets are compared: all comparisons of a night share the probability of a false alarm."""
    from harness.slowdowns.power import level_of_each

    count = sum(row.status == "done" and row.watch is not None for device in devices for row in device.sets)
    return Rules(plan.keep, plan.threshold, level_of_each(count))


def _compared(
    course: Course, device: str, row: SetRow, rules: Rules, reports: Sequence[Report]
) -> Compared | Failure | None:
    """One set's comparison; what goes wrong in it is that set's finding, and the others' nights go on."""
    try:
        return compare_set(course.journal, device, row, rules, reports)
    except HarnessError as error:
        return Failure.of(error)
    except Exception as error:  # a bug met on one set, told in full
        step = "Report it with its trace, which `harness nightly run --json` shows among the chores"
        return bug("it met a bug in harness", error, step)


def _device_row(course: Course, device: str) -> DeviceRow:
    sets = tuple(_final_row(course, one) for one in course.of(device))
    published = publish_table(course.workspace, course.journal, device, sets)
    health = course.store.health(device)
    golden = [(row.ended, row.golden_s) for row in sets if row.golden_s is not None]
    return DeviceRow(
        device=device,
        health=health.health,
        health_reason=health.reason,
        sets=sets,
        published=published,
        golden_s=max(golden)[1] if golden else None,
        band_s=_band(course, device),
        notes=_notes(course, device),
    )


def _band(course: Course, device: str) -> tuple[float, float] | None:
    band = configured_band(course.devices[device]) or course.store.band(device)
    return None if band is None else (band.low_s, band.high_s)


def _final_row(course: Course, one: Candidate) -> SetRow:
    """The row of a job with the status that the report gives it."""
    row = course.rows.get(one.job.name)
    if row is not None and course.is_done(one):
        return row
    reason = course.why_not(one)
    if row is not None and row.failure is not None and row.failure.kind != OutOfService.__name__:
        return row
    if row is not None and row.status == "done":
        return replace(row, status="skipped", reason=reason or "measured, but its samples are gone or kept out")
    bare = SetRow(one.set.name, one.set.label, one.job.name, "skipped")
    if reason or row is not None:
        return replace(bare, reason=reason or (row.reason if row else ""))
    if one.device.name in course.unreached:
        return replace(bare, reason=course.engine_failure.what if course.engine_failure else "the night was stopped")
    return replace(bare, status="deferred", reason="did not fit into tonight's budget")


def _notes(course: Course, device: str) -> tuple[str, ...]:
    history = course.store.history(device)
    before = next((one for one in history if one.health != "good"), None)
    if before is None or history[0].health != "good" or before.health != "bad":
        return ()
    back = course.plan.night(datetime.fromisoformat(history[0].since).astimezone())
    return (f"back from quarantine tonight; it was there because {before.reason}",) if back == course.night else ()


def _overdue(course: Course, row: DeviceRow) -> list[str]:
    """Sets that were deferred though they are older than the plan allows."""
    nights = {one.job.name: one.staleness.nights for one in course.of(row.device)}
    deferred = [(one.set, nights[one.job]) for one in row.sets if one.status == "deferred"]
    return [
        f"{name} ({'never measured' if age is None else f'{age} nights old'})"
        for name, age in deferred
        if age is None or age * _DAY_S > course.plan.max_age_s
    ]


def _chores(row: DeviceRow, overdue: Sequence[str]) -> list[Chore]:
    """What needs a hand on a device, each cause once."""
    chores: dict[tuple[str, str], Chore] = {}
    for one in row.sets:
        if one.failure is not None:
            chore = _chore(row.device, "", one.failure)
            chores.setdefault((chore.kind, chore.what), chore)
        if one.status == "done" and one.refused:
            what = f"{one.refused} of {one.probes} probes of {one.set} were refused by the device"
            step = "Look at what the runtime says of them, or take the network out of the set"
            why = "Their layers are not in the table"
            chores["refused", one.set] = Chore(row.device, "refused probes", what, why, step)
    if row.published.failure is not None:
        chores["table", ""] = _chore(row.device, "no table", row.published.failure)
    if overdue:
        what = f"The budget leaves out {', '.join(overdue)}"
        step = "Give a larger budget in the plan, or fewer sets"
        chores["budget", ""] = Chore(row.device, "budget", what, "They are older than max_age", step)
    return list(chores.values())


def _chores_of_the_host(course: Course) -> list[Chore]:
    failure, free = course.engine_failure, shutil.disk_usage(course.workspace.root).free
    found = [] if failure is None else [_chore("", "engine", failure)]
    if free < LOW_DISK_BYTES:
        what = f"The disk of the workspace has {free / 1e9:.2f} GB left"
        found.append(Chore("", "disk", what, "Samples and tables need room", "Free space before the next night"))
    return found


def _chore(device: str, about: str, failure: Failure) -> Chore:
    what = f"{about}: {failure.what}" if about else failure.what
    words = (device, failure.kind, what, failure.why, failure.next_step)
    return Chore(*words, failure.exit_code, failure.trace if failure.exit_code == HarnessError.exit_code else "")
