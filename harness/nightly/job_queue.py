"""The queue of a night's jobs: which are done, which may start, and the result of each."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from harness.device.inventory import Device, load_inventory
from harness.errors import EngineError, HarnessError, Interrupted
from harness.fleet.profile_outcome import Engine, Failure, ProfileOutcome
from harness.fleet.store import OUT_OF_SERVICE, FleetStore, JobStatus
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, Campaign
from harness.measure.request import ProfileRequest
from harness.nightly.due_jobs import DueJob, campaigns_of_nights, due_jobs, is_done, within_budget
from harness.nightly.night_plan import NightPlan
from harness.nightly.night_report import SetRow, json_data
from harness.workspace import Workspace

QUARANTINED, TOO_SLOW = "DeviceQuarantined", "DeviceTooSlow"
_PURPOSES = ("profile", "watch")

Notify = Callable[[str], None]
"""Called with one line for each job that ended."""


def ignore(_: str) -> None:
    """Do nothing with a notification."""


@dataclass
class JobQueue:
    """The jobs of a night with their results.

    `rows` are results by the name of the job. `unreached` are devices with jobs that could still have started when the
    night was `stopped` or its engine failed.
    """

    plan: NightPlan
    workspace: Workspace
    night: date
    store: FleetStore
    journal: Journal
    notify: Notify = ignore
    jobs: list[DueJob] = field(init=False)
    devices: dict[str, Device] = field(init=False)
    rows: dict[str, SetRow] = field(init=False)
    engine_failure: Failure | None = None
    stopped: bool = False
    unreached: frozenset[str] = frozenset()
    _tries: Counter[str] = field(default_factory=Counter)
    _campaigns: dict[str, Mapping[int, Campaign]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inventory, tables = load_inventory(self.workspace.devices), self.workspace.lut
        self.jobs = due_jobs(self.plan, inventory, self.night, self.store, self.journal, tables)
        self.devices = {one.device.name: one.device for one in self.jobs}
        self.rows = {one.name: SetRow.from_record(one.outcome) for one in self.store.jobs(self.night.isoformat())}

    def run(self, engine: Engine, stop: threading.Event) -> None:
        """Run jobs until none may start, the engine fails or `stop` is set."""
        for device in self.devices:  # a killed run may have recorded a quarantine without excluding the campaigns
            if self._is_quarantined(device):
                self._exclude(device)
        while not stop.is_set() and (ready := self.ready_jobs()):
            try:
                for outcome in engine.run([one.job for one in ready], stop):
                    self._record(outcome, stop)
            except EngineError as error:  # the devices are unaffected; the report has what was measured
                self.engine_failure = Failure.of(error)
                break
        self.stopped = stop.is_set()
        self.unreached = frozenset(one.device.name for one in self.ready_jobs())

    def ready_jobs(self) -> list[DueJob]:
        """Return the jobs that may start now: not done, within budget, on a device that is in service."""
        starting: set[str] = set()
        for device in self.devices:
            waiting = [one for one in self.jobs_of(device) if self._may_start(one)]
            spent_s = sum(row.device_s for row in self._rows_of(device))
            now = within_budget(waiting, self._remaining_s, self.plan.settings.budget_s, spent_s)
            starting.update(one.job.name for one in now)
        return [one for one in self.jobs if one.job.name in starting]

    def jobs_of(self, device: str) -> list[DueJob]:
        """Return the jobs of a device."""
        return [one for one in self.jobs if one.device.name == device]

    def is_done(self, due: DueJob) -> bool:
        """Return whether a job was measured tonight and its campaigns are still usable."""
        return is_done(self.rows.get(due.job.name), self._campaigns_of(due.device.name))

    def blocked_because(self, due: DueJob) -> str:
        """Return why a job's device may not be used; empty if it may."""
        health = self.store.health(due.device.name)
        if health.health in OUT_OF_SERVICE:
            return f"{health.health}: {health.reason}"
        if self._is_quarantined(due.device.name):
            return f"quarantined: {health.reason}"
        if (failure := self._failure_of(due.device.name, TOO_SLOW)) is not None:
            return f"the device was abandoned: {failure.what}"
        return ""

    def _rows_of(self, device: str) -> Iterator[SetRow]:
        return (row for one in self.jobs_of(device) if (row := self.rows.get(one.job.name)))

    def _remaining_s(self, due: DueJob) -> float | None:
        """Return the rest of a job's cost: a failed job resumes where it stopped."""
        row = self.rows.get(due.job.name)
        if due.cost_s is None or row is None or row.failure is None or row.failure.kind == QUARANTINED:
            return due.cost_s
        return max(0.0, due.cost_s - row.device_s)

    def _may_start(self, due: DueJob) -> bool:
        if self.is_done(due) or self.blocked_because(due):
            return False
        tries, row = self._tries[due.job.name], self.rows.get(due.job.name)
        if not tries:
            return True
        failure = row.failure if row else None
        return failure is not None and failure.retry_helps and tries <= self.plan.settings.retries

    def _is_quarantined(self, device: str) -> bool:
        """Return whether the golden probe was outside its band tonight and no person has returned the device since."""
        found = self._failure_of(device, QUARANTINED, now=False)
        return found is not None and self.store.health(device).health == "bad"

    def _failure_of(self, device: str, kind: str, *, now: bool = True) -> Failure | None:
        """Return a failure of this kind tonight, if there is one: of this run only, or also of earlier ones."""
        rows = (row for row in self._rows_of(device) if row.now or not now)
        return next((row.failure for row in rows if row.failure is not None and row.failure.kind == kind), None)

    def _campaigns_of(self, device: str) -> Mapping[int, Campaign]:
        if device not in self._campaigns:
            self._campaigns[device] = {one.id: one for one in self.journal.campaigns(device)}
        return self._campaigns[device]

    def _record(self, outcome: ProfileOutcome, stop: threading.Event) -> None:
        """Store a job's result immediately, so that it is never measured again."""
        job, failure = outcome.request, outcome.failure
        self._campaigns.pop(job.device, None)
        if failure is not None and failure.kind == Interrupted.__name__:
            if stop.is_set():
                return  # the job continues when the night does
            failure = _worker_stopped(failure)
            outcome = replace(outcome, failure=failure)
        self._tries[job.name] += 1
        if outcome.gives_up_device and not outcome.attempts:
            return  # the engine did not start it; the row of the job before it gives the reason
        row = self._row(outcome)
        self.rows[job.name] = row
        status: JobStatus = "done" if failure is None else "failed"
        self.store.record_job(job.name, self.night.isoformat(), job.device, status, json_data(row))
        # Jobs that ran while another one put the device into quarantine are also excluded.
        if self._failure_of(job.device, QUARANTINED) is not None:
            self._exclude(job.device)
        self.notify(f"{job.device}: {row.set} {status if failure is None else f'failed: {failure.what}'}")

    def _exclude(self, device: str) -> None:
        """Exclude a device's campaigns of tonight from tables and comparisons; the device stays in quarantine."""
        found = self._failure_of(device, QUARANTINED, now=False)
        if found is None:
            return
        reason = f"{found.what}; {found.why}"
        self.store.measured(device, "bad", reason)
        for held in campaigns_of_nights(self.journal, device, *_PURPOSES):
            # A pending campaign is also excluded: the job that resumes it would include it.
            if held.job.night == self.night.isoformat() and held.campaign.excluded in (None, PENDING):
                self.journal.exclude(held.campaign.id, held.campaign.token, reason)
        self._campaigns.pop(device, None)

    def _row(self, outcome: ProfileOutcome) -> SetRow:
        job, result, failure = outcome.request, outcome.result, outcome.failure
        if failure is not None and failure.exit_code != HarnessError.exit_code:
            failure = replace(failure, trace="")
        layer_set = next(one.set for one in self.jobs if one.job.name == job.name)
        row = SetRow(
            set=layer_set.name,
            label=layer_set.label,
            job=job.name,
            status="done" if failure is None else "failed",
            reason=failure.what if failure else "",
            attempts=outcome.attempts,
            golden_s=json_data(outcome.golden_s),
            started=outcome.started,
            ended=outcome.ended,
            fingerprint=dict(outcome.fingerprint),
            failure=failure,
            now=True,
        )
        if result is None or failure is not None:
            return replace(row, device_s=self._spent_s(job))
        watch_s = 0.0 if outcome.watch is None else self.journal.spent_s(outcome.watch)
        device_s = result.device_seconds + watch_s
        return replace(
            row,
            device_s=device_s if math.isfinite(device_s) else self._spent_s(job),
            probes=result.probes,
            refused=result.refused,
            unsettled=result.unsettled,
            refused_networks=result.refused_networks,
            campaigns=outcome.space.campaigns if outcome.space else (result.campaign,),
            watch=outcome.watch,
            machine="" if result.machine is None else result.machine.text,
        )

    def _spent_s(self, job: ProfileRequest) -> float:
        """Return the device time of all tries of a job, as the journal has it."""
        held = campaigns_of_nights(self.journal, job.device, *_PURPOSES)
        return sum(self.journal.spent_s(one.campaign.id) for one in held if one.campaign.job == job.name)


def _worker_stopped(failure: Failure) -> Failure:
    """Return the failure of a job that was stopped although the night was not: another try may succeed."""
    what = "The worker was stopped during the job"
    step = "Find out what stopped it, then run the same command again: it resumes where it stopped"
    return Failure.of(EngineError(what, why=failure.what, next_step=step))
