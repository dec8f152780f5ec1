"""One network of a validation: its estimate, and the probes that measure it whole and layer by layer."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.estimation.network_estimate import NetworkEstimate
from harness.measure.summary import summarise
from harness.network.fusion.fusion_rules import FusionRule, as_executed
from harness.network.layers import cut
from harness.network.network import Network
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import Probe, network_probe, reference_probe, single_probe
from harness.probe.probe_plan import ProbePlan
from harness.validation.stopping_rule import StoppingRule
from harness.validation.whole_networks import ProcessSamples

RUNS_PER_VISIT = 3
SETTLING_S, MOST_UNTIMED = 1e-3, 20
"""Time of the untimed runs of a visit to a whole network, and their largest number. Of networks of 10 to 100 µs, the
second run still took 5 to 30 % longer than the fourth."""


@dataclass(frozen=True)
class NetworkCase:
    """A network, its estimate, the network as a probe, its layers as single probes, and how often each occurs."""

    network: Network
    estimated: NetworkEstimate
    whole: Probe
    singles: Mapping[str, Probe]
    counts: Mapping[str, int]

    @property
    def covered(self) -> tuple[float, tuple[float, float]]:
        """The estimate and its interval in seconds; raises ValueError if layers are unknown."""
        if self.estimated.latency_s is None or self.estimated.interval_s is None:
            raise ValueError(f"{self.estimated.name} is not covered")
        return self.estimated.latency_s, self.estimated.interval_s

    def stopping_rule(self, target: float, most_processes: int) -> StoppingRule:
        """Return the rule that ends the measurement of the whole network."""
        return StoppingRule(*self.covered, target, most_processes)


def network_case(network: Network, estimated: NetworkEstimate, alone: Sequence[tuple[str, Probe]]) -> NetworkCase:
    """Return the case of a network; `alone` are probes of its single layers by the digests of their keys."""
    counts = Counter(key for key, _ in alone)
    return NetworkCase(network, estimated, network_probe(network), dict(alone), counts)


def layers_alone(network: Network, rules: Sequence[FusionRule]) -> list[tuple[str, Probe]]:
    """Return a probe of each single layer, with the layer's key."""
    executed = as_executed(network, rules)
    return [(layer.key.digest, single_probe(executed, layer)) for layer in cut(executed, rules)]


def validation_plan(cases: Sequence[NetworkCase]) -> ProbePlan:
    """Return a plan with each network in its own batch, its single layers in the next, and equal probes once."""
    reference = reference_probe()
    probes = {reference.id: reference}
    batches: list[Batch] = []
    for case in cases:
        for group, untimed in (((case.whole,), _untimed_runs(case.estimated)), (tuple(case.singles.values()), 1)):
            fresh = {probe.id: probe for probe in group if probe.id not in probes}
            probes.update(fresh)
            if fresh:
                batches.append(Batch(tuple(fresh), "warm", RUNS_PER_VISIT, untimed))
    return ProbePlan(probes, (), tuple(batches), reference.id, (), DEFAULT_AUXILIARY)


def _untimed_runs(estimated: NetworkEstimate) -> int:
    """Return the number of untimed runs before the timed ones of a whole network."""
    return max(1, math.ceil(SETTLING_S / max(estimated.covered_latency_s, SETTLING_S / MOST_UNTIMED)))


def naive_s(case: NetworkCase, process: ProcessSamples, clock: str) -> float | None:
    """Return the sum over layers timed one by one; None unless requested, or where one could not be timed."""
    if not case.singles or any(probe.id not in process.samples for probe in case.singles.values()):
        return None
    return sum(
        count * summarise(process.samples[case.singles[key].id], clock).latency_s for key, count in case.counts.items()
    )


def compile_s(case: NetworkCase, processes: Sequence[ProcessSamples]) -> float | None:
    """Return the median time in which processes compiled the network; None where the device does not report it."""
    reports = [one.load_reports[case.whole.id] for one in processes if case.whole.id in one.load_reports]
    return statistics.median(found) if (found := [one.compile_s for one in reports if one.compile_s]) else None


def on_cpu(case: NetworkCase, process: ProcessSamples) -> tuple[str, ...]:
    """Return the nodes that the device left to the CPU, by the names of the network."""
    report = process.load_reports.get(case.whole.id)
    names = {node.index: node.name for node in case.network.nodes}
    emitted = case.whole.model.names.nodes
    return tuple(names[emitted[node]] if node in emitted else node for node in report.on_cpu) if report else ()
