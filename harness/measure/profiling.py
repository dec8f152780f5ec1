"""`harness.profile`: networks in, a campaign in the journal out."""

from __future__ import annotations

import functools
import getpass
import os
import platform
import re
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.device.inventory import Device, find_device, load_inventory
from harness.device.session import AgentSession, Revealed, Sample, Visit, open_session
from harness.errors import BackendError, CampaignIncomplete, Interrupted, UnsupportedNetwork
from harness.measure.campaign import CampaignRun, device_s, payload_of
from harness.measure.fusion import FusionSearch
from harness.measure.journal import Campaign, Journal
from harness.measure.policy import RepeatPolicy, unsettled
from harness.measure.progress import Observer, Progress, ignore
from harness.measure.summary import Measurement, summarise
from harness.network.context import place_of
from harness.network.fusion import DEFAULT_RULES, FusionRule, learn_rules
from harness.network.graph import Network
from harness.network.layers import cut
from harness.network.models import BUILTIN_PREFIX, load_networks
from harness.network.told import ToldGraph, read_told, read_told_part
from harness.network.zoo import NAMES as REFERENCE_NETWORKS
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.chains import plan_chains
from harness.probe.plan import CutNetwork, ProbePlan, plan_probes
from harness.probe.probe import Probe, network_probe
from harness.workspace import Workspace, find_workspace

DEFAULT_CACHE_BYTES = 512 << 10
"""The cache of a core where the device does not tell: what small cores have."""
PROBES_PER_LAYER_RUN = 3.0
"""Device time of one round, as a multiple of one run of the networks: a layer is run alone and in context."""

NULL_BACKEND = "null"
_EMITTED_NODE = re.compile(r"\bn[0-9]+\b")


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
    place, policy = workspace or find_workspace(), policy or RepeatPolicy()
    known = find_device(load_inventory(place.devices), device)
    networks = load_networks(models or reference_networks(), dims)
    started_s = time.monotonic()
    with open_session(known) as session, Journal(place.journal) as journal:
        session.acquire(holder())
        asked = stop or threading.Event()
        kind = auxiliary or auxiliary_for(session.hello.clock)
        if "fusion" in session.hello.tells or session.hello.backend == NULL_BACKEND:
            cuts, rules = cut_as_told(session, networks, observe, asked)
            cuts = with_chains(session, cuts, observe, asked)
        else:
            search = FusionSearch(session, journal, known.name, kind, seed, fresh, observe, asked)
            cuts, rules = cut_as_probed(search, networks)
        plan = plan_probes(cuts, rules, kind, _cache_bytes(session))
        campaign, resumed = _campaign(journal, session, known, plan, seed, policy, fresh)
        CampaignRun(session, journal, campaign, plan, policy, observe, asked).run()
        return _result(journal, campaign, plan, policy, time.monotonic() - started_s, resumed)


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
        cuts, rules = cut_as_told(session, networks, observe, threading.Event())
        cuts = with_chains(session, cuts, observe, threading.Event())
        seconds = sum(_run_seconds(session, network) for network in networks)
        kind = auxiliary or auxiliary_for(session.hello.clock)
        plan = plan_probes(cuts, rules, kind, _cache_bytes(session))
    return DryRun(plan, tuple(cuts), PROBES_PER_LAYER_RUN * seconds, policy or RepeatPolicy())


def holder() -> str:
    """Who takes the lease, in words for whoever finds it taken."""
    return f"{getpass.getuser()}@{platform.node()} pid {os.getpid()}"


def _cache_bytes(session: AgentSession) -> int | None:
    """The cache of a core, None on a device whose clock is its own: that one does not depend on caches."""
    if session.hello.clock == "device":
        return None
    told = session.hello.fingerprint.get("core_cache_bytes", "")
    known = told.isascii() and told.isdigit() and len(told) < 16
    return (int(told) if known else 0) or DEFAULT_CACHE_BYTES


def cut_as_told(
    session: AgentSession, networks: Sequence[Network], observe: Observer, stop: threading.Event
) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cuts networks by the fusion that the device tells, or by the default rules where it does not.

    The default serves where nothing may be probed, and where there is nothing to find: a null device fuses nothing.
    Raises UnsupportedNetwork where the device refuses one.
    """
    if "fusion" not in session.hello.tells:
        return [
            CutNetwork(network, cut(network, DEFAULT_RULES), _convolutional(network)) for network in networks
        ], DEFAULT_RULES
    told: list[ToldGraph] = []
    for number, network in enumerate(networks):
        if stop.is_set():
            raise Interrupted("Stopped on request", why="Nothing was measured yet")
        observe(Progress(f"asking how {network.name} is fused", number, len(networks), 0, 0, 0.0, None))
        told.append(_told(session, network))
    groups = [(network, graph.groups) for network, graph in zip(networks, told, strict=True)]
    rules = learn_rules(groups, session.hello.backend)
    cuts = [
        CutNetwork(network, cut(network, rules), graph.blocked, graph)
        for network, graph in zip(networks, told, strict=True)
    ]
    return cuts, rules


def with_chains(
    session: AgentSession, cuts: Sequence[CutNetwork], observe: Observer, stop: threading.Event
) -> list[CutNetwork]:
    """The networks with windows of the chains that the device tells of them; as they are where it tells none."""
    found = []
    for number, one in enumerate(cuts):
        if one.told is None or not one.told.chains:
            found.append(one)
            continue
        observe(Progress(f"asking how {one.network.name} is chained", number, len(cuts), 0, 0, 0.0, None))
        label = functools.partial(place_of, one.network, one.layers)
        chains, windows = plan_chains(one.network, one.layers, one.told, label, _Chained(session, stop))
        found.append(replace(one, chains=chains, windows=windows))
    return found


@dataclass(frozen=True)
class _Chained:
    """Asks a device how it chains a window of a network; None where it refuses the window."""

    session: AgentSession
    stop: threading.Event

    def __call__(self, probe: Probe) -> ToldGraph | None:
        if self.stop.is_set():
            raise Interrupted("Stopped on request", why="Nothing was measured yet")
        try:
            revealed = self.session.put(payload_of(probe), reveal=True)
        except BackendError:  # the campaign will meet it again, and say so
            return None
        self.session.drop([probe.id])
        return None if revealed is None else read_told_part(probe.model.names, revealed.format, revealed.content)


def cut_as_probed(search: FusionSearch, networks: Sequence[Network]) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cuts networks by the fusion that probes of neighbouring operators show."""
    rules = search.run(networks)
    return [CutNetwork(network, cut(network, rules), _convolutional(network)) for network in networks], rules


def _told(session: AgentSession, network: Network) -> ToldGraph:
    probe = network_probe(network)
    try:
        revealed = _put(session, network, probe, reveal=True)
    finally:
        session.drop([probe.id])
    if revealed is None:
        raise BackendError(f"The device does not tell how it fuses {network.name}")
    return read_told(network, probe.model.names, revealed.format, revealed.content)


def _put(session: AgentSession, network: Network, probe: Probe, *, reveal: bool = False) -> Revealed | None:
    """Loads a whole network; raises UnsupportedNetwork, in the network's own names, where the device refuses it."""
    try:
        return session.put(payload_of(probe), reveal=reveal)
    except BackendError as error:
        why, step = _in_names_of(network, probe, error.why), "Leave this network out, or measure it on another device"
        raise UnsupportedNetwork(f"The device cannot run {network.name}", why=why, next_step=step) from error


def _in_names_of(network: Network, probe: Probe, message: str) -> str:
    """What a device says of the nodes that it was sent, with the names that the network gives them."""
    names = {node.index: node.name for node in network.nodes}
    emitted = probe.model.names.nodes
    return _EMITTED_NODE.sub(lambda found: names[emitted[found[0]]] if found[0] in emitted else found[0], message)


def _convolutional(network: Network) -> frozenset[str]:
    """Tensors that a device which tells nothing is assumed to keep as convolutions like them."""
    return frozenset(name for name, kind in network.types.items() if len(kind.shape) == 4)


def _run_seconds(session: AgentSession, network: Network) -> float:
    probe = network_probe(network)
    _put(session, network, probe)
    runs = [one for series, _ in session.run([Visit(probe.id, 0, 3)]) for one in series]
    session.drop([probe.id])
    return summarise(runs[0].samples, session.hello.clock).latency_s


def _campaign(
    journal: Journal,
    session: AgentSession,
    device: Device,
    plan: ProbePlan,
    seed: int,
    policy: RepeatPolicy,
    fresh: bool,
) -> tuple[Campaign, bool]:
    settings = policy.settings("profile", seed)
    hello = session.hello
    found = None if fresh else journal.resumable(device.name, plan.id, settings, hello.fingerprint)
    if found and not _is_spent(journal, found, policy):
        return found, True
    return journal.begin(device.name, plan, seed, settings, hello.fingerprint, hello.clock), False


def _is_spent(journal: Journal, campaign: Campaign, policy: RepeatPolicy) -> bool:
    """Whether a complete campaign has used up the budget: the same command then measures anew."""
    if not campaign.complete or policy.budget_s is None:
        return False
    return _spent_s(journal, campaign, journal.samples(campaign.id)) >= policy.budget_s


def _spent_s(journal: Journal, campaign: Campaign, samples: Mapping[str, Sequence[Sample]]) -> float:
    """Time on the device, untimed runs included."""
    return sum(map(device_s, samples.values())) + journal.untimed_s(campaign.id)


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
    measurements = {
        probe: summarise(taken, campaign.clock) for probe, taken in samples.items() if probe in plan.weights
    }
    return ProfileResult(
        campaign=campaign.id,
        device=campaign.device,
        probes=len(probes),
        samples=sum(len(taken) for taken in samples.values()),
        device_seconds=_spent_s(journal, campaign, samples),
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
