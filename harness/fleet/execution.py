"""Run one profiling request: connect, lease, golden probe, campaign, golden probe again; retry temporary failures.

Every way to profile goes through `run_request`: the command line, `harness.profile`, nights and Dask workers.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.device.inventory import Device, find_device
from harness.device.session import Deadlines
from harness.device.time_limit import TimeLimit
from harness.device.variant import Variant
from harness.errors import (
    BackendError,
    CampaignIncomplete,
    DeviceBusy,
    DeviceError,
    DeviceQuarantined,
    DeviceTooSlow,
    DeviceUnsteady,
    HarnessError,
    Interrupted,
)
from harness.fleet.compiled_networks import efforts_to_compile, note_compiled
from harness.fleet.connections import open_in_turn, pause
from harness.fleet.health import check_golden, check_golden_again, check_in_service, configured_band, note_failure
from harness.fleet.profile_outcome import Failure, ProfileOutcome
from harness.fleet.shared_reading import SharedReading
from harness.fleet.store import FleetStore, now
from harness.fleet.watch_campaign import measure_watch
from harness.measure.busy_device import Announcement
from harness.measure.device_run import DeviceRun, leased_run
from harness.measure.fusion.cutting import CHAINS, CUTTING
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, Campaign
from harness.measure.noise.campaign_noise import PROCESS, check_steady, judge_campaign, phases_of_campaign, process_job
from harness.measure.noise.machine_noise import busy_before
from harness.measure.profiling import PURPOSE, ProfileResult, profile_networks
from harness.measure.progress import (
    DONE,
    Observer,
    Progress,
    begin,
    each_note_once,
    effort_of,
    ignore,
    named,
    notes_of,
    with_less_work,
)
from harness.measure.reference import measure_reference
from harness.measure.request import ProfileRequest
from harness.network.effort import side_by_side
from harness.network.network_list import NetworkList
from harness.slowdowns.watch_plan import DEFAULT_BUDGET_S
from harness.workspace import Workspace

if TYPE_CHECKING:
    from harness.space.space import LayerSpace

_STALE_LEASE_S = Deadlines.lease_ttl_s + Deadlines.margin_s
"""How long our own lease still holds the device after a lost link."""
_READING = "reading networks"
_WATCH_SHARE = 0.4
"""The part of a request's budget that is reserved for its watch campaign."""
_Measurement = Callable[[ProfileOutcome, DeviceRun], ProfileOutcome]
"""Measures on a leased device, and adds the result to an outcome."""
FURTHER_PROCESSES = 2
LEAST_CAMPAIGN_S = 10.0
"""Shorter campaigns end without further processes, whose starts would take as long as they do."""


@dataclass(frozen=True)
class WaitPolicy:
    """How often temporary failures are retried, the pause between attempts, and how long to wait for a busy device."""

    attempts: int = 3
    pause_s: float = 5.0
    busy_s: float = 300.0


NO_WAIT = WaitPolicy(attempts=1, busy_s=0.0)
"""For a caller who waits for the answer and can repeat the request."""


def run_request(
    request: ProfileRequest,
    workspace: Workspace,
    *,
    stop: threading.Event,
    wait: WaitPolicy = NO_WAIT,
    observe: Observer = ignore,
    reading: SharedReading | None = None,
) -> ProfileOutcome:
    """Run a request to its end; the outcome holds the failure if there is one, the journal the samples.

    Failures of the link or the worker are retried, and a busy device is waited for; each attempt continues the one
    before. Requests with the same `reading` share the networks and the devices that it read.
    """
    reading, observe = reading or SharedReading(), each_note_once(observe)
    started = now()
    waited_from_s: float | None = None  # the first time that the device was in use
    bare = ProfileOutcome(request, started, started, 0)
    announce, time_limit = Announcement(observe), TimeLimit(request.policy.wall_s)
    attempts, newest = 0, _newest_campaign(workspace, request.device) if request.fresh else 0
    while True:
        attempts, left_s = attempts + 1, math.inf
        begun = request.fresh and attempts > 1 and _newest_campaign(workspace, request.device) != newest
        trying = replace(bare, request=replace(request, fresh=False)) if begun else bare
        try:
            outcome = _attempt(trying, workspace, stop, observe, time_limit, reading)
            observe(DONE)
            return replace(outcome, request=request, ended=now(), attempts=attempts)
        except DeviceBusy as error:
            allowed_s = max(wait.busy_s, _STALE_LEASE_S if attempts > 1 else 0.0)
            now_s = time.monotonic()
            waited_from_s = now_s if waited_from_s is None else waited_from_s
            left_s = waited_from_s + allowed_s - now_s
            if left_s <= 0:
                return _failed(bare, workspace, error, attempts)
            attempts -= 1
            announce(error, left_s)
        except DeviceError as error:
            if not error.retry_helps or attempts >= wait.attempts:
                return _failed(bare, workspace, error, attempts)
            waited_from_s = None
        except HarnessError as error:
            return _failed(bare, workspace, error, attempts)
        try:
            pause(min(left_s, wait.pause_s * random.uniform(0.5, 1.5)), stop)  # noqa: S311 - jitter, no secret
        except Interrupted as error:
            return _failed(bare, workspace, error, attempts)


def _newest_campaign(workspace: Workspace, device: str) -> int:
    """The number of the device's newest profile campaign; 0 if there is none."""
    if not workspace.journal.exists():
        return 0
    with Journal(workspace.journal) as journal:
        return max((one.id for one in journal.campaigns(device) if one.purpose == PURPOSE), default=0)


def _attempt(
    bare: ProfileOutcome,
    workspace: Workspace,
    stop: threading.Event,
    observe: Observer,
    time_limit: TimeLimit,
    reading: SharedReading,
) -> ProfileOutcome:
    request = bare.request
    device = request.variant.device(find_device(reading.inventory(workspace.devices), request.device))
    measure = _measurement(request, device, reading, observe)
    begin(observe, "opening the device")
    with FleetStore(workspace.fleet) as store, Journal(workspace.journal) as journal:
        check_in_service(store, device.name)
        session = open_in_turn(device, stop)
        with session, leased_run(session, device, journal, observe, stop, request.variant, time_limit) as run:
            note_busy_machine(run)
            golden = check_golden(run, store, configured_band(device) if request.threads is None else None)
            reached = replace(bare, golden_s=golden.latency_s, fingerprint=run.fingerprint)
            outcome = measure(reached, run)
            begin(observe, "measuring the golden probe again")
            try:
                check_golden_again(run, store, golden)
            except DeviceQuarantined as error:  # the device changed during the campaign
                _exclude(run, outcome, error.what)
                raise
            try:
                for number in _profiled(outcome):
                    check_steady(journal, journal.campaign(number))
            except DeviceUnsteady as error:
                _exclude(run, outcome, error.what)
                raise
            _exclude(run, outcome, None)
            outcome = replace(outcome, health=store.health(device.name))
        return _judged(outcome, device, journal, stop=stop, observe=observe, time_limit=time_limit)


def _measurement(request: ProfileRequest, device: Device, reading: SharedReading, observe: Observer) -> _Measurement:
    """Read the networks or the space of a request, and return what measures them."""
    begin(observe, _READING, effort_of(len(request.models)))
    if request.space is None:
        found = reading.networks(request, notes_of(observe))
        efforts, left = efforts_to_compile(device, found.networks)
        ahead = {CUTTING: left * side_by_side(efforts), CHAINS: left * sum(efforts)}
        begin(observe, _READING, effort_of(len(request.models)), ahead=ahead)

        def measure(bare: ProfileOutcome, run: DeviceRun) -> ProfileOutcome:
            outcome = _measure(bare, replace(run, observe=with_less_work(run.observe, left)), found)
            note_compiled(device, found.networks)
            return outcome

        return measure
    from harness.space.space import load_space  # spaces and their predictor take a while to load

    space = load_space(request.space.reference)
    return lambda bare, run: _explore(bare, run, space)


def _judged(
    outcome: ProfileOutcome,
    device: Device,
    journal: Journal,
    *,
    stop: threading.Event,
    observe: Observer,
    time_limit: TimeLimit,
) -> ProfileOutcome:
    """Add the verdict on the machine, which has measured further processes for a campaign of some length."""
    result = outcome.result
    if result is None:
        return outcome
    campaign = journal.campaign(result.campaign)
    if result.wall_seconds >= LEAST_CAMPAIGN_S:
        variant = outcome.request.variant
        measure_further_processes(device, journal, campaign, variant, stop=stop, observe=observe, time_limit=time_limit)
    machine = judge_campaign(journal, campaign, phases_of_campaign(journal, campaign).slow_share)
    return replace(outcome, result=replace(result, machine=machine))


def _measure(bare: ProfileOutcome, run: DeviceRun, networks: NetworkList) -> ProfileOutcome:
    """Run the campaign, and the watch campaign with the rest of the budget."""
    request, whole_s = bare.request, bare.request.policy.budget_s
    own_s = whole_s * (1 - _WATCH_SHARE) if whole_s and request.watch_level is not None else whole_s
    own = replace(request, policy=replace(request.policy, budget_s=own_s))
    profiled = profile_networks(run, networks.networks, own, refused=networks.refused, excluded=PENDING)
    reached = replace(bare, result=profiled.result)
    if request.watch_level is None:
        return reached
    left_s = max(0.0, whole_s - profiled.result.device_seconds) if whole_s else DEFAULT_BUDGET_S
    watched = replace(run, observe=named(run.observe, "watching"))
    try:
        return replace(reached, watch=measure_watch(watched, request, profiled, budget_s=left_s))
    except CampaignIncomplete as error:  # the campaign itself is complete
        return replace(reached, notes=(str(error),))


def _explore(bare: ProfileOutcome, run: DeviceRun, space: LayerSpace) -> ProfileOutcome:
    from harness.space.exploration import explore_space

    journal = run.journal
    found = explore_space(run, space, bare.request, excluded=PENDING)
    if not found.campaigns:
        step = f"Find what is missing with `harness devices check {found.device}`"
        raise BackendError(f"{found.device} refuses every layer of the space", next_step=step)
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


def _exclude(run: DeviceRun, outcome: ProfileOutcome, reason: str | None) -> None:
    """Keep the campaigns of an outcome out of tables and comparisons, or readmit them for None."""
    for campaign in {*_profiled(outcome), *(() if outcome.watch is None else (outcome.watch,))}:
        run.journal.exclude(campaign, run.session.token, reason)


def _profiled(outcome: ProfileOutcome) -> set[int]:
    """The campaigns that tables are built from."""
    explored = outcome.space.campaigns if outcome.space else ()
    return {*explored, *((outcome.result.campaign,) if outcome.result else ())}


def _failed(bare: ProfileOutcome, workspace: Workspace, error: HarnessError, attempts: int) -> ProfileOutcome:
    """The outcome of a failed request; failures that concern the device change its health."""
    failed = replace(bare, failure=Failure.of(error), ended=now(), attempts=attempts)
    if not isinstance(error, (DeviceQuarantined, DeviceError)) and not workspace.fleet.exists():
        return failed
    with FleetStore(workspace.fleet) as store:
        if isinstance(error, DeviceQuarantined):
            store.measured(bare.request.device, "bad", f"{error.what}; {error.why}")
        elif isinstance(error, DeviceError):
            note_failure(store, bare.request.device, error)
        return replace(failed, health=store.health(bare.request.device))


def note_busy_machine(run: DeviceRun) -> None:
    """Say before a measurement if the machine is busy, so that it can be stopped."""
    if run.session.hello.clock == "device":
        return
    why = busy_before(run.session.status()["state"], run.fingerprint)
    if why:
        notes_of(run.observe)(f"{run.device} is busy: {why}. Latencies will differ from those of a quiet machine")


def measure_further_processes(
    device: Device,
    journal: Journal,
    campaign: Campaign,
    variant: Variant,
    *,
    stop: threading.Event,
    observe: Observer,
    time_limit: TimeLimit,
) -> None:
    """Measure the reference probe in new processes; if the device is not free in time, their spread is unknown.

    Nothing is measured on devices with a clock of their own, which no process of the host changes.
    """
    if campaign.clock == "device":
        return
    try:
        for number in range(1, FURTHER_PROCESSES + 1):
            observe(Progress("measuring the spread between processes", number - 1, FURTHER_PROCESSES, unit="process"))
            session = open_in_turn(device, stop)
            with (
                session,
                leased_run(session, device, journal, stop=stop, variant=variant, time_limit=time_limit) as run,
            ):
                measure_reference(run, PROCESS, number, process_job(campaign.id, number))
    except (DeviceError, DeviceTooSlow) as error:  # the campaign itself is complete
        notes_of(observe)(f"The spread between processes was not measured: {error.what}")
