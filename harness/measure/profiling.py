"""`harness.profile`: networks in, a campaign in the journal out."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.device.holder import holder
from harness.device.inventory import Device, find_device, load_inventory
from harness.device.session import AgentSession, Visit, open_session
from harness.errors import BackendError, CampaignIncomplete
from harness.measure.campaign import CampaignRun
from harness.measure.cutting import cut_as_probed, cut_as_reported, put_network, with_chains
from harness.measure.fusion import FusionSearch
from harness.measure.journal import Campaign, Journal
from harness.measure.policy import RepeatPolicy, unsettled
from harness.measure.progress import Observer, ignore
from harness.measure.summary import Measurement, summarise
from harness.network.models import BUILTIN_PREFIX, load_networks
from harness.network.network import Network
from harness.network.zoo import NAMES as REFERENCE_NETWORKS
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.probe import network_probe
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.samples import Sample
from harness.workspace import Workspace, find_workspace

DEFAULT_CACHE_BYTES = 512 << 10
"""The cache of a core where the device does not tell: what small cores have."""
PROBES_PER_LAYER_RUN = 3.0
"""Device time of one round, as a multiple of one run of the networks: a layer is run alone and in context."""


@dataclass(frozen=True)
class ProfileResult:
    """What one sitting of a campaign did.

    `unsettled` probes missed the target interval; `median_runs` is the median number of timed runs of a probe.
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
    """A plan and how long it will take on the device."""

    plan: ProbePlan
    networks: tuple[CutNetwork, ...]
    round_seconds: float
    policy: RepeatPolicy


def reference_networks() -> tuple[str, ...]:
    """The built-in reference layers: those of the architectures that come with harness."""
    return tuple(BUILTIN_PREFIX + name for name in REFERENCE_NETWORKS)


def profile(
    models: Sequence[str] = (),
    *,
    device: str = "cpu01",
    workspace: Workspace | None = None,
    auxiliary: AuxiliaryKind | None = None,
    policy: RepeatPolicy | None = None,
    seed: int = 0,
    fresh: bool = False,
    dims: Mapping[str, int] | None = None,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
) -> ProfileResult:
    """Measures probes of every layer of the models on a device; the same call resumes what was cut short.

    `models` are paths or `builtin:NAME`; none means the reference networks. `auxiliary` None leaves the kind to
    the device's clock. Raises the errors of
    harness.errors; what was measured before an error is kept.
    """
    place = workspace or find_workspace()
    known = find_device(load_inventory(place.devices), device)
    networks = load_networks(models or reference_networks(), dims)
    wanted = Wanted(tuple(networks), policy or RepeatPolicy(), auxiliary, seed, fresh)
    with open_session(known) as session, Journal(place.journal) as journal:
        session.acquire(holder())
        return Sitting(session, journal, known, observe, stop or threading.Event()).profile(wanted).result


@dataclass(frozen=True)
class Wanted:
    """What a campaign is to measure; those of the same `job` are one, however often it is asked for.

    With `excluded` it stays out of tables for that reason until somebody lets it in.
    """

    networks: tuple[Network, ...]
    policy: RepeatPolicy
    auxiliary: AuxiliaryKind | None = None
    seed: int = 0
    fresh: bool = False
    job: str = ""
    excluded: str | None = None


@dataclass(frozen=True)
class Profiled:
    """A campaign that is complete, its plan, and what this sitting did."""

    campaign: Campaign
    plan: ProbePlan
    result: ProfileResult


@dataclass(frozen=True)
class Sitting:
    """One session with a leased device and the journal that its samples go into."""

    session: AgentSession
    journal: Journal
    device: Device
    observe: Observer
    stop: threading.Event

    def profile(self, wanted: Wanted) -> Profiled:
        """Measures what the journal does not hold yet; raises as `harness.profile` does."""
        started_s = time.monotonic()
        plan = self._plan(wanted)
        campaign, resumed = self._campaign(wanted, plan)
        if not (wanted.job and campaign.complete):
            CampaignRun(
                self.session, self.journal, campaign, plan, wanted.policy, self.observe, self.stop, wanted.excluded
            ).run()
        result = _result(self.journal, campaign, plan, wanted.policy, time.monotonic() - started_s, resumed)
        return Profiled(self.journal.campaign(campaign.id), plan, result)

    def _plan(self, wanted: Wanted) -> ProbePlan:
        session = self.session
        kind = wanted.auxiliary or auxiliary_for(session.hello.clock)
        if {"fusion", "unfused"} & set(session.hello.reveals):
            cuts, rules = cut_as_reported(session, wanted.networks, self.observe, self.stop)
            cuts = with_chains(session, cuts, self.observe, self.stop)
        else:
            search = FusionSearch(
                session, self.journal, self.device.name, kind, wanted.seed, wanted.fresh, self.observe, self.stop
            )
            cuts, rules = cut_as_probed(search, wanted.networks)
        return plan_probes(cuts, rules, kind, _cache_bytes(session))

    def _campaign(self, wanted: Wanted, plan: ProbePlan) -> tuple[Campaign, bool]:
        hello, name = self.session.hello, self.device.name
        settings = wanted.policy.settings("profile", wanted.seed, wanted.job)
        if wanted.job:
            found = self.journal.newest(name, plan.id, settings, hello.fingerprint)
        elif wanted.fresh:
            found = None
        else:
            found = self.journal.resumable(name, plan.id, settings, hello.fingerprint)
            if found and _is_spent(self.journal, found, wanted.policy):
                found = None
        if found:
            return found, True
        return self.journal.begin(
            name, plan, wanted.seed, settings, hello.fingerprint, hello.clock, self.session.token
        ), False


def dry_run(
    models: Sequence[str] = (),
    *,
    device: str = "cpu01",
    workspace: Workspace | None = None,
    auxiliary: AuxiliaryKind | None = None,
    policy: RepeatPolicy | None = None,
    dims: Mapping[str, int] | None = None,
    observe: Observer = ignore,
) -> DryRun:
    """The plan that `profile` would run, and its time, extrapolated from one visit of each whole network."""
    place = workspace or find_workspace()
    known = find_device(load_inventory(place.devices), device)
    networks = load_networks(models or reference_networks(), dims)
    with open_session(known) as session:
        session.acquire(holder())
        cuts, rules = cut_as_reported(session, networks, observe, threading.Event())
        cuts = with_chains(session, cuts, observe, threading.Event())
        seconds = sum(_run_seconds(session, network) for network in networks)
        kind = auxiliary or auxiliary_for(session.hello.clock)
        plan = plan_probes(cuts, rules, kind, _cache_bytes(session))
    return DryRun(plan, tuple(cuts), PROBES_PER_LAYER_RUN * seconds, policy or RepeatPolicy())


def _cache_bytes(session: AgentSession) -> int | None:
    """The cache of a core, None on a device whose clock is its own: that one does not depend on caches."""
    if session.hello.clock == "device":
        return None
    told = session.hello.fingerprint.get("core_cache_bytes", "")
    known = told.isascii() and told.isdigit() and len(told) < 16
    return (int(told) if known else 0) or DEFAULT_CACHE_BYTES


def _run_seconds(session: AgentSession, network: Network) -> float:
    probe = network_probe(network)
    put_network(session, network, probe)
    runs = [one for series, _ in session.run([Visit(probe.id, 0, 3)]) for one in series]
    session.drop([probe.id])
    return summarise(runs[0].samples, session.hello.clock).latency_s


def _is_spent(journal: Journal, campaign: Campaign, policy: RepeatPolicy) -> bool:
    """Whether a complete campaign has used up the budget: the same command then measures anew."""
    if not campaign.complete or policy.budget_s is None:
        return False
    return journal.spent_s(campaign.id) >= policy.budget_s


def _result(
    journal: Journal, campaign: Campaign, plan: ProbePlan, policy: RepeatPolicy, wall_s: float, resumed: bool
) -> ProfileResult:
    probes = journal.probes(campaign.id)
    samples = journal.samples(campaign.id)
    few = [
        record.label
        for record in probes.values()
        if not record.refused and len(samples.get(record.id, ())) < policy.fewest_rounds
    ]
    if few or not journal.campaign(campaign.id).complete:
        example = f", for example {few[0]!r}" if few else ""
        why = f"{len(few)} of {len(probes)} probes have fewer than {policy.fewest_rounds} samples{example}"
        larger = policy.budget_s is not None
        what = "The budget was spent before every probe was measured" if larger else "Not every probe was measured"
        step = f"Run the same command{' with a larger --budget' if larger else ''}; it goes on from here"
        raise CampaignIncomplete(what, why=why, next_step=step)
    if not samples:
        first = next(record for record in probes.values() if record.refused)
        why = f"{first.label}: {first.refused}"
        step = f"See what is missing by `harness devices check {campaign.device}`"
        raise BackendError(f"{campaign.device} refuses every probe", why=why, next_step=step)
    measurements = {
        probe: summarise(taken, campaign.clock) for probe, taken in samples.items() if probe in plan.weights
    }
    return ProfileResult(
        campaign=campaign.id,
        device=campaign.device,
        probes=len(probes),
        samples=sum(len(taken) for taken in samples.values()),
        device_seconds=journal.spent_s(campaign.id),
        wall_seconds=wall_s,
        resumed=resumed,
        refused=sum(record.refused is not None for record in probes.values()),
        unsettled=_unsettled(plan, measurements, policy) if policy.runs is None else 0,
        median_runs=statistics.median(len(samples.get(one, ())) for one in probes if one != campaign.reference),
        drift=_drift(samples.get(campaign.reference, ()), campaign.clock),
    )


def _unsettled(plan: ProbePlan, measurements: Mapping[str, Measurement], policy: RepeatPolicy) -> int:
    short: set[str] = set()
    for batch in plan.batches:
        own = {probe: measurements[probe] for probe in batch.probes if probe in measurements}
        short.update(unsettled(own, policy.target))
    return len(short)


def _drift(taken: Sequence[Sample], clock: str) -> float:
    """Largest change of the reference probe between thirds of the campaign, as a fraction."""
    third = len(taken) // 3
    if third < 3:
        return 0.0
    parts = [taken[:third], taken[third : 2 * third], taken[2 * third :]]
    medians = [summarise(part, clock).latency_s for part in parts]
    return max(medians) / min(medians) - 1
