"""A job on its device: connect, lease, golden probe, campaign, golden probe again; tried again where that helps."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.device.holder import holder
from harness.device.inventory import Device, Ssh, find_device, load_inventory
from harness.device.session import Deadlines, open_session
from harness.errors import CampaignIncomplete, DeviceBusy, DeviceError, DeviceQuarantined, HarnessError, Interrupted
from harness.fleet.health import check_golden, check_golden_again, check_in_service, note_failure, quarantine
from harness.fleet.job import Failure, Job, JobOutcome
from harness.fleet.store import FleetStore, now
from harness.fleet.watching import watch
from harness.measure.journal import PENDING, Journal
from harness.measure.profiling import ProfileResult, Sitting, Wanted, reference_networks
from harness.measure.progress import Observer, ignore
from harness.network.models import load_networks
from harness.network.network import Network
from harness.slowdowns.watch import DEFAULT_BUDGET_S
from harness.space.profiling import WantedSpace, explore_space
from harness.space.space import Space, load_space
from harness.workspace import Workspace

_SLICE_S = 0.2
_STALE_LEASE_S = Deadlines.lease_ttl_s + Deadlines.margin_s
"""After a lost link our own lease holds the device so long."""


_WATCH_SHARE = 0.4
"""Part of a job's budget that is kept for its watch."""


@dataclass(frozen=True)
class Patience:
    """How often a job is tried on passing trouble, how long between, and how long a taken device is waited for."""

    attempts: int = 3
    pause_s: float = 5.0
    busy_s: float = 300.0


IMPATIENT = Patience(attempts=1, busy_s=0.0)
"""Somebody waits for the answer, and can ask again."""


class ConnectGate:
    """Bounds how many connections are being set up at once, in all and to one host: sshd drops bursts."""

    def __init__(self, total: int = 16, per_host: int = 4) -> None:
        self._total = threading.BoundedSemaphore(total)
        self._per_host = per_host
        self._hosts: dict[str, threading.BoundedSemaphore] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def connecting(self, device: Device, stop: threading.Event) -> Iterator[None]:
        """Waits for its turn; raises Interrupted where a stop is asked for meanwhile."""
        with contextlib.ExitStack() as taken:
            if isinstance(device.transport, Ssh):
                with self._guard:
                    host = self._hosts.setdefault(
                        f"{device.transport.host}:{device.transport.port}", threading.BoundedSemaphore(self._per_host)
                    )
                taken.enter_context(_turn(host, stop))
                _sleep(random.uniform(0.0, 0.1), stop)  # noqa: S311 - jitter, no secret
            taken.enter_context(_turn(self._total, stop))
            yield


def run_job(
    job: Job,
    workspace: Workspace,
    *,
    stop: threading.Event,
    gate: ConnectGate | None = None,
    patience: Patience = IMPATIENT,
    observe: Observer = ignore,
) -> JobOutcome:
    """Runs a job to its end; what goes wrong is in the outcome, what was measured is in the journal.

    Trouble with the link or the worker is tried again, a taken device is waited for; each try goes on where the last
    one stopped.
    """
    gate, started, waited_from_s = gate or ConnectGate(), now(), time.monotonic()
    bare = JobOutcome(job, started, started, 0)
    attempts, newest = 0, _newest_campaign(workspace, job.device) if job.fresh else 0
    while True:
        attempts += 1
        # What a try of this job has begun, the next one goes on with.
        begun = job.fresh and attempts > 1 and _newest_campaign(workspace, job.device) != newest
        trying = replace(bare, job=replace(job, fresh=False)) if begun else bare
        try:
            outcome = _attempt(trying, workspace, stop, gate, observe)
            return replace(outcome, job=job, ended=now(), attempts=attempts)
        except DeviceBusy as error:
            allowed_s = max(patience.busy_s, _STALE_LEASE_S if attempts > 1 else 0.0)
            if time.monotonic() - waited_from_s >= allowed_s or patience.attempts == 1:
                return _failed(bare, workspace, error, attempts)
            attempts -= 1
        except DeviceError as error:
            if not error.retry_helps or attempts >= patience.attempts:
                return _failed(bare, workspace, error, attempts)
            waited_from_s = time.monotonic()
        except HarnessError as error:
            return _failed(bare, workspace, error, attempts)
        try:
            _sleep(patience.pause_s * random.uniform(0.5, 1.5), stop)  # noqa: S311 - jitter, no secret
        except Interrupted as error:
            return _failed(bare, workspace, error, attempts)


def _newest_campaign(workspace: Workspace, device: str) -> int:
    """The number of the device's newest profile campaign; 0 where there is none."""
    with Journal(workspace.journal) as journal:
        found = [one.id for one in journal.campaigns(device) if one.settings["purpose"] == "profile"]
    return max(found, default=0)


def _attempt(
    bare: JobOutcome, workspace: Workspace, stop: threading.Event, gate: ConnectGate, observe: Observer
) -> JobOutcome:
    job = bare.job
    device = find_device(load_inventory(workspace.devices), job.device)
    with FleetStore(workspace.fleet) as store, Journal(workspace.journal) as journal:
        check_in_service(store, device.name)
        networks = () if job.space else tuple(load_networks(job.models or reference_networks(), job.dims))
        space = load_space(job.space) if job.space else None
        with gate.connecting(device, stop):
            session = open_session(device)
        with session:
            session.acquire(holder())
            sitting = Sitting(session, journal, device, observe, stop)
            golden = check_golden(sitting, store)
            reached = replace(bare, golden_s=golden.latency_s, fingerprint=dict(session.hello.fingerprint))
            outcome = (
                _measure_networks(reached, sitting, networks) if space is None else _explore(reached, sitting, space)
            )
            try:
                check_golden_again(sitting, golden)
            except DeviceQuarantined as error:  # it changed meanwhile
                _exclude(journal, outcome, error.what)
                raise
            _exclude(journal, outcome, None)
            return replace(outcome, health=store.health(device.name))


def _measure_networks(bare: JobOutcome, sitting: Sitting, networks: tuple[Network, ...]) -> JobOutcome:
    """The campaign, and the watch with what is left of the budget."""
    job, whole_s = bare.job, bare.job.policy.budget_s
    own_s = whole_s * (1 - _WATCH_SHARE) if whole_s and job.watch_level is not None else whole_s
    policy = replace(job.policy, budget_s=own_s)
    profiled = sitting.profile(Wanted(networks, policy, job.auxiliary, job.seed, job.fresh, job.name, PENDING))
    reached = replace(bare, result=profiled.result)
    if job.watch_level is None:
        return reached
    left_s = max(0.0, whole_s - profiled.result.device_seconds) if whole_s else DEFAULT_BUDGET_S
    try:
        return replace(reached, watch=watch(sitting, job, networks, profiled, level=job.watch_level, budget_s=left_s))
    except CampaignIncomplete as error:  # the campaign stands
        return replace(reached, notes=(str(error),))


def _explore(bare: JobOutcome, sitting: Sitting, space: Space) -> JobOutcome:
    job, journal = bare.job, sitting.journal
    wanted = WantedSpace(
        space, job.policy, job.auxiliary, job.count, job.target, job.seed, job.fresh, job.name, PENDING
    )
    found = explore_space(sitting, wanted)
    probes = [probe for campaign in found.campaigns for probe in journal.probes(campaign).values()]
    samples = [taken for campaign in found.campaigns for taken in journal.samples(campaign).values()]
    result = ProfileResult(
        campaign=found.campaigns[-1],
        device=found.device,
        probes=len(probes),
        samples=sum(map(len, samples)),
        device_seconds=found.device_seconds,
        wall_seconds=found.wall_seconds,
        resumed=found.resumed > 0,
        refused=sum(probe.refused is not None for probe in probes),
        unsettled=0,
        median_runs=statistics.median(map(len, samples)),
        drift=0.0,
    )
    return replace(bare, result=result, space=found)


def _exclude(journal: Journal, outcome: JobOutcome, reason: str | None) -> None:
    """Keeps what a job measured out of tables and comparisons, or lets it in."""
    explored = outcome.space.campaigns if outcome.space else ()
    profiled = outcome.result.campaign if outcome.result else None
    for campaign in {*explored, profiled, outcome.watch}:
        if campaign is not None:
            journal.exclude(campaign, reason)


def _failed(bare: JobOutcome, workspace: Workspace, error: HarnessError, attempts: int) -> JobOutcome:
    with FleetStore(workspace.fleet) as store:
        if isinstance(error, DeviceQuarantined):
            quarantine(store, bare.job.device, error)
        elif isinstance(error, DeviceError):
            note_failure(store, bare.job.device, error)
        health = store.health(bare.job.device)
    return replace(bare, failure=Failure.of(error), ended=now(), attempts=attempts, health=health)


@contextlib.contextmanager
def _turn(semaphore: threading.BoundedSemaphore, stop: threading.Event) -> Iterator[None]:
    while not semaphore.acquire(timeout=_SLICE_S):
        _sleep(0.0, stop)
    try:
        yield
    finally:
        semaphore.release()


def _sleep(seconds: float, stop: threading.Event) -> None:
    if stop.wait(seconds):
        raise Interrupted("Stopped on request", why="All samples so far are in the journal")
