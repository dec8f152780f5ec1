"""A night: run the jobs that are due, publish tables, compare with earlier nights, store the report.

The same call resumes an interrupted night: jobs have names, the journal has their samples, and the store their results.
The report is made only from the journal and the store, so that a second run of the same night repeats it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from harness.errors import ConfigurationError, HarnessError, LutError, OutOfService, advice, bug
from harness.fleet.health import configured_band
from harness.fleet.local_engine import LocalEngine
from harness.fleet.profile_outcome import Engine, Failure
from harness.fleet.store import FleetStore, now
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import read_lut
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.progress import FAILED, Observer, ignore as ignore_progress
from harness.measure.request import ProfileRequest
from harness.nightly.due_jobs import DueJob, campaigns_of_nights
from harness.nightly.job_queue import JobQueue, Notify, ignore
from harness.nightly.night_lock import night_lock
from harness.nightly.night_plan import NightPlan
from harness.nightly.night_report import AttentionItem, DeviceRow, NightReport, PublishedTable, SetComparison, SetRow
from harness.nightly.plan_file import dims_key
from harness.nightly.set_comparison import ComparisonRules, StoredReport, compare_set
from harness.slowdowns.detection_power import level_of_each
from harness.workspace import Workspace

LOW_DISK_BYTES = 1 << 30
"""Less free space than this may not suffice for the next nights."""
_DAY_S = 86400.0


def current_night(plan: NightPlan) -> date:
    """Return the night that it is now, by local time."""
    return plan.night(datetime.now().astimezone())


def engine_of(
    plan: NightPlan, workspace: Workspace, observer: Callable[[ProfileRequest], Observer] = lambda _: ignore_progress
) -> Engine:
    """Return the engine that runs the plan's jobs: threads of this process, or the workers of a Dask scheduler.

    `observer` returns the observer of each job; that of a job on a worker learns only its beginning and its end.
    """
    if plan.scheduler is None:
        return LocalEngine(workspace, observer=observer)
    from harness.fleet.cluster.dask_engine import DaskEngine  # the extra `cluster`

    return DaskEngine(plan.scheduler, workspace, tls=plan.tls, observer=observer)


def run_night(
    plan: NightPlan,
    workspace: Workspace,
    *,
    night: date | None = None,
    engine: Engine | None = None,
    stop: threading.Event | None = None,
    notify: Notify = ignore,
    publishing: Callable[[str], Observer] = lambda _: ignore_progress,
) -> NightReport:
    """Measure what the night still lacks, publish tables, compare with earlier nights, and store the report.

    `publishing` returns the observer of the table of a device.

    Failures of devices are in the report, and so is a stop. Raises NightBusy if another nightly runs in the workspace,
    ConfigurationError and UnknownDevice for a plan that does not match the inventory, and JournalError.
    """
    which = night or current_night(plan)
    with (
        night_lock(workspace, which.isoformat()),
        FleetStore(workspace.fleet) as store,
        Journal(workspace.journal) as journal,
    ):
        queue = JobQueue(plan, workspace, which, store, journal, notify)
        queue.run(engine or engine_of(plan, workspace), stop or threading.Event())
        report = build_report(queue, publishing)
        store.record_report(report.night, report.data)
        return report


@dataclass(frozen=True)
class JobForecast:
    """A job before its night begins: whether it is already done, starts immediately, or why its device is blocked."""

    due: DueJob
    done: bool
    starts: bool
    reason: str


def forecast(plan: NightPlan, workspace: Workspace, *, night: date | None = None) -> tuple[JobForecast, ...]:
    """Return the jobs of `run_night` in their order; no device is contacted and nothing is measured.

    Raises as `run_night` for a plan that does not match the inventory.
    """
    with FleetStore(workspace.fleet, to_read=True) as store, Journal(workspace.journal, to_read=True) as journal:
        queue = JobQueue(plan, workspace, night or current_night(plan), store, journal)
        starting = {one.job.name for one in queue.ready_jobs()}
        return tuple(
            JobForecast(one, queue.is_done(one), one.job.name in starting, queue.blocked_because(one))
            for one in queue.jobs
        )


def build_report(queue: JobQueue, publishing: Callable[[str], Observer]) -> NightReport:
    """Publish tables, compare with earlier nights, and list what needs attention."""
    devices = [_device_row(queue, device, publishing(device)) for device in queue.devices]
    compared: list[SetComparison] = []
    attention: list[AttentionItem] = []
    settings = queue.plan.settings
    watched = sum(row.status == "done" and row.watch is not None for device in devices for row in device.sets)
    # All comparisons of a night share the probability of a false alarm.
    rules = ComparisonRules(settings.keep, settings.threshold, level_of_each(watched), queue.store.acceptances())
    reports = queue.store.reports(2 * settings.keep)
    for row in devices:
        for one in row.sets:
            found = _compared(queue, row.device, one, rules, reports)
            if isinstance(found, SetComparison):
                compared.append(found)
            elif found is not None:
                attention.append(_item(row.device, found, about=f"comparing {one.set}: "))
        attention.extend(_device_items(row, _overdue(queue, row)))
    attention.extend(_host_items(queue))
    started = [row.started for row in queue.rows.values() if row.started]
    return NightReport(
        night=queue.night.isoformat(),
        plan=str(queue.plan.path),
        started=min(started, default=now()),
        finished=now(),
        measured=sum(row.now and row.status == "done" for row in queue.rows.values()),
        devices=tuple(devices),
        attention=tuple(attention),
        compared=tuple(compared),
        stopped=queue.stopped,
    )


def _compared(
    queue: JobQueue, device: str, row: SetRow, rules: ComparisonRules, reports: Sequence[StoredReport]
) -> SetComparison | Failure | None:
    """Compare one set; an error becomes that set's failure, and the other sets are still compared."""
    try:
        return compare_set(queue.journal, device, row, rules, reports)
    except HarnessError as error:
        return Failure.of(error)
    except Exception as error:  # a bug that one set triggers must not end the night
        step = 'Report it with its trace, which `harness nightly run --json` shows under "attention"'
        return Failure.of(bug(error, "a bug in harness", step))


def _device_row(queue: JobQueue, device: str, observe: Observer) -> DeviceRow:
    sets = tuple(_final_row(queue, one) for one in queue.jobs_of(device))
    published = publish_table(queue.workspace, queue.journal, device, sets, observe)
    health = queue.store.health(device)
    band = configured_band(queue.devices[device]) or queue.store.band(device)
    golden = [(row.ended, row.golden_s) for row in sets if row.golden_s is not None]
    return DeviceRow(
        device=device,
        health=health.health,
        health_reason=health.reason,
        sets=sets,
        published=published,
        golden_s=max(golden)[1] if golden else None,
        band_s=(band.low_s, band.high_s) if band else None,
        notes=_notes(queue, device),
    )


def _final_row(queue: JobQueue, due: DueJob) -> SetRow:
    """Return the row of a job with the status that the report gives it."""
    row = queue.rows.get(due.job.name)
    if row is not None and queue.is_done(due):
        return row
    reason = queue.blocked_because(due)
    if row is not None and row.failure is not None and row.failure.kind != OutOfService.__name__:
        return row
    if row is not None and row.status == "done":
        return replace(row, status="skipped", reason=reason or "measured, but its samples were deleted or excluded")
    bare = SetRow(due.set.name, due.set.label, due.job.name, "skipped")
    if reason or row is not None:
        return replace(bare, reason=reason or (row.reason if row else ""))
    if due.device.name in queue.unreached:
        return replace(bare, reason=queue.engine_failure.what if queue.engine_failure else "the night was stopped")
    return replace(bare, status="deferred", reason="did not fit into tonight's budget")


def _notes(queue: JobQueue, device: str) -> tuple[str, ...]:
    history = queue.store.history(device)
    before = next((one for one in history if one.health != "good"), None)
    if before is None or history[0].health != "good" or before.health != "bad":
        return ()
    back = queue.plan.night(datetime.fromisoformat(history[0].since).astimezone())
    return (f"left quarantine tonight; it was there because {before.reason}",) if back == queue.night else ()


def _overdue(queue: JobQueue, row: DeviceRow) -> list[str]:
    """Return the deferred sets that are older than the plan allows."""
    nights = {one.job.name: one.staleness.nights for one in queue.jobs_of(row.device)}
    deferred = [(one.set, nights[one.job]) for one in row.sets if one.status == "deferred"]
    return [
        f"{name} ({'never measured' if age is None else f'{age} nights old'})"
        for name, age in deferred
        if age is None or age * _DAY_S > queue.plan.settings.max_age_s
    ]


def _device_items(row: DeviceRow, overdue: Sequence[str]) -> list[AttentionItem]:
    """Return a device's attention items, each cause once."""
    items: dict[tuple[str, str], AttentionItem] = {}
    for one in row.sets:
        if one.failure is not None:
            item = _item(row.device, one.failure)
            items.setdefault((item.kind, item.what), item)
        for refused in one.refused_networks if one.status == "done" else ():
            item = _item(row.device, Failure.of(refused.error()), about=f"left out of {one.set}: ")
            items.setdefault((item.kind, item.what), item)
        if one.status == "done" and one.refused:
            what = f"The device refused {one.refused} of {one.probes} probes of {one.set}"
            step = "Read the runtime's messages, or remove the network from the set"
            why = "Their layers are not in the table"
            items["refused", one.set] = AttentionItem(row.device, "refused probes", what, why, step)
    if row.published.failure is not None:
        items["table", ""] = _item(row.device, row.published.failure, about="no table: ")
    if overdue:
        what = f"The budget is too small for {', '.join(overdue)}"
        step = "Raise the budget in the plan, or remove sets"
        items["budget", ""] = AttentionItem(row.device, "budget", what, "They are older than max_age", step)
    return list(items.values())


def _host_items(queue: JobQueue) -> list[AttentionItem]:
    free = shutil.disk_usage(queue.workspace.root).free
    found = [_item("", queue.engine_failure, about="engine: ")] if queue.engine_failure else []
    if free < LOW_DISK_BYTES:
        what, why = f"The disk of the workspace has {free / 1e9:.2f} GB left", "Samples and tables need space"
        found.append(AttentionItem("", "disk", what, why, "Free space before the next night"))
    return found


def _item(device: str, failure: Failure, about: str = "") -> AttentionItem:
    return AttentionItem(
        device=device,
        kind=failure.kind,
        what=f"{about}{failure.what}",
        why=failure.why,
        next_step=advice(failure, dims_key),
        exit_code=failure.exit_code,
        trace=failure.trace if failure.exit_code == HarnessError.exit_code else "",
    )


def publish_table(
    workspace: Workspace, journal: Journal, device: str, rows: Sequence[SetRow], observe: Observer
) -> PublishedTable:
    """Build a device's table if all of its jobs tonight are done, else keep the previous table.

    Deferred jobs are ignored: the table keeps their samples of earlier nights. A failed or skipped job keeps the
    previous table: a new one would lack its set without showing that.

    After a change of the device's fingerprint the previous table stays until all sets of the plan are measured again:
    a table holds samples of one fingerprint only. A table that an earlier run of the night published is not rebuilt.
    """
    done = [row for row in rows if row.status == "done"]
    missing = sorted((row for row in rows if row.status in ("failed", "skipped")), key=lambda row: row.status)
    if missing and (done or missing[0].status == "failed"):
        return _kept(workspace, device, f"{missing[0].set} was not measured")
    if not done:
        return _kept(workspace, device, "nothing was measured")
    current = _newest(workspace, device)
    newest = max(number for row in done for number in row.campaigns)
    if current is not None and newest in current[1]:
        return current[0]
    outdated = _outdated_sets(journal, device, rows)
    if outdated:
        return _kept(workspace, device, f"the device changed since {', '.join(outdated)} was measured")
    from harness.lut.build import build_lut  # loads an optimiser

    try:
        table = build_lut(device, workspace=workspace, observe=observe)
    except HarnessError as error:
        return _kept(workspace, device, f"no table could be built: {error.what}", Failure.of(error))
    except Exception as error:  # a bug that one device triggers must not end the night
        step = f"Run `harness --debug lut build --device {device}` and report its output"
        found = bug(error, "Building the table failed because of a bug in harness", step)
        return _kept(workspace, device, found.what, Failure.of(found))
    finally:
        observe(FAILED)  # without effect on a table that is done
    if (used := latest_lut(workspace.lut, device)) != table.path:
        what = f"{device}/{used.name} has a later date than {table.path.name}, and stays the newest table"
        later = ConfigurationError(what, next_step="If the clock was wrong, remove the table with the later date")
        return _kept(workspace, device, what, Failure.of(later))
    return PublishedTable(f"{device}/{table.path.name}", table.created, len(table.entries))


def _outdated_sets(journal: Journal, device: str, rows: Sequence[SetRow]) -> list[str]:
    """Return the sets whose newest samples have another fingerprint than the newest ones of all sets."""
    newest: dict[str, Campaign] = {}
    for one in campaigns_of_nights(journal, device, "profile"):
        if one.campaign.is_usable:
            newest[one.job.label] = one.campaign
    held = {row.set: newest[row.label] for row in rows if row.label in newest}
    if not held:
        return []
    now = max(held.values(), key=lambda campaign: (campaign.created, campaign.id)).fingerprint
    return [name for name, campaign in held.items() if campaign.fingerprint != now]


def _kept(workspace: Workspace, device: str, because: str, failure: Failure | None = None) -> PublishedTable:
    current = _newest(workspace, device)
    table = current[0] if current else PublishedTable(None)
    return replace(table, kept_because=because, failure=failure)


def _newest(workspace: Workspace, device: str) -> tuple[PublishedTable, frozenset[int]] | None:
    """Return the newest table and the campaigns of its entries, or None if no table can be read."""
    try:
        table = read_lut(latest_lut(workspace.lut, device), device)
    except LutError:  # a damaged table is replaced by a new one
        return None
    found = PublishedTable(f"{device}/{table.path.name}", table.created, len(table.entries))
    return found, frozenset(entry.campaign for entry in table.entries)
