"""A night: run the jobs that are due, publish tables, compare with earlier nights, store the report.

The same call resumes an interrupted night: jobs have names, the journal has their samples, and the store their results.
The report is made only from the journal and the store, so that a second run of the same night repeats it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime

from harness.fleet.local_engine import LocalEngine
from harness.fleet.profile_outcome import Engine
from harness.fleet.store import FleetStore
from harness.measure.journal.journal import Journal
from harness.measure.progress import Observer
from harness.measure.progress import ignore as ignore_progress
from harness.measure.request import ProfileRequest
from harness.nightly.due_jobs import DueJob
from harness.nightly.job_queue import JobQueue, Notify, ignore
from harness.nightly.night_lock import night_lock
from harness.nightly.night_plan import NightPlan
from harness.nightly.night_report import NightReport
from harness.nightly.report_building import build_report
from harness.workspace import Workspace


def current_night(plan: NightPlan) -> date:
    """Return the night that it is now, by local time."""
    return plan.night(datetime.now().astimezone())


def engine_of(
    plan: NightPlan, workspace: Workspace, observer: Callable[[ProfileRequest], Observer] = lambda _: ignore_progress
) -> Engine:
    """Return the engine that runs the plan's jobs: threads of this process, or the workers of a Dask scheduler.

    `observer` returns the observer of each job that runs in a thread; workers report no progress.
    """
    if plan.scheduler is None:
        return LocalEngine(workspace, observer=observer)
    from harness.fleet.cluster.dask_engine import DaskEngine  # the extra `cluster`

    return DaskEngine(plan.scheduler, workspace, tls=plan.tls)


def run_night(
    plan: NightPlan,
    workspace: Workspace,
    *,
    night: date | None = None,
    engine: Engine | None = None,
    stop: threading.Event | None = None,
    notify: Notify = ignore,
) -> NightReport:
    """Measure what the night still lacks, publish tables, compare with earlier nights, and store the report.

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
        report = build_report(queue)
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
