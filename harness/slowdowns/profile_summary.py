"""A profile campaign in approximate figures to plan a watch by: latencies of layers and networks, sample spreads."""

import functools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.summary import Measurement, mad_sigma, seconds_of, summarise
from harness.network.key import LayerKey
from harness.network.layers import context_of, cut
from harness.network.network import Network
from harness.probe.probe import Probe
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample
from harness.slowdowns.host_share import HostShare, fit_host, is_host_probe

_OWN_SAMPLES = 24
"""Number of samples at which a probe's own spread counts as much as that of the other probes."""
_LEAST_S = 1e-9

Place = tuple[LayerKey, str]
"""A layer by its key and context."""


@dataclass(frozen=True)
class ProfileSummary:
    """A profile campaign: its plan, each probe's measurement and spread of samples, and the host's share."""

    plan: ProbePlan
    measured: Mapping[str, Measurement]
    host: HostShare
    spread_s: Mapping[str, float]

    def difference_s(self, probe: str, baseline: str) -> float:
        """Return a probe's latency minus its baseline's and minus the difference of their host shares."""
        moved_s = self.host.of(self.plan.probes[probe].terms) - self.host.of(self.plan.probes[baseline].terms)
        return self.measured[probe].latency_s - self.measured[baseline].latency_s - moved_s

    def is_measured(self, probe: str, baseline: str) -> bool:
        """Return whether both probes were measured."""
        return probe in self.measured and baseline in self.measured

    @functools.cached_property
    def within_s(self) -> Mapping[Place, float]:
        """The latency of each layer within its context, for layers above zero."""
        return self._differences({place_of(one): (one.in_context, one.null) for one in self.plan.layers})

    @functools.cached_property
    def alone_s(self) -> Mapping[Place, float]:
        """The latency of each layer without its context, which for some is far higher than within it.

        In a network, where the memories are full, a layer may behave like either.
        """
        return self._differences({place_of(one): (one.layer, one.auxiliary) for one in self.plan.layers})

    def _differences(self, probes: Mapping[Place, tuple[str, str]]) -> dict[Place, float]:
        found = {place: self.difference_s(*two) for place, two in probes.items() if self.is_measured(*two)}
        return {place: own_s for place, own_s in found.items() if own_s > 0}

    def network_s(self, network: Network, whole: Probe) -> float:
        """Return an approximate latency of a network: the host's share plus its layers."""
        has_context = {place_of(one) for one in self.plan.layers if self.is_measured(one.in_context, one.null)}
        layers_s = (
            count * (self.within_s if place in has_context else self.alone_s).get(place, 0.0)
            for place, count in self._places(network).items()
        )
        return max(_LEAST_S, self.host.of(whole.terms) + sum(layers_s))

    def weights(self, network: Network, whole: Probe) -> dict[Place, float]:
        """Return, for each layer, its number of occurrences divided by the network's latency in seconds."""
        total_s = self.network_s(network, whole)
        return {place: count / total_s for place, count in self._places(network).items()}

    def _places(self, network: Network) -> Counter[Place]:
        return Counter((one.key, context_of(network, one)) for one in cut(network, self.plan.rules))


def place_of(layer: LayerProbes) -> Place:
    """Return the layer's key and context."""
    return layer.key, layer.context


def summarise_profile(plan: ProbePlan, profiled: Mapping[str, Sequence[Sample]], clock: str) -> ProfileSummary:
    """Summarise the samples of a profile campaign, given by probe."""
    samples = {probe: runs for probe, runs in profiled.items() if runs and probe in plan.probes}
    measured = {probe: summarise(runs, clock) for probe, runs in samples.items()}
    terms = {probe: plan.probes[probe].terms for probe in samples}
    hosts = [probe for probe in samples if is_host_probe(plan.probes[probe].role, terms[probe])]
    host = fit_host({probe: measured[probe].latency_s for probe in hosts}, terms)
    own = {probe: mad_sigma([seconds_of(one, clock) for one in runs]) for probe, runs in samples.items()}
    of_host = {probe: max(host.of(terms[probe]), _LEAST_S) for probe in samples}
    of_total = {probe: one.latency_s for probe, one in measured.items()}
    counts = {probe: one.samples for probe, one in measured.items()}
    return ProfileSummary(plan, measured, host, _smoothed(own, counts, (of_host, of_total)))


def _smoothed(
    own: Mapping[str, float], counts: Mapping[str, int], shares: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return each probe's spread, smoothed towards the spread that is typical for its host share or its total.

    A dozen samples determine a spread to 25 % only. Of host share and total the better predictor of spreads is used.
    """
    ratios = [[own[probe] / share[probe] for probe in own if own[probe] > 0] or [0.0] for share in shares]
    uneven = [mad_sigma([math.log(value) for value in values if value > 0] or [0.0]) for values in ratios]
    best = min(range(len(shares)), key=lambda at: uneven[at])
    factor = statistics.median(ratios[best])
    smoothed = {}
    for probe, spread_s in own.items():
        weight = counts[probe] / (counts[probe] + _OWN_SAMPLES)
        smoothed[probe] = math.sqrt(weight * spread_s**2 + (1 - weight) * (factor * shares[best][probe]) ** 2)
    return smoothed
