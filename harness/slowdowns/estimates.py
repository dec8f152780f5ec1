"""What a profile campaign tells roughly, to plan a watch by: latencies of layers and networks, spreads of samples."""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.summary import MAD_TO_SIGMA, Measurement, seconds_of, summarise
from harness.network.context import context_of
from harness.network.key import LayerKey
from harness.network.layers import cut
from harness.network.network import Network
from harness.probe.probe import Probe
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample
from harness.slowdowns.overheads import HostShare, fit_host, tells_host

_OWN_SAMPLES = 24
"""Samples from which on a probe's own spread counts as much as what others have."""
_LEAST_S = 1e-9

Place = tuple[LayerKey, str]
"""A layer by its key and context."""


@dataclass(frozen=True)
class Estimates:
    """Of a profile campaign: its plan, what each probe took, the host's share, and each probe's spread of samples."""

    plan: ProbePlan
    measured: Mapping[str, Measurement]
    host: HostShare
    spread_s: Mapping[str, float]

    def difference_s(self, probe: str, baseline: str) -> float:
        """What a probe takes beyond its baseline, without what the host does for one and not for the other."""
        moved_s = self.host.of(self.plan.probes[probe].terms) - self.host.of(self.plan.probes[baseline].terms)
        return self.measured[probe].latency_s - self.measured[baseline].latency_s - moved_s

    def is_measured(self, probe: str, baseline: str) -> bool:
        """Whether both were measured."""
        return probe in self.measured and baseline in self.measured

    @functools.cached_property
    def within_s(self) -> Mapping[Place, float]:
        """What layers take within their context; those left out do not show above zero there."""
        return self._differences({place_of(one): (one.in_context, one.null) for one in self.plan.layers})

    @functools.cached_property
    def alone_s(self) -> Mapping[Place, float]:
        """What layers take by themselves: of some the context hides most of what they take in a network.

        There the memories are full, and a layer may read and write as it does alone.
        """
        return self._differences({place_of(one): (one.layer, one.auxiliary) for one in self.plan.layers})

    def _differences(self, probes: Mapping[Place, tuple[str, str]]) -> dict[Place, float]:
        found = {place: self.difference_s(*two) for place, two in probes.items() if self.is_measured(*two)}
        return {place: own_s for place, own_s in found.items() if own_s > 0}

    def network_s(self, network: Network, whole: Probe) -> float:
        """About what a network takes: the host's share and its layers."""
        has_context = {place_of(one) for one in self.plan.layers if self.is_measured(one.in_context, one.null)}
        layers_s = (
            count * (self.within_s if place in has_context else self.alone_s).get(place, 0.0)
            for place, count in self._places(network).items()
        )
        return max(_LEAST_S, self.host.of(whole.terms) + sum(layers_s))

    def weights(self, network: Network, whole: Probe) -> dict[Place, float]:
        """What part of the network's latency a second of each layer is, in all of its places together."""
        total_s = self.network_s(network, whole)
        return {place: count / total_s for place, count in self._places(network).items()}

    def _places(self, network: Network) -> Counter[Place]:
        return Counter((one.key, context_of(network, one)) for one in cut(network, self.plan.rules))


def place_of(layer: LayerProbes) -> Place:
    """The layer's key and context."""
    return layer.key, layer.context


def estimate_profile(plan: ProbePlan, profiled: Mapping[str, Sequence[Sample]], clock: str) -> Estimates:
    """What the samples of a profile campaign, by probe, tell."""
    taken = {probe: ones for probe, ones in profiled.items() if ones and probe in plan.probes}
    measured = {probe: summarise(ones, clock) for probe, ones in taken.items()}
    terms = {probe: plan.probes[probe].terms for probe in taken}
    telling = [probe for probe in taken if tells_host(plan.probes[probe].role, terms[probe])]
    host = fit_host({probe: measured[probe].latency_s for probe in telling}, terms)
    own = {probe: _spread([seconds_of(one, clock) for one in ones]) for probe, ones in taken.items()}
    of_host = {probe: max(host.of(terms[probe]), _LEAST_S) for probe in taken}
    of_total = {probe: one.latency_s for probe, one in measured.items()}
    counts = {probe: one.samples for probe, one in measured.items()}
    return Estimates(plan, measured, host, _smoothed(own, counts, (of_host, of_total)))


def _smoothed(
    own: Mapping[str, float], counts: Mapping[str, int], shares: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Each probe's spread: its own, and that which it should have by its host's share or by its total.

    A dozen samples tell a spread to a quarter. Of the two shares that counts in proportion to which spreads are.
    """
    ratios = [[own[probe] / share[probe] for probe in own if own[probe] > 0] or [0.0] for share in shares]
    uneven = [_spread([math.log(value) for value in values if value > 0] or [0.0]) for values in ratios]
    best = min(range(len(shares)), key=lambda at: uneven[at])
    factor = statistics.median(ratios[best])
    found = {}
    for probe, spread_s in own.items():
        weight = counts[probe] / (counts[probe] + _OWN_SAMPLES)
        found[probe] = math.sqrt(weight * spread_s**2 + (1 - weight) * (factor * shares[best][probe]) ** 2)
    return found


def _spread(values: Sequence[float]) -> float:
    centre = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median(abs(value - centre) for value in values)
