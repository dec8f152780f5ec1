"""A lab of null devices with a plan, and engines that measure nothing or stop in between."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from nullbench import Bench

from harness.errors import DeviceQuarantined, DeviceUnreachable, HarnessError
from harness.fleet.local_engine import LocalEngine
from harness.fleet.profile_outcome import Failure, ProfileOutcome
from harness.fleet.store import now
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, CampaignKey
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.measure.request import ProfileRequest
from harness.nightly.night import run_night
from harness.nightly.night_plan import NightPlan, load_plan
from harness.nightly.night_report import NightReport
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.workspace import Workspace

NIGHT = date(2026, 11, 20)
NULL = 'backend = "null"\n'


@dataclass
class Lab:
    """A workspace with devices, networks and a plan."""

    root: Path
    table_stages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(self.root)
        for name in ("a", "b", "c"):
            (self.root / f"{name}.onnx").write_bytes(self.bench.model.read_bytes())
        self.set_devices("one")

    @property
    def workspace(self) -> Workspace:
        """The workspace around the files."""
        return Workspace(self.root)

    def set_devices(self, *names: str, **keys: str) -> None:
        """Write devices.toml: null devices, with additional keys by name."""
        tables = [f"[devices.{name}]\n{NULL}{keys.get(name, '')}\n" for name in names]
        self.workspace.devices.write_text("".join(tables))

    def plan(self, *sets: str, nightly: str = "", runs: int = 5) -> NightPlan:
        """Return a plan for all devices; each set has the network of its name."""
        tables = [f'[[set]]\nname = "{name}"\nnetworks = ["{name}.onnx"]\nruns = {runs}\n' for name in sets]
        path = self.root / "nightly.toml"
        path.write_text(f"[nightly]\nall = true\n{nightly}\n" + "".join(tables))
        return load_plan(path)

    def run(self, plan: NightPlan, night: date = NIGHT, engine: object = None) -> NightReport:
        """Run a night on the engine of this process, or on another one."""
        chosen = engine if engine is not None else LocalEngine(self.workspace)
        stages = self.table_stages
        return run_night(
            plan,
            self.workspace,
            night=night,
            engine=chosen,  # type: ignore[arg-type]
            publishing=lambda device: lambda progress: stages.append(f"{device}: {progress.stage}"),
        )

    def tables(self, device: str = "one") -> list[str]:
        """Return the names of a device's tables."""
        return sorted(path.name for path in (self.root / "lut" / device).glob("2*"))

    def campaigns(self, device: str = "one", purpose: str = "profile") -> list[tuple[str, bool, str | None]]:
        """Return job, completeness and reason of exclusion of a device's campaigns."""
        with Journal(self.workspace.journal) as journal:
            return [
                (str(one.settings.get("job")), one.complete, one.excluded)
                for one in journal.campaigns(device)
                if one.settings["purpose"] == purpose
            ]


def statuses(report: NightReport) -> dict[str, str]:
    """Return the status of each set of each device."""
    return {f"{device.device}/{row.set}": row.status for device in report.devices for row in device.sets}


@dataclass
class PretendEngine:
    """Reports jobs as done in the seconds given by set, or as failed, with an empty campaign for each.

    Failed jobs leave a pending campaign of `spent_s`. With `watched` each done job has a watch campaign, too.
    """

    workspace: Workspace
    seconds: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, HarnessError] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    spent_s: float = 0.0
    watched: bool = False

    def run(self, jobs: Sequence[ProfileRequest], stop: threading.Event) -> Iterator[ProfileOutcome]:  # noqa: ARG002
        """Yield the outcomes in the order given."""
        for job in jobs:
            _, device, label = job.name.split("/")
            name = label.rpartition("-")[0]
            self.ran.append(f"{device}/{name}")
            if (error := self.errors.get(f"{device}/{name}")) is not None:
                if self.spent_s:
                    self._campaign(job, PENDING)
                yield ProfileOutcome(job, now(), now(), 1, failure=Failure.of(error))
                continue
            campaign = self._campaign(job)
            result = ProfileResult(campaign, device, 1, 1, self.seconds.get(name, 1.0), 0.0, False, 0, 0, 1.0, 0.0)
            watch = self._campaign(job, purpose="watch") if self.watched else None
            yield ProfileOutcome(job, now(), now(), 1, result=result, watch=watch)

    def _campaign(self, job: ProfileRequest, excluded: str | None = None, purpose: str = "profile") -> int:
        probe = reference_probe()
        plan = ProbePlan({probe.id: probe}, (), (Batch((probe.id,), "warm", 1),), probe.id, (), DEFAULT_AUXILIARY)
        settings = RepeatPolicy(runs=1).settings(purpose, 0, job.name)
        with Journal(self.workspace.journal) as journal:
            campaign = journal.begin(CampaignKey(job.device, plan.id, settings, {}), plan, "cpu", 1)
            journal.spend(campaign.id, 1, self.spent_s)
            journal.complete(campaign.id, 1, excluded=excluded)
        return campaign.id


@dataclass
class Between:
    """Yields another engine's outcomes and calls `happens` after each."""

    engine: LocalEngine | PretendEngine
    happens: Callable[[int], None]

    def run(self, jobs: Sequence[ProfileRequest], stop: threading.Event) -> Iterator[ProfileOutcome]:
        """Yield the outcomes of the other engine."""
        for number, outcome in enumerate(self.engine.run(jobs, stop), 1):
            yield outcome
            self.happens(number)


def unreachable() -> DeviceUnreachable:
    """Return the error of a device that does not answer."""
    return DeviceUnreachable("one does not answer", why="connection refused", next_step="Look at its power")


def quarantined() -> DeviceQuarantined:
    """Return the error of a device whose golden probe is outside its band."""
    return DeviceQuarantined("one is not as it was", why="slower than its band", next_step="Look at its clock")
