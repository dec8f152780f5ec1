"""Measure layers of a space on a leased device, in rounds; each round is a campaign in the journal."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.errors import CampaignIncomplete, NetworkError, UnsupportedNetwork
from harness.latency.estimators import estimate_layers
from harness.latency.layer_latency import Latency
from harness.latency.method_names import DEFAULT_METHOD
from harness.lut.campaign_source import read_campaign
from harness.lut.learning import LEAST_S
from harness.measure.campaign import CampaignRun
from harness.measure.core_caches import core_cache_bytes
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.cutting import cut_as_reported
from harness.measure.journal.records import Campaign
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import PURPOSE, profile_networks
from harness.measure.progress import among_several, notes_of
from harness.measure.request import ProfileRequest, SpaceRequest
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.key import LayerKey
from harness.network.layers import context_of
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.probe.auxiliary import auxiliary_for
from harness.probe.probe_plan import CutNetwork, plan_probes
from harness.space.configuration import Configuration
from harness.space.layer_network import SOURCES, Sources, network_of, own_layers
from harness.space.planner import OVER_BUDGET, Parts, Round, explore
from harness.space.space import LayerSpace
from harness.space.space_profile import SpaceProfile

MAX_PART_LAYERS = 64
MAX_PART_BYTES = 1 << 29
"""The most layers and bytes of one network that a round sends to the device; a round may send several networks."""

CHAINS = "chains"
"""The word in `reveals` of devices that report their chains."""
_Part = Sequence[tuple[int, Configuration]]
"""Layers of a round with their numbers in it."""
_Cuts = tuple[list[CutNetwork], tuple[FusionRule, ...]]
_Named = tuple[LayerKey, str, LayerFeatures | None]
"""A layer's key, its context, and its features, None if its key is of a layer that no predictor learns from."""


def explore_space(
    run: DeviceRun,
    space: LayerSpace,
    request: ProfileRequest,
    *,
    excluded: str | None = None,
) -> SpaceProfile:
    """Measure layers of a space, chosen in rounds, and its networks; the same request continues from the journal.

    The budget of the request bounds the device time of all rounds; of a round that is unlikely to fit, half is tried.
    Networks have what the layers leave of it: if that is too little, or the device refuses them, a note says so. The
    campaigns stay out of tables if `excluded` gives a reason. Raises a DeviceError, Interrupted, and CampaignIncomplete
    if the budget ends within a round.
    """
    started_s = time.monotonic()
    rounds = DeviceRounds(run, request, excluded)
    asked = request.space or SpaceRequest("")
    result = explore(
        space,
        rounds.measure,
        count=asked.count,
        target=asked.target,
        seed=request.seed,
    )
    if space.networks and CHAINS in run.session.hello.reveals:
        try:
            rounds.measure_networks(space.networks, to_start=result.stopped != OVER_BUDGET)
        except (CampaignIncomplete, NetworkError) as error:  # the layers are complete
            notes_of(run.observe)(f"The networks of the space are not measured: {error}")
    wall_s = time.monotonic() - started_s
    return SpaceProfile(run.device, result, tuple(rounds.campaigns), rounds.resumed, rounds.device_s, wall_s)


@dataclass
class DeviceRounds:
    """Measures rounds on one device, each as a campaign, and adds up their device time."""

    on: DeviceRun
    request: ProfileRequest
    excluded: str | None = None
    campaigns: list[int] = field(default_factory=list)
    resumed: int = 0
    device_s: float = 0.0
    tried: int = 0

    def measure(self, asked: Round) -> list[Parts] | None:
        """Return the measured parts of a round's layers; None for the round if the budget is too small."""
        policy, left_s = self.request.policy, self._left_s
        if self.tried and self.device_s / self.tried * len(asked.layers) > left_s:
            return None
        cuts, rules, named = self._cut(asked)
        if not cuts:
            return [()] * len(asked.layers)
        campaign = self._run(cuts, rules, replace(policy, budget_s=None if math.isinf(left_s) else left_s))
        self.tried += len(asked.layers)
        measured, overhead = read_campaign(self.on.journal, campaign)
        found = estimate_layers(measured, DEFAULT_METHOD, overhead).latencies
        return [_measured(named.get(index, ()), found) for index in range(len(asked.layers))]

    def measure_networks(self, models: tuple[str, ...], *, to_start: bool) -> None:
        """Measure networks as one more campaign, with the rest of the budget; a complete one is not repeated."""
        request, left_s = self.request, self._left_s
        if left_s <= 0 or not to_start:
            why = f"The layers took {self.device_s:.1f} s of device time; nothing is left for the networks of the space"
            step = "Run the same command with a larger --budget; it continues from here"
            raise CampaignIncomplete("The budget was used up", why=why, next_step=step)
        policy = replace(request.policy, budget_s=None if math.isinf(left_s) else left_s)
        name = request.name or ("" if request.fresh else " ".join(models))
        asked = replace(request, models=models, space=None, policy=policy, name=name)
        found = profile_networks(self.on, asked.networks(), asked, excluded=self.excluded).result
        self.campaigns.append(found.campaign)
        self.resumed += found.resumed
        self.device_s += found.device_seconds

    @property
    def _left_s(self) -> float:
        budget_s = self.request.policy.budget_s
        return math.inf if budget_s is None else max(0.0, budget_s - self.device_s)

    def _cut(self, asked: Round) -> tuple[*_Cuts, dict[int, list[_Named]]]:
        """Networks with the layers of the round but not their neighbours, and the layers of each configuration.

        Layers that the device fuses with the usual sources of their inputs get others. On processors, layers without
        weights are visited warm: a round has many kinds of them, and their code would be colder than in a network,
        which repeats a few. Of the others, every second network is visited warm, because an unknown network may be
        small or large.
        """
        named: dict[int, list[_Named]] = {}
        narrowed: list[CutNetwork] = []
        found: dict[str, FusionRule] = {}
        waiting = list(enumerate(asked.layers))
        for sources in SOURCES:
            parts, cuts, rules = self._cut_accepted(waiting, asked.number, sources)
            found = {rule.pattern: rule for rule in rules} | found  # most layers have the usual sources
            waiting = []
            for part, cut in zip(parts, cuts, strict=True):
                own = own_layers(cut.layers)
                waiting += [one for at, one in enumerate(part) if at not in own]
                is_warm = not part[0][1].weights or (asked.number + len(narrowed)) % 2 == 0
                for at, layers in own.items():
                    places = [(one.key, context_of(cut.network, one)) for one in layers]
                    named[part[at][0]] = [(*place, describe(place[0].text, place[1], warm=is_warm)) for place in places]
                kept = tuple(layer for layers in own.values() for layer in layers)
                if kept:
                    narrowed.append(replace(cut, layers=kept, is_warm=is_warm))
        return narrowed, tuple(found.values()), named

    def _cut_accepted(self, numbered: _Part, number: int, sources: Sources) -> tuple[list[_Part], *_Cuts]:
        """Parts of the layers that the device accepts, the network of each as the device cuts it, and the rules."""
        parts: list[_Part] = [
            *_parts([one for one in numbered if one[1].weights]),
            *_parts([one for one in numbered if not one[1].weights]),
        ]
        try:
            return parts, *self._cut_parts(parts, number, sources)
        except UnsupportedNetwork:
            parts = [*_parts([one for part in parts for one in self._accepted(part, number, sources)])]
            return parts, *self._cut_parts(parts, number, sources)

    def _cut_parts(self, parts: Sequence[_Part], number: int, sources: Sources) -> _Cuts:
        if not parts:
            return [], ()
        networks = [
            network_of([layer for _, layer in part], f"round {number}, part {at}", sources)
            for at, part in enumerate(parts)
        ]
        return cut_as_reported(self.on.session, networks, self.on.observe, self.on.stop)

    def _accepted(self, part: _Part, number: int, sources: Sources) -> list[tuple[int, Configuration]]:
        """The layers of a part that the device accepts, found by bisection."""
        try:
            self._cut_parts([part], number, sources)
            return list(part)
        except UnsupportedNetwork:
            half = len(part) // 2
            sides = (part[:half], part[half:]) if half else ()
            return [one for side in sides for one in self._accepted(side, number, sources)]

    def _run(self, cuts: list[CutNetwork], rules: tuple[FusionRule, ...], policy: RepeatPolicy) -> Campaign:
        request, journal = self.request, self.on.journal
        hello = self.on.session.hello
        cache_bytes = core_cache_bytes(hello.clock, hello.fingerprint)
        plan = plan_probes(cuts, rules, request.auxiliary or auxiliary_for(hello.clock), cache_bytes)
        settings = policy.settings(PURPOSE, request.seed, request.name)
        campaign = None if request.fresh else self.on.newest(self.on.key(plan, settings))
        self.resumed += campaign is not None
        campaign = campaign or self.on.begin(plan, settings)
        on = replace(self.on, observe=among_several(self.on.observe, "measuring a round of layers"))
        CampaignRun(on, campaign, plan, policy, self.excluded).run()
        self.campaigns.append(campaign.id)
        self.device_s += journal.spent_s(campaign.id)
        if not journal.campaign(campaign.id).complete:
            why = f"{self.device_s:.1f} s on the device were not enough for round {len(self.campaigns)}"
            step = "Run the same command with a larger --budget; it continues from here"
            raise CampaignIncomplete("The budget was used up within a round", why=why, next_step=step)
        return campaign


def _parts(layers: _Part) -> Iterator[list[tuple[int, Configuration]]]:
    part: list[tuple[int, Configuration]] = []
    size = 0
    for index, layer in layers:
        if part and (len(part) >= MAX_PART_LAYERS or size + layer.bytes > MAX_PART_BYTES):
            yield part
            part, size = [], 0
        part.append((index, layer))
        size += layer.bytes
    if part:
        yield part


def _measured(parts: Sequence[_Named], found: Mapping[tuple[str, str], Latency]) -> Parts:
    """Return the parts of a layer; none where the latency of one is missing."""
    known = [(layer, found.get((key.digest, context))) for key, context, layer in parts]
    examples = [
        TrainingExample(layer, max(LEAST_S, latency.latency_s))
        for layer, latency in known
        if layer is not None and latency is not None
    ]
    return examples if len(examples) == len(parts) else ()
