"""`harness profile --space`: a space in, one campaign per round in the journal out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.device.holder import holder
from harness.device.inventory import find_device, load_inventory
from harness.device.session import AgentSession, open_session
from harness.errors import CampaignIncomplete, UnsupportedNetwork
from harness.latency.estimators import estimate_layers
from harness.latency.layer_latency import Latency
from harness.lut.build import DEFAULT_METHOD, read_campaign
from harness.measure.campaign import CampaignRun, device_s
from harness.measure.cutting import cut_as_reported
from harness.measure.journal import Campaign, Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import Sitting
from harness.measure.progress import Observer, ignore
from harness.network.context import context_of
from harness.network.fusion_rules import FusionRule
from harness.network.layers import Layer
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.probe_plan import CutNetwork, plan_probes
from harness.space.committee import learn_committee
from harness.space.configuration import Configuration
from harness.space.graph import network_of, own_layers
from harness.space.planner import (
    DEFAULT_COUNT,
    DEFAULT_TARGET,
    Learn,
    Round,
    RoundResult,
    SpaceResult,
    explore,
)
from harness.space.sampling import SpaceLayers
from harness.space.space import Space, load_space
from harness.workspace import Workspace, find_workspace

MAX_PART_LAYERS = 64
MAX_PART_BYTES = 1 << 29
"""Layers and bytes of one network that a device is asked about; a round may make several."""

Place = tuple[str, str]


@dataclass(frozen=True)
class SpaceProfile:
    """What one command did; `resumed` rounds were in the journal already, in whole or in part."""

    device: str
    result: SpaceResult
    campaigns: tuple[int, ...]
    resumed: int
    device_seconds: float
    wall_seconds: float


def profile_space(
    space: str,
    *,
    device: str = "cpu01",
    workspace: Workspace | None = None,
    auxiliary: AuxiliaryKind | None = None,
    policy: RepeatPolicy | None = None,
    count: int = DEFAULT_COUNT,
    target: float = DEFAULT_TARGET,
    seed: int = 0,
    fresh: bool = False,
    learn: Learn = learn_committee,
    observe: Observer = ignore,
    told: Callable[[RoundResult], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> SpaceProfile:
    """Measures at most `count` layers of a space, chosen in rounds; the same call resumes what was cut short.

    `space` is a path or `builtin:NAME`. `policy.budget_s` bounds the time on the device over all rounds; a round
    that is not likely to fit is not begun. Raises the errors of harness.errors; what was measured is kept.
    """
    place = workspace or find_workspace()
    known = find_device(load_inventory(place.devices), device)
    wanted = WantedSpace(load_space(space), policy or RepeatPolicy(), auxiliary, count, target, seed, fresh)
    with open_session(known) as session, Journal(place.journal) as journal:
        session.acquire(holder())
        sitting = Sitting(session, journal, known, observe, stop or threading.Event())
        return explore_space(sitting, wanted, learn, told)


@dataclass(frozen=True)
class WantedSpace:
    """Which layers of a space are to be measured, and how; campaigns of the same `job` are the same ones.

    With `excluded` they stay out of tables for that reason until somebody lets them in.
    """

    space: Space
    policy: RepeatPolicy
    auxiliary: AuxiliaryKind | None = None
    count: int = DEFAULT_COUNT
    target: float = DEFAULT_TARGET
    seed: int = 0
    fresh: bool = False
    job: str = ""
    excluded: str | None = None


def explore_space(
    sitting: Sitting,
    wanted: WantedSpace,
    learn: Learn = learn_committee,
    told: Callable[[RoundResult], None] = lambda _: None,
) -> SpaceProfile:
    """The same on a device that is leased already; raises as `profile_space` does."""
    started_s = time.monotonic()
    kind = wanted.auxiliary or auxiliary_for(sitting.session.hello.clock)
    rounds = DeviceRounds(
        sitting.session, sitting.journal, sitting.device.name, wanted.policy, wanted.seed, wanted.fresh, kind,
        sitting.observe, sitting.stop, wanted.job, wanted.excluded,
    )  # fmt: skip
    layers = SpaceLayers(wanted.space)
    result = explore(
        layers, rounds.measure, count=wanted.count, target=wanted.target, seed=wanted.seed, learn=learn, observe=told
    )
    wall_s = time.monotonic() - started_s
    return SpaceProfile(sitting.device.name, result, tuple(rounds.campaigns), rounds.resumed, rounds.device_s, wall_s)


@dataclass
class DeviceRounds:
    """Measures rounds on one device, each a campaign of the journal, and keeps count of its time."""

    session: AgentSession
    journal: Journal
    device: str
    policy: RepeatPolicy
    seed: int
    fresh: bool
    auxiliary: AuxiliaryKind
    observe: Observer
    stop: threading.Event
    job: str = ""
    excluded: str | None = None
    campaigns: list[int] = field(default_factory=list)
    resumed: int = 0
    device_s: float = 0.0
    tried: int = 0

    def measure(self, asked: Round[Configuration]) -> list[float | None] | None:
        """Latencies of a round's layers; None for the round where the budget will not do."""
        left_s = math.inf if self.policy.budget_s is None else self.policy.budget_s - self.device_s
        if self.tried and self.device_s / self.tried * len(asked.layers) > left_s:
            return None
        cuts, rules, places = self._cut(asked)
        if not cuts:
            return [None] * len(asked.layers)
        campaign = self._run(cuts, rules, replace(self.policy, budget_s=None if math.isinf(left_s) else left_s))
        self.tried += len(asked.layers)
        found = latencies_of(self.journal, campaign)
        return [_total(places.get(index, ()), found) for index in range(len(asked.layers))]

    def _cut(
        self, asked: Round[Configuration]
    ) -> tuple[list[CutNetwork], tuple[FusionRule, ...], dict[int, tuple[Place, ...]]]:
        """Networks with the layers of the round and none of their neighbours', and each configuration's layers."""
        parts = list(_parts(list(enumerate(asked.layers))))
        try:
            cuts, rules = self._ask(parts, asked.number)
        except UnsupportedNetwork:
            accepted = [one for part in parts for one in self._accepted(part, asked.number)]
            parts = list(_parts(accepted))
            cuts, rules = self._ask(parts, asked.number) if parts else ([], ())
        places: dict[int, tuple[Place, ...]] = {}
        narrowed = []
        for part, cut in zip(parts, cuts, strict=True):
            own = own_layers(cut.layers)
            places.update({part[at][0]: _places(cut, layers) for at, layers in own.items()})
            kept = tuple(layer for layers in own.values() for layer in layers)
            if kept:
                narrowed.append(replace(cut, layers=kept))
        return narrowed, rules, places

    def _ask(
        self, parts: Sequence[Sequence[tuple[int, Configuration]]], number: int
    ) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
        networks = [
            network_of([layer for _, layer in part], f"round {number}, part {at}") for at, part in enumerate(parts)
        ]
        return cut_as_reported(self.session, networks, self.observe, self.stop)

    def _accepted(self, part: Sequence[tuple[int, Configuration]], number: int) -> list[tuple[int, Configuration]]:
        """The layers of a part that the device does not refuse, found by halves."""
        try:
            self._ask([part], number)
            return list(part)
        except UnsupportedNetwork:
            half = len(part) // 2
            return [one for side in (part[:half], part[half:]) for one in self._accepted(side, number)] if half else []

    def _run(self, cuts: list[CutNetwork], rules: tuple[FusionRule, ...], policy: RepeatPolicy) -> Campaign:
        plan = plan_probes(cuts, rules, self.auxiliary)
        settings, hello = policy.settings("profile", self.seed, self.job), self.session.hello
        campaign = None if self.fresh else self.journal.newest(self.device, plan.id, settings, hello.fingerprint)
        self.resumed += campaign is not None
        if campaign is None:
            campaign = self.journal.begin(
                self.device, plan, self.seed, settings, hello.fingerprint, hello.clock, self.session.token
            )
        CampaignRun(self.session, self.journal, campaign, plan, policy, self.observe, self.stop, self.excluded).run()
        self.campaigns.append(campaign.id)
        taken = self.journal.samples(campaign.id).values()
        self.device_s += sum(map(device_s, taken))
        if not self.journal.campaign(campaign.id).complete:
            why = f"{self.device_s:.1f} s on the device were not enough for round {len(self.campaigns)}"
            step = "Run the same command with a larger --budget; it goes on from here"
            raise CampaignIncomplete("The budget was spent within a round", why=why, next_step=step)
        return campaign


def latencies_of(journal: Journal, campaign: Campaign) -> dict[Place, Latency]:
    """Latencies of a campaign's layers as `lut build` would have them, by digest of the key and context."""
    measured, overhead = read_campaign(journal, campaign)
    return dict(estimate_layers(measured, DEFAULT_METHOD, overhead).latencies)


def _parts(layers: Sequence[tuple[int, Configuration]]) -> Iterator[list[tuple[int, Configuration]]]:
    part: list[tuple[int, Configuration]] = []
    size = 0
    for index, layer in layers:
        more = layer.features.moved_bytes
        if part and (len(part) >= MAX_PART_LAYERS or size + more > MAX_PART_BYTES):
            yield part
            part, size = [], 0
        part.append((index, layer))
        size += more
    if part:
        yield part


def _places(cut: CutNetwork, layers: Sequence[Layer]) -> tuple[Place, ...]:
    return tuple((layer.key.digest, context_of(cut.network, layer)) for layer in layers)


def _total(places: Sequence[Place], found: dict[Place, Latency]) -> float | None:
    """What a configuration takes: the sum of its layers; None where one of them was refused."""
    if not places or any(place not in found for place in places):
        return None
    return sum(found[place].latency_s for place in places)
