"""The course of a night: which jobs are done, which may start, and what became of each."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date

from harness.device.inventory import Device, load_inventory
from harness.errors import EngineError, HarnessError, Interrupted
from harness.fleet.profile_outcome import Engine, Failure, ProfileOutcome
from harness.fleet.store import OUT_OF_SERVICE, FleetStore, JobStatus
from harness.measure.journal import PENDING, Campaign, Journal
from harness.measure.request import ProfileRequest
from harness.nightly.due_jobs import Candidate, JobName, campaigns_of_nights, candidates, is_done
from harness.nightly.outcome import SetRow, finite
from harness.nightly.plan import NightPlan
from harness.nightly.staleness import admit
from harness.workspace import Workspace

QUARANTINED = "DeviceQuarantined"
_PURPOSES = ("profile", "watch")

Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Tells nobody."""


@dataclass
class Course:
    """What of a night's plan is done, what may start, and what became of each job.

    `unreached` are devices with jobs that might have started when the night was `stopped`, or its engine failed.
    """

    plan: NightPlan
    workspace: Workspace
    night: date
    store: FleetStore
    journal: Journal
    tell: Tell = silent
    candidates: list[Candidate] = field(init=False)
    devices: dict[str, Device] = field(init=False)
    rows: dict[str, SetRow] = field(init=False)
    engine_failure: Failure | None = None
    stopped: bool = False
    unreached: frozenset[str] = frozenset()
    _tries: Counter[str] = field(default_factory=Counter)
    _campaigns: dict[str, Mapping[int, Campaign]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inventory, tables = load_inventory(self.workspace.devices), self.workspace.lut
        self.candidates = candidates(self.plan, inventory, self.night, self.store, self.journal, tables)
        self.devices = {one.device.name: one.device for one in self.candidates}
        self.rows = {one.name: SetRow.from_record(one.outcome) for one in self.store.jobs(self.night.isoformat())}

    def measure(self, engine: Engine, stop: threading.Event) -> None:
        """Runs jobs in waves until none is left that may start, the engine fails or a stop is asked for."""
        for device in self.devices:  # a run that was killed may have seen the quarantine, and no more
            if self._is_quarantined(device):
                self._exclude(device)
        while not stop.is_set() and (wave := self.wave()):
            try:
                for outcome in engine.run([one.job for one in wave], stop):
                    self._take(outcome, stop)
            except EngineError as error:  # devices are as they were; what was measured still makes a report
                self.engine_failure = Failure.of(error)
                break
        self.stopped = stop.is_set()
        self.unreached = frozenset(one.device.name for one in self.wave())

    def wave(self) -> list[Candidate]:
        """Jobs that may start now: not done, not given up, within their device's budget, on a device in service."""
        open_now = [one for one in self.candidates if self._is_open(one)]
        starting: set[str] = set()
        for device in {one.device.name for one in open_now}:
            mine = [one for one in open_now if one.device.name == device]
            spent_s = sum(row.device_s for one in self.of(device) if (row := self.rows.get(one.job.name)))
            admitted, _ = admit(mine, self._left_s, self.plan.budget_s, spent_s)
            starting.update(one.job.name for one in admitted)
        return [one for one in open_now if one.job.name in starting]

    def _left_s(self, one: Candidate) -> float | None:
        """What of a job's time is left: one that failed goes on from where it stopped."""
        row = self.rows.get(one.job.name)
        if one.cost_s is None or row is None or row.failure is None or row.failure.kind == QUARANTINED:
            return one.cost_s
        return max(0.0, one.cost_s - row.device_s)

    def of(self, device: str) -> list[Candidate]:
        """The jobs of a device."""
        return [one for one in self.candidates if one.device.name == device]

    def is_done(self, one: Candidate) -> bool:
        """Whether it was measured tonight and its samples are still there and good."""
        return is_done(self.rows.get(one.job.name), self._campaigns_of(one.device.name))

    def why_not(self, one: Candidate) -> str:
        """Why a job may not start for reasons of its device; nothing where it may."""
        health = self.store.health(one.device.name)
        if health.health in OUT_OF_SERVICE:
            return f"{health.health}: {health.reason}"
        if self._is_quarantined(one.device.name):
            return f"quarantined: {health.reason}"
        return ""

    def _is_open(self, one: Candidate) -> bool:
        if self.is_done(one) or self.why_not(one):
            return False
        tries, row = self._tries[one.job.name], self.rows.get(one.job.name)
        if not tries:
            return True
        failure = row.failure if row else None
        return failure is not None and failure.retry_helps and tries <= self.plan.retries

    def _is_quarantined(self, device: str) -> bool:
        """Whether the golden probe was outside its band tonight, and nobody has put the device back since."""
        return self._quarantine_of(device) is not None and self.store.health(device).health == "bad"

    def _quarantine_of(self, device: str) -> Failure | None:
        failures = (row.failure for one in self.of(device) if (row := self.rows.get(one.job.name)))
        return next((failure for failure in failures if failure and failure.kind == QUARANTINED), None)

    def _campaigns_of(self, device: str) -> Mapping[int, Campaign]:
        if device not in self._campaigns:
            self._campaigns[device] = {one.id: one for one in self.journal.campaigns(device)}
        return self._campaigns[device]

    def _take(self, outcome: ProfileOutcome, stop: threading.Event) -> None:
        """Records what became of a job at once: whatever happens after this, it is not measured again."""
        job, failure = outcome.request, outcome.failure
        self._campaigns.pop(job.device, None)
        if failure is not None and failure.kind == Interrupted.__name__:
            if stop.is_set():
                return  # it goes on when the night does
            failure = _ended_early(failure)
            outcome = replace(outcome, failure=failure)
        self._tries[job.name] += 1
        quarantined = self._put_into_quarantine(job.device)
        row = self._row(outcome)
        self.rows[job.name] = row
        status: JobStatus = "done" if failure is None else "failed"
        self.store.record_job(job.name, self.night.isoformat(), job.device, status, finite(asdict(row)))
        if quarantined or (failure is not None and failure.kind == QUARANTINED):
            self._exclude(job.device)
        self.tell(f"{job.device}: {row.set} {'done' if failure is None else 'failed: ' + failure.what}")

    def _put_into_quarantine(self, device: str) -> bool:
        """Whether this run has done so: jobs that were under way measure what nobody may use."""
        return any(
            row.now and row.failure is not None and row.failure.kind == QUARANTINED
            for one in self.of(device)
            if (row := self.rows.get(one.job.name))
        )

    def _exclude(self, device: str) -> None:
        """Keeps what was measured on a device tonight out of tables and comparisons, and the device in quarantine."""
        found = self._quarantine_of(device)
        if found is None:
            return
        reason = f"{found.what}; {found.why}"
        self.store.measured(device, "bad", reason)
        for purpose in _PURPOSES:
            for held in campaigns_of_nights(self.journal, device, purpose):
                # One that waits for its golden probe would be let in by the job that goes on with it.
                if held.job.night == self.night.isoformat() and held.campaign.excluded in (None, PENDING):
                    self.journal.exclude(held.campaign.id, reason)
        self._campaigns.pop(device, None)

    def _row(self, outcome: ProfileOutcome) -> SetRow:
        job, result, failure = outcome.request, outcome.result, outcome.failure
        if failure is not None and failure.exit_code != HarnessError.exit_code:
            failure = replace(failure, trace="")
        name = JobName.parse(job.name)
        row = SetRow(
            set=name.set if name else job.name,
            label=name.label if name else job.name,
            job=job.name,
            status="done" if failure is None else "failed",
            reason=failure.what if failure else "",
            attempts=outcome.attempts,
            golden_s=finite(outcome.golden_s),
            started=outcome.started,
            ended=outcome.ended,
            fingerprint=dict(outcome.fingerprint),
            failure=failure,
            now=True,
        )
        if result is None or failure is not None:
            return replace(row, device_s=self._spent_s(job))
        watch_s = 0.0 if outcome.watch is None else self.journal.spent_s(outcome.watch)
        known_s = result.device_seconds + watch_s
        return replace(
            row,
            device_s=known_s if math.isfinite(known_s) else self._spent_s(job),
            probes=result.probes,
            refused=result.refused,
            unsettled=result.unsettled,
            campaigns=outcome.space.campaigns if outcome.space else (result.campaign,),
            watch=outcome.watch,
        )

    def _spent_s(self, job: ProfileRequest) -> float:
        """Time on the device that the journal knows of all that the job has tried."""
        tried = [one for purpose in _PURPOSES for one in campaigns_of_nights(self.journal, job.device, purpose)]
        return sum(self.journal.spent_s(one.campaign.id) for one in tried if str(one.job) == job.name)


def _ended_early(failure: Failure) -> Failure:
    """What a job that was stopped though nobody stopped the night says: its worker was, and another try may help."""
    what = "The job was stopped half-way, and not by whoever runs the night"
    step = "Look at why its worker was stopped, then run the same command again: it goes on from there"
    return Failure.of(EngineError(what, why=failure.what, next_step=step))
