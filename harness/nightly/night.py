"""A night: what its plan wants and nobody has measured yet, then tables, then what became slower, then the report.

Whatever happens in between, the same call goes on from there: jobs have names, what they brought is in the journal, and
what became of them in the store. The report is made of those two alone, so that a second run says the same.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

from harness.fleet.local import LocalEngine
from harness.fleet.profile_outcome import Engine
from harness.fleet.store import FleetStore
from harness.measure.journal import Journal
from harness.nightly.conclusions import conclude
from harness.nightly.due_jobs import Candidate
from harness.nightly.job_queue import Course, Tell, silent
from harness.nightly.lock import night_lock
from harness.nightly.outcome import NightReport, finite
from harness.nightly.plan import NightPlan
from harness.workspace import Workspace


def tonight(plan: NightPlan) -> date:
    """The night that it is, by local time."""
    return plan.night(datetime.now().astimezone())


def engine_of(plan: NightPlan, workspace: Workspace) -> Engine:
    """What runs the plan's jobs: threads of this process, or the workers of its Dask scheduler."""
    if plan.scheduler is None:
        return LocalEngine(workspace)
    from harness.fleet.cluster.access import TlsFiles
    from harness.fleet.cluster.engine import DaskEngine  # the extra `cluster`

    return DaskEngine(plan.scheduler, workspace, tls=None if plan.tls is None else TlsFiles(*plan.tls))


def run_night(
    plan: NightPlan,
    workspace: Workspace,
    *,
    night: date | None = None,
    engine: Engine | None = None,
    stop: threading.Event | None = None,
    observe: Tell = silent,
) -> NightReport:
    """Measures what tonight's plan still lacks, publishes tables, compares with earlier nights, records the report.

    What goes wrong on a device is in the report, and so is that the night was stopped. Raises NightBusy while another
    nightly runs here, ConfigurationError and UnknownDevice for a plan that does not fit the inventory, JournalError.
    """
    which = night or tonight(plan)
    with (
        night_lock(workspace, which.isoformat()),
        FleetStore(workspace.fleet) as store,
        Journal(workspace.journal) as journal,
    ):
        course = Course(plan, workspace, which, store, journal, observe)
        course.measure(engine or engine_of(plan, workspace), stop or threading.Event())
        report = conclude(course)
        store.record_report(report.night, report_data(report))
        return report


@dataclass(frozen=True)
class Foreseen:
    """A job of a night before it begins: done already, or whether it would start at once, or why not."""

    candidate: Candidate
    done: bool
    starts: bool
    reason: str


def foresee(plan: NightPlan, workspace: Workspace, *, night: date | None = None) -> tuple[Foreseen, ...]:
    """What `run_night` would do first, in its order; no device is asked and nothing is measured.

    Raises as `run_night` does for a plan that does not fit.
    """
    with FleetStore(workspace.fleet) as store, Journal(workspace.journal) as journal:
        course = Course(plan, workspace, night or tonight(plan), store, journal)
        starting = {one.job.name for one in course.wave()}
        return tuple(
            Foreseen(one, course.is_done(one), one.job.name in starting, course.why_not(one))
            for one in course.candidates
        )


def report_data(report: NightReport) -> dict[str, Any]:
    """A report as plain JSON data."""
    found: dict[str, Any] = asdict(report)
    regressions, improvements = ([asdict(one) for one in ones] for ones in (report.regressions, report.improvements))
    told = {**found, "exit_code": report.exit_code, "regressions": regressions, "improvements": improvements}
    return {key: finite(value) for key, value in told.items()}
