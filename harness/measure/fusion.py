"""Fusion found on a device that does not tell: neighbours are probed apart and together, longer and longer patterns.

It begins with pairs of operators. Those that turn out fused count as one from then on, and are tried with their
neighbours in turn, until nothing new is found. Each step is a campaign of its own in the journal (purpose `fusion`),
so that an interrupted one is resumed and one that was done is not done again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.device.session import AgentSession
from harness.measure.campaign import CampaignRun
from harness.measure.journal import Campaign, Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Observer
from harness.measure.significance import ShapeSaving, Verdict, holm, judge, shape_saving
from harness.measure.summary import Measurement, undisturbed
from harness.network.fusion_candidates import NodePair, neighbours, shapes
from harness.network.fusion_rules import SIGNIFICANCE, FusionRule
from harness.network.network import Network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.pairs import PairProbes, hand_overs, plan_pairs
from harness.probe.probe_plan import ProbePlan
from harness.probe.producer import ProducerKind

POLICIES = (RepeatPolicy(runs=16), RepeatPolicy(runs=48))
"""Rounds for all pairs, and for those that are undecided then."""
APART = 0.001
"""Largest p-value at which two neighbours count as apart: strict, as one such answer ends their search."""
SOURCE = "probed"


@dataclass(frozen=True)
class TriedPattern:
    """A pattern that was probed: how often it stands in the networks, and the verdict by each hand-over."""

    pattern: str
    places: int
    verdicts: Mapping[ProducerKind, Verdict]

    @property
    def is_apart(self) -> bool:
        """Whether a hand-over shows that the two are not fused."""
        return any(verdict.p_apart <= APART for verdict in self.verdicts.values())


@dataclass
class FusionSearch:
    """The search on one device for its fusions; `device` is its name in the journal, `tried` all that was probed."""

    session: AgentSession
    journal: Journal
    device: str
    auxiliary: AuxiliaryKind
    seed: int
    fresh: bool
    observe: Observer
    stop: threading.Event
    tried: list[TriedPattern] = field(default_factory=list)

    def run(self, networks: Sequence[Network]) -> tuple[FusionRule, ...]:
        """The rules, those that hold and those that do not, with their evidence, in the order they were tried.

        Raises Interrupted when stopped and a DeviceError; what was measured is kept.
        """
        rules: dict[str, FusionRule] = {}
        while True:
            found = neighbours(networks, tuple(rules.values()))
            pairs = {pattern: places for pattern, places in found.items() if pattern not in rules}
            if not pairs:
                return tuple(rules.values())
            tried = self._try(pairs)
            self.tried.extend(tried)
            rules.update((rule.pattern, rule) for rule in rules_of(tried))

    def _try(self, pairs: Mapping[str, Sequence[NodePair]]) -> list[TriedPattern]:
        """The likelier hand-over first, the other one only for patterns that are not apart by the first.

        Each with few rounds first, and with more where that leaves the answer open.
        """
        chosen = {pattern: shapes(places) for pattern, places in pairs.items()}
        verdicts: dict[str, dict[ProducerKind, Verdict]] = {pattern: {} for pattern in chosen}
        for turn, policy in itertools.product(range(2), POLICIES):
            due = [
                (pair, hand_over)
                for pattern, variants in chosen.items()
                if not TriedPattern(pattern, len(variants), verdicts[pattern]).is_apart
                for pair in variants
                for hand_over in hand_overs(pair, self.auxiliary)[turn : turn + 1]
                if not _is_sure(verdicts[pattern].get(hand_over), SIGNIFICANCE / len(chosen))
            ]
            for (pattern, hand_over), savings in self._measure(due, policy).items() if due else ():
                verdicts[pattern][hand_over] = judge(savings)
        return [TriedPattern(pattern, len(pairs[pattern]), found) for pattern, found in verdicts.items()]

    def _measure(
        self, due: Sequence[tuple[NodePair, ProducerKind]], policy: RepeatPolicy
    ) -> dict[tuple[str, ProducerKind], list[ShapeSaving]]:
        plan, planned = plan_pairs(due, self.auxiliary)
        campaign = self._campaign(plan, policy)
        if not campaign.complete:
            CampaignRun(self.session, self.journal, campaign, plan, policy, self.observe, self.stop).run()
        samples = self.journal.samples(campaign.id)
        measured = {probe: undisturbed(taken, campaign.clock) for probe, taken in samples.items()}
        savings: dict[tuple[str, ProducerKind], list[ShapeSaving]] = {}
        for pair in planned:
            found = savings.setdefault((pair.pattern, pair.hand_over), [])
            found.extend(_saving(pair, measured))
        return savings

    def _campaign(self, plan: ProbePlan, policy: RepeatPolicy) -> Campaign:
        """The newest campaign of this plan on the device as it is, complete or not, or a new one."""
        settings, hello = policy.settings("fusion", self.seed), self.session.hello
        known = () if self.fresh else reversed(self.journal.campaigns(self.device))
        for campaign in known:
            asked = (campaign.plan, dict(campaign.settings), dict(campaign.fingerprint))
            if asked == (plan.id, settings, dict(hello.fingerprint)):
                return campaign
        return self.journal.begin(
            self.device, plan, self.seed, settings, hello.fingerprint, hello.clock, self.session.token
        )


def rules_of(tried: Sequence[TriedPattern]) -> tuple[FusionRule, ...]:
    """A rule for every pattern: it holds where all its hand-overs show the fusion.

    The largest of their p-values counts, corrected for the number of patterns by Holm, and the smallest saving.
    """
    corrected = holm([max(verdict.p_fused for verdict in pattern.verdicts.values()) for pattern in tried])
    weakest = [min(pattern.verdicts.values(), key=lambda verdict: verdict.share) for pattern in tried]
    return tuple(
        FusionRule(pattern.pattern, verdict.matched, verdict.fused, SOURCE, round(verdict.share, 4), p_value)
        for pattern, verdict, p_value in zip(tried, weakest, corrected, strict=True)
    )


def _is_sure(verdict: Verdict | None, level: float) -> bool:
    """Whether there is an answer to which more rounds would hardly add."""
    return verdict is not None and (verdict.p_apart <= APART or verdict.p_fused <= level)


def _saving(pair: PairProbes, measured: Mapping[str, Measurement]) -> list[ShapeSaving]:
    """The saving of a pair, or nothing where the device refused one of its probes."""
    ids = (pair.first, pair.second, pair.both, pair.between, pair.first_inputs, pair.second_inputs)
    if any(probe not in measured for probe in ids):
        return []
    first, second, both, between, first_inputs, second_inputs = (measured[probe] for probe in ids)
    return [shape_saving(first, second, both, between, first_inputs, second_inputs)]
