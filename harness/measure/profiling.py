"""Measure the layers of networks on a leased device: cut, plan, run the campaign, sum it up."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.device.inventory import find_device, load_inventory
from harness.device.session import AgentSession, Visit
from harness.errors import BackendError, CampaignIncomplete, UnsupportedNetwork
from harness.measure.busy_device import BusyWait, lease_when_free
from harness.measure.campaign import CampaignRun
from harness.measure.campaign_forecast import Pace, pace_of
from harness.measure.core_caches import core_cache_bytes, most_windowed_bytes
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.cutting import (
    PLANNING,
    cut_as_probed,
    cut_as_reported,
    put_network,
    refuse_unplaced,
    with_chains,
)
from harness.measure.fusion.probed_fusion import FusionSearch
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign, CampaignKey
from harness.measure.noise.campaign_noise import drift_of
from harness.measure.noise.machine_noise import MachineNoise
from harness.measure.policy import RepeatPolicy, unsettled
from harness.measure.progress import DONE, Observer, begin, effort_of, notes_of
from harness.measure.request import ProfileRequest
from harness.measure.summary import summarise
from harness.network.effort import networks_effort
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.network import Network
from harness.network.network_list import RefusedNetwork, check_refused, note_refused
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.neighbour_windows import with_neighbours
from harness.probe.probe import network_probe
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.workspace import AnyWorkspace, Workspace, as_workspace

PROBES_PER_LAYER_RUN = 3.0
"""Device time of one round, as a multiple of one run of the networks: a layer is run by itself and in context."""
PURPOSE = "profile"


@dataclass(frozen=True)
class ProfileResult:
    """The state of a campaign after one run of it.

    The device refused `refused` probes. `refused_networks` are those that are not in the campaign. `unsettled` probes
    missed the target interval; `median_runs` is the median number of timed runs of a probe. `drift` is the largest
    change of the reference probe during the campaign, as a fraction. `machine` is the verdict on the machine, None
    before the fleet has judged it. `refusal` is the first refused probe with the reason.
    """

    campaign: int
    device: str
    probes: int
    samples: int
    device_seconds: float
    wall_seconds: float
    resumed: bool
    refused: int
    unsettled: int
    median_runs: float
    drift: float
    refused_networks: tuple[RefusedNetwork, ...] = ()
    machine: MachineNoise | None = None
    refusal: str = ""


@dataclass(frozen=True)
class DryRun:
    """A plan, the device time of one of its rounds in seconds, and the networks that it leaves out.

    `pace` is that of earlier campaigns on the device, or on another one with its backend; None if there is none.
    """

    plan: ProbePlan
    networks: tuple[CutNetwork, ...]
    round_seconds: float
    refused_networks: tuple[RefusedNetwork, ...] = ()
    pace: Pace | None = None


@dataclass(frozen=True)
class Profiled:
    """A complete campaign, its plan, its networks and its result."""

    campaign: Campaign
    plan: ProbePlan
    networks: tuple[Network, ...]
    result: ProfileResult


@dataclass
class _Accepted:
    """The networks of a request; those that the device refuses are left out, or with `strict` are an error."""

    networks: tuple[Network, ...]
    refused: list[RefusedNetwork]
    strict: bool
    observe: Observer
    by_device: list[Network] = field(default_factory=list)

    def refuse(self, network: Network, error: UnsupportedNetwork) -> None:
        """Leave a network out; raises as `check_refused` does."""
        self.by_device.append(network)
        self.refused.append(RefusedNetwork.of(network.file or network.name, error))
        check_refused(self.refused, len(self.left), strict=self.strict)
        note_refused(self.refused[-1:], notes_of(self.observe))

    @property
    def left(self) -> tuple[Network, ...]:
        """The networks that are not refused."""
        refused = {id(one) for one in self.by_device}
        return tuple(one for one in self.networks if id(one) not in refused)


def profile_networks(
    run: DeviceRun,
    networks: Sequence[Network],
    request: ProfileRequest,
    *,
    refused: Sequence[RefusedNetwork] = (),
    excluded: str | None = None,
) -> Profiled:
    """Measure what the journal does not hold yet of the networks' layers.

    `refused` are networks that could not be read; those that the device refuses are added to them in the result. The
    campaign stays out of tables if `excluded` gives a reason. Raises a DeviceError, Interrupted, a NetworkError if no
    network is left, and CampaignIncomplete if the budget ends before every probe has its minimum of samples.
    """
    started_s = time.monotonic()
    accepted = _Accepted(tuple(networks), list(refused), request.strict, run.observe)
    plan = _plan(run, accepted, request)
    settings = request.policy.settings(PURPOSE, request.seed, request.name)
    earlier = _earlier(run, run.key(plan, settings), request)
    campaign = earlier or run.begin(plan, settings)
    if not (request.name and campaign.complete):
        CampaignRun(run, campaign, plan, request.policy, excluded).run()
    campaign = run.journal.campaign(campaign.id)
    result = _result(run.journal, campaign, plan, request.policy)
    result = replace(
        result,
        wall_seconds=time.monotonic() - started_s,
        resumed=earlier is not None,
        refused_networks=tuple(accepted.refused),
    )
    return Profiled(campaign, plan, accepted.left, result)


def _plan(run: DeviceRun, accepted: _Accepted, request: ProfileRequest) -> ProbePlan:
    hello = run.session.hello
    kind = request.auxiliary or auxiliary_for(hello.clock)
    if {"fusion", "unfused"} & set(hello.reveals):
        cuts, rules = cut_as_reported(run.session, accepted.networks, run.observe, run.stop, accepted.refuse)
        cuts = with_chains(run.session, cuts, run.observe, run.stop)
    else:
        refuse_unplaced(run, accepted.networks, accepted.refuse)
        cuts, rules = cut_as_probed(FusionSearch(run, kind, request.seed, request.fresh), accepted.left)
    begin(run.observe, PLANNING, networks_effort(accepted.networks))
    return _plan_of(run.session, cuts, rules, kind)


def _plan_of(
    session: AgentSession, cuts: Sequence[CutNetwork], rules: Sequence[FusionRule], kind: AuxiliaryKind
) -> ProbePlan:
    cache_bytes = core_cache_bytes(session.hello.clock, session.hello.fingerprint)
    if cache_bytes is not None:
        most_bytes = most_windowed_bytes(session.hello.fingerprint, cache_bytes)
        cuts = [with_neighbours(cut, kind, cache_bytes, most_bytes) for cut in cuts]
    return plan_probes(cuts, rules, kind, cache_bytes)


def _earlier(run: DeviceRun, key: CampaignKey, request: ProfileRequest) -> Campaign | None:
    """The campaign that a request continues; None if it starts a new one."""
    if request.name:
        return run.newest(key, finished=True)
    found = None if request.fresh else run.resumable(key)
    budget_s = request.policy.budget_s
    is_spent = found and found.complete and budget_s is not None and run.journal.spent_s(found.id) >= budget_s
    return None if is_spent else found


def dry_run(request: ProfileRequest, workspace: AnyWorkspace = None, patience: BusyWait | None = None) -> DryRun:
    """Return the plan that a request leads to, and its time, extrapolated from one visit of each whole network."""
    patience = patience or BusyWait()
    observe, stop = patience.observe, patience.stop or threading.Event()
    device = request.variant.device(find_device(load_inventory(as_workspace(workspace).devices), request.device))
    begin(observe, "reading networks", effort_of(max(1, len(request.models))))
    found = request.read_networks(notes_of(observe))
    accepted = _Accepted(found.networks, list(found.refused), request.strict, observe)
    begin(observe, "running networks once", networks_effort(accepted.networks))
    with lease_when_free(device, patience) as session:
        seconds = _round_seconds(session, accepted)
        cuts, rules = cut_as_reported(session, accepted.left, observe, stop, accepted.refuse)
        cuts = with_chains(session, cuts, observe, stop)
        kind = request.auxiliary or auxiliary_for(session.hello.clock)
        plan = _plan_of(session, cuts, rules, kind)
    pace = _pace(as_workspace(workspace), request.device)
    observe(DONE)
    return DryRun(plan, tuple(cuts), PROBES_PER_LAYER_RUN * seconds, tuple(accepted.refused), pace)


def _pace(workspace: Workspace, device: str) -> Pace | None:
    """Return the pace of a device's campaigns, or of those of devices with the same backend."""
    if not workspace.journal.exists():
        return None
    inventory = load_inventory(workspace.devices)
    backend = find_device(inventory, device).backend
    alike = [name for name, one in inventory.items() if one.backend == backend and name != device]
    with Journal(workspace.journal, to_read=True) as journal:
        found = (pace_of(journal, name, PURPOSE) for name in (device, *alike))
        return next((pace for pace in found if pace is not None), None)


def _round_seconds(session: AgentSession, accepted: _Accepted) -> float:
    """Return the time of one run of each network that the device accepts; refuses the others."""
    seconds = 0.0
    for network in accepted.networks:
        try:
            seconds += _run_seconds(session, network)
        except UnsupportedNetwork as error:
            accepted.refuse(network, error)
    return seconds


def _run_seconds(session: AgentSession, network: Network) -> float:
    probe = network_probe(network)
    put_network(session, network, probe)
    runs = [one for series, _ in session.run([Visit(probe.id, 0, 3)]) for one in series]
    session.drop([probe.id])
    return summarise(runs[0].samples, session.hello.clock).latency_s


def _result(journal: Journal, campaign: Campaign, plan: ProbePlan, policy: RepeatPolicy) -> ProfileResult:
    """The result of a complete campaign; raises CampaignIncomplete for others, and BackendError without a sample."""
    probes = journal.probes(campaign.id)
    samples = journal.samples(campaign.id)
    few = [
        record.label
        for record in probes.values()
        if not record.refused and len(samples.get(record.id, ())) < policy.fewest_rounds
    ]
    if few or not campaign.complete:
        example = f", for example {few[0]!r}" if few else ""
        why = f"{len(few)} of {len(probes)} probes have fewer than {policy.fewest_rounds} samples{example}"
        larger = policy.budget_s is not None
        what = "The budget was used up before every probe was measured" if larger else "Not every probe was measured"
        step = f"Run the same command{' with a larger --budget' if larger else ''}; it continues from here"
        raise CampaignIncomplete(what, why=why, next_step=step)
    refusals = [f"{record.label}: {record.refused}" for record in probes.values() if record.refused is not None]
    if not samples:
        step = "Correct the device's runtime or its options in devices.toml, then add --fresh to the same command"
        raise BackendError(f"{campaign.device} refuses every probe", why=refusals[0], next_step=step)
    measured = {probe: summarise(taken, campaign.clock) for probe, taken in samples.items() if probe in plan.weights}
    batches = plan.batches if policy.runs is None else ()
    own = ({probe: measured[probe] for probe in batch.probes if probe in measured} for batch in batches)
    short = {probe for batch in own for probe in unsettled(batch, policy.target)}
    return ProfileResult(
        campaign=campaign.id,
        device=campaign.device,
        probes=len(probes),
        samples=sum(len(taken) for taken in samples.values()),
        device_seconds=journal.spent_s(campaign.id),
        wall_seconds=0.0,
        resumed=False,
        refused=len(refusals),
        refusal=next(iter(refusals), ""),
        unsettled=len(short),
        median_runs=statistics.median(len(samples.get(one, ())) for one in probes if one != campaign.reference),
        drift=drift_of(samples.get(campaign.reference, ()), campaign.clock).change,
    )
