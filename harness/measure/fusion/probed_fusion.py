"""Find the fusion of a device that reports none: probe neighbouring operators apart and together.

The search starts with pairs of operators. A pair that turns out to be fused then counts as one operator and is tried
with its own neighbours, until no new pattern is found. Each step is a separate campaign in the journal (purpose
`fusion`), so that an interrupted search resumes and a finished step is not repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.significance import ShapeSaving, Verdict, fit_verdict, holm, shape_saving
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import among_several
from harness.measure.summary import undisturbed
from harness.network.fusion.fusion_candidates import NodePair, neighbours, shapes
from harness.network.fusion.fusion_rules import SIGNIFICANCE, FusionRule
from harness.network.network import Network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.fusion_probes import pair_producers, plan_pairs
from harness.probe.producer import ProducerKind

POLICIES = (RepeatPolicy(runs=16), RepeatPolicy(runs=48))
"""Rounds for all pairs, and for the pairs that remain undecided."""
APART = 0.001
"""Largest p-value at which two neighbours count as apart; strict, because one such answer ends their search."""
SOURCE = "probed"


@dataclass(frozen=True)
class TriedPattern:
    """A probed pattern: how often it occurs in the networks, and the verdict for each producer."""

    pattern: str
    places: int
    verdicts: Mapping[ProducerKind, Verdict]

    @property
    def is_apart(self) -> bool:
        """Return whether one of the producers shows that the two operators are not fused."""
        return any(verdict.p_apart <= APART for verdict in self.verdicts.values())


@dataclass
class FusionSearch:
    """The search for fused patterns on one device; `tried` lists all patterns that were probed."""

    on: DeviceRun
    auxiliary: AuxiliaryKind
    seed: int
    fresh: bool
    tried: list[TriedPattern] = field(default_factory=list)

    def run(self, networks: Sequence[Network]) -> tuple[FusionRule, ...]:
        """Return the rules, those that hold and those that do not, with their evidence, in the order of the search.

        Raises Interrupted when stopped and a DeviceError; the samples taken so far are kept.
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
        """Probe the likelier producer first, and the other one only if the first does not show the operators apart.

        Each is measured in few rounds first, and in more if the answer is still open.
        """
        chosen = {pattern: shapes(places) for pattern, places in pairs.items()}
        verdicts: dict[str, dict[ProducerKind, Verdict]] = {pattern: {} for pattern in chosen}
        for turn, policy in itertools.product(range(2), POLICIES):
            due = [
                (pair, producer)
                for pattern, variants in chosen.items()
                if not TriedPattern(pattern, len(variants), verdicts[pattern]).is_apart
                for pair in variants
                for producer in pair_producers(pair, self.auxiliary)[turn : turn + 1]
                if not _is_sure(verdicts[pattern].get(producer), SIGNIFICANCE / len(chosen))
            ]
            for (pattern, producer), savings in self._measure(due, policy).items() if due else ():
                verdicts[pattern][producer] = fit_verdict(savings)
        return [TriedPattern(pattern, len(pairs[pattern]), found) for pattern, found in verdicts.items()]

    def _measure(
        self, due: Sequence[tuple[NodePair, ProducerKind]], policy: RepeatPolicy
    ) -> dict[tuple[str, ProducerKind], list[ShapeSaving]]:
        plan, planned = plan_pairs(due, self.auxiliary)
        settings = policy.settings("fusion", self.seed)
        known = None if self.fresh else self.on.newest(self.on.key(plan, settings), finished=True)
        campaign = known or self.on.begin(plan, settings)
        if not campaign.complete:
            on = replace(self.on, observe=among_several(self.on.observe, "finding fusion"))
            CampaignRun(on, campaign, plan, policy).run()
        samples = self.on.journal.samples(campaign.id)
        measured = {probe: undisturbed(taken, campaign.clock) for probe, taken in samples.items()}
        savings: dict[tuple[str, ProducerKind], list[ShapeSaving]] = {}
        for pair in planned:
            found = savings.setdefault((pair.pattern, pair.producer), [])
            ids = (pair.first, pair.second, pair.both, pair.between, pair.first_inputs, pair.second_inputs)
            if all(probe in measured for probe in ids):  # the device refused none of them
                found.append(shape_saving(*(measured[probe] for probe in ids)))
        return savings


def rules_of(tried: Sequence[TriedPattern]) -> tuple[FusionRule, ...]:
    """Return a rule for every pattern; it holds if all producers of the pattern show the fusion.

    The largest p-value of the producers counts, corrected for the number of patterns by Holm, and the smallest saving.
    """
    corrected = holm([max(verdict.p_fused for verdict in pattern.verdicts.values()) for pattern in tried])
    weakest = [min(pattern.verdicts.values(), key=lambda verdict: verdict.share) for pattern in tried]
    return tuple(
        FusionRule(pattern.pattern, verdict.matched, verdict.fused, SOURCE, round(verdict.share, 4), p_value)
        for pattern, verdict, p_value in zip(tried, weakest, corrected, strict=True)
    )


def _is_sure(verdict: Verdict | None, level: float) -> bool:
    """Return whether more rounds would hardly change the answer: it is clear, or the device refuses the probes."""
    return verdict is not None and (not verdict.matched or verdict.p_apart <= APART or verdict.p_fused <= level)
