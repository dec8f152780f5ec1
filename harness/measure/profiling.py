"""Measure the layers of networks on a leased device: cut, plan, run the campaign, sum it up."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.device.inventory import find_device, load_inventory
from harness.device.session import AgentSession, Visit, open_session
from harness.errors import BackendError, CampaignIncomplete
from harness.measure.campaign import CampaignRun
from harness.measure.cutting import cut_as_probed, cut_as_reported, put_network, with_chains
from harness.measure.device_run import DeviceRun
from harness.measure.fusion import FusionSearch
from harness.measure.journal import Campaign, CampaignKey, Journal
from harness.measure.policy import RepeatPolicy, unsettled
from harness.measure.progress import Observer, ignore
from harness.measure.request import ProfileRequest
from harness.measure.summary import summarise
from harness.network.network import Network
from harness.probe.auxiliary import auxiliary_for
from harness.probe.probe import network_probe
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.samples import Sample
from harness.workspace import AnyWorkspace, as_workspace

DEFAULT_CACHE_BYTES = 512 << 10
"""The cache of a core if the device does not report it: that of small cores."""
PROBES_PER_LAYER_RUN = 3.0
"""Device time of one round, as a multiple of one run of the networks: a layer is run alone and in context."""
PURPOSE = "profile"


@dataclass(frozen=True)
class ProfileResult:
    """The state of a campaign after one run of it.

    `unsettled` probes missed the target interval; `median_runs` is the median number of timed runs of a probe. `drift`
    is the largest change of the reference probe during the campaign, as a fraction.
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


@dataclass(frozen=True)
class DryRun:
    """A plan, and the device time of one of its rounds in seconds."""

    plan: ProbePlan
    networks: tuple[CutNetwork, ...]
    round_seconds: float


@dataclass(frozen=True)
class Profiled:
    """A complete campaign, its plan and its result."""

    campaign: Campaign
    plan: ProbePlan
    result: ProfileResult


def profile_networks(
    run: DeviceRun, networks: Sequence[Network], request: ProfileRequest, *, excluded: str | None = None
) -> Profiled:
    """Measure what the journal does not hold yet of the networks' layers.

    The campaign stays out of tables if `excluded` gives a reason. Raises a DeviceError, Interrupted, and
    CampaignIncomplete if the budget ends before every probe has its minimum of samples.
    """
    started_s = time.monotonic()
    plan = _plan(run, networks, request)
    settings = request.policy.settings(PURPOSE, request.seed, request.name)
    earlier = _earlier(run, run.key(plan, settings), request)
    campaign = earlier or run.begin(plan, settings)
    if not (request.name and campaign.complete):
        CampaignRun(run, campaign, plan, request.policy, excluded).run()
    campaign = run.journal.campaign(campaign.id)
    result = _result(run.journal, campaign, plan, request.policy)
    result = replace(result, wall_seconds=time.monotonic() - started_s, resumed=earlier is not None)
    return Profiled(campaign, plan, result)


def _plan(run: DeviceRun, networks: Sequence[Network], request: ProfileRequest) -> ProbePlan:
    hello = run.session.hello
    kind = request.auxiliary or auxiliary_for(hello.clock)
    if {"fusion", "unfused"} & set(hello.reveals):
        cuts, rules = cut_as_reported(run.session, networks, run.observe, run.stop)
        cuts = with_chains(run.session, cuts, run.observe, run.stop)
    else:
        cuts, rules = cut_as_probed(FusionSearch(run, kind, request.seed, request.fresh), networks)
    return plan_probes(cuts, rules, kind, _cache_bytes(run.session))


def _earlier(run: DeviceRun, key: CampaignKey, request: ProfileRequest) -> Campaign | None:
    """The campaign that a request continues; None if it starts a new one."""
    if request.name:
        return run.journal.newest(key)
    found = None if request.fresh else run.journal.resumable(key)
    budget_s = request.policy.budget_s
    is_spent = found and found.complete and budget_s is not None and run.journal.spent_s(found.id) >= budget_s
    return None if is_spent else found


def dry_run(request: ProfileRequest, workspace: AnyWorkspace = None, observe: Observer = ignore) -> DryRun:
    """Return the plan that a request leads to, and its time, extrapolated from one visit of each whole network."""
    device = find_device(load_inventory(as_workspace(workspace).devices), request.device)
    networks = request.networks()
    with open_session(device) as session:
        session.acquire()
        cuts, rules = cut_as_reported(session, networks, observe, threading.Event())
        cuts = with_chains(session, cuts, observe, threading.Event())
        seconds = sum(_run_seconds(session, network) for network in networks)
        kind = request.auxiliary or auxiliary_for(session.hello.clock)
        plan = plan_probes(cuts, rules, kind, _cache_bytes(session))
    return DryRun(plan, tuple(cuts), PROBES_PER_LAYER_RUN * seconds)


def _cache_bytes(session: AgentSession) -> int | None:
    """The cache of a core; None on a device with a clock of its own, whose latency does not depend on caches."""
    if session.hello.clock == "device":
        return None
    reported = session.hello.fingerprint.get("core_cache_bytes", "")
    valid = reported.isascii() and reported.isdigit() and len(reported) < 16
    return (int(reported) if valid else 0) or DEFAULT_CACHE_BYTES


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
    if not samples:
        first = next(record for record in probes.values() if record.refused)
        step = f"Find what is missing with `harness devices check {campaign.device}`"
        what, why = f"{campaign.device} refuses every probe", f"{first.label}: {first.refused}"
        raise BackendError(what, why=why, next_step=step)
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
        refused=sum(record.refused is not None for record in probes.values()),
        unsettled=len(short),
        median_runs=statistics.median(len(samples.get(one, ())) for one in probes if one != campaign.reference),
        drift=_drift(samples.get(campaign.reference, ()), campaign.clock),
    )


def _drift(taken: Sequence[Sample], clock: str) -> float:
    """Largest change of the reference probe between thirds of the campaign, as a fraction."""
    third = len(taken) // 3
    if third < 3:
        return 0.0
    parts = [taken[:third], taken[third : 2 * third], taken[2 * third :]]
    medians = [summarise(part, clock).latency_s for part in parts]
    return max(medians) / min(medians) - 1
