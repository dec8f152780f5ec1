"""Compare a table with the layer times that the device itself reports in a validation session.

An emulated device reports the true times; a runtime reports its own profile, the nearest thing to the truth, which
differs from process to process. Code that measures or builds tables never reads either.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.device.session import Truth
from harness.errors import ProtocolError
from harness.estimation.layer_estimates import LayerEstimate
from harness.latency.overhead import Overhead
from harness.network.assemble import EmittedNames
from harness.network.disjoint_sets import DisjointSets
from harness.network.layers import Layer

if TYPE_CHECKING:
    from harness.estimation.network_estimate import NetworkEstimate

COUNTED_SHARE = 0.01
"""The summary omits layers that take less than this share of their network's latency."""
LONG_LAYER_S = 50e-6
"""The summary gives a separate mean error for longer layers."""
_HIGH = 0.95


@dataclass(frozen=True)
class CoefficientTruth:
    """The true and the fitted value of an overhead coefficient; `error` is None if the true value is zero."""

    true: float
    fitted: float
    error: float | None


@dataclass(frozen=True)
class LayerTruth:
    """One layer, or several that the device executes as one, in their network.

    `error` is (estimated - true) / true, None if the true time is zero; `share` is the fraction of the network's
    latency, the estimated overhead included, as in estimates. `processes_s` are the times that separate processes
    reported; `true_s` is their mean.
    """

    name: str
    op: str
    true_s: float
    estimated_s: float
    share: float
    error: float | None
    processes_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class NetworkTruth:
    """The device's own time for a network, without the host, and the sum of its layers' estimates.

    `unassigned_s` is the part of `true_s` spent on no node of the network, such as the device's own copies.
    """

    name: str
    true_s: float
    estimated_s: float
    unassigned_s: float
    layers: tuple[LayerTruth, ...]


@dataclass(frozen=True)
class OracleReport:
    """Errors of the fitted a, b, c and of every layer's estimate.

    `overhead` is empty if the device does not report a, b and c. `median_error` and `p95_error` are over the absolute
    errors of the `counted` layers, those above COUNTED_SHARE of their network's latency. Over all layers,
    `time_weighted_error` is the sum of |estimated - true| over the sum of the true latencies, and `mean_error_long`
    the mean absolute error of those longer than LONG_LAYER_S. Each is None if there is no such layer.
    `repeatability` is the time-weighted difference of one process's report from the mean of the others', over all
    layers: no error below it means anything. It is None where a single process reported.
    """

    overhead: Mapping[str, CoefficientTruth]
    networks: tuple[NetworkTruth, ...]
    counted: int
    median_error: float | None
    p95_error: float | None
    time_weighted_error: float | None
    mean_error_long: float | None
    repeatability: float | None = None

    def worst(self, count: int) -> tuple[tuple[str, LayerTruth], ...]:
        """Return the counted layers with the largest errors, each with its network's name."""
        found = [(network.name, layer) for network in self.networks for layer in _counted(network)]
        return tuple(sorted(found, key=lambda item: -abs(item[1].error or 0.0))[:count])


def compare_network(
    estimated: NetworkEstimate, layers: Sequence[Layer], names: EmittedNames, truths: Sequence[Truth]
) -> NetworkTruth:
    """Compare each layer's estimate with the device's time for the nodes of that layer, the mean over `truths`.

    Each truth is the report of one process. Several device layers within one of the network's are added up; network
    layers that one device layer spans are compared together. `names` are those of the model sent to the device.
    Raises ProtocolError if the device names a node that the model does not have.
    """
    owner = {node.index: at for at, layer in enumerate(layers) for node in layer.graph.nodes}
    together = DisjointSets(range(len(layers)))
    true_s = np.zeros((len(truths), len(layers)))
    unassigned_s = 0.0
    for process, truth in enumerate(truths):
        for executed in truth.layers:
            unknown = next((node for node in executed.nodes if node not in names.nodes), None)
            if unknown is not None:
                raise ProtocolError(f"The oracle names a node {unknown[:40]!r} that was not sent")
            touched = [owner[names.nodes[node]] for node in executed.nodes]
            if touched:
                together.join(touched)
                true_s[process, touched[0]] += executed.latency_s
            else:
                unassigned_s += executed.latency_s / len(truths)
    makespan_s = statistics.fmean(truth.makespan_s for truth in truths)
    whole_s = makespan_s + max(0.0, estimated.overhead_s)
    compared = [
        _compare([estimated.layers[at] for at in group], tuple(map(float, true_s[:, group].sum(axis=1))), whole_s)
        for group in map(list, together.groups())
    ]
    estimated_s = sum(one.estimated_s for one in compared)
    return NetworkTruth(estimated.name, makespan_s, estimated_s, unassigned_s, tuple(compared))


def report_truth(fitted: Overhead, truth: Truth, networks: Sequence[NetworkTruth]) -> OracleReport:
    """Return the summary over the networks of one device; all its reports hold the same overhead."""
    layers = [layer for network in networks for layer in network.layers]
    errors = [abs(layer.error or 0.0) for network in networks for layer in _counted(network)]
    long = [abs(layer.error or 0.0) for layer in layers if layer.true_s > LONG_LAYER_S]
    true_s = sum(layer.true_s for layer in layers)
    return OracleReport(
        overhead=_compare_overhead(fitted, truth),
        networks=tuple(networks),
        counted=len(errors),
        median_error=float(np.quantile(errors, 0.5)) if errors else None,
        p95_error=float(np.quantile(errors, _HIGH)) if errors else None,
        time_weighted_error=sum(abs(one.estimated_s - one.true_s) for one in layers) / true_s if true_s else None,
        mean_error_long=sum(long) / len(long) if long else None,
        repeatability=layer_floor(layers),
    )


def layer_floor(layers: Sequence[LayerTruth]) -> float | None:
    """Return how far one process's times are from the mean of the others', weighted by time; None for one process."""
    several = [np.array(layer.processes_s) for layer in layers if len(layer.processes_s) > 1]
    true_s = sum(float(times.mean()) for times in several)
    if not true_s:
        return None
    # The difference from the mean of the others is n / (n - 1) times the difference from the mean of all.
    apart_s = [float(abs(times - times.mean()).mean()) * len(times) / (len(times) - 1) for times in several]
    return sum(apart_s) / true_s


def _compare_overhead(fitted: Overhead, truth: Truth) -> dict[str, CoefficientTruth]:
    if truth.overhead is None:
        return {}
    pairs = {
        "a_s_per_byte": (truth.overhead.a_s_per_byte, fitted.a.value),
        "b_s_per_byte": (truth.overhead.b_s_per_byte, fitted.b.value),
        "c_s": (truth.overhead.c_s, fitted.c.value),
    }
    return {name: CoefficientTruth(true, value, _error(value, true)) for name, (true, value) in pairs.items()}


def _compare(estimates: Sequence[LayerEstimate], processes_s: tuple[float, ...], whole_s: float) -> LayerTruth:
    true_s = statistics.fmean(processes_s)
    estimated_s = max(0.0, sum(one.remainder_s or 0.0 for one in estimates))
    return LayerTruth(
        name=" + ".join(one.name for one in estimates),
        op=" + ".join(one.op for one in estimates),
        true_s=true_s,
        estimated_s=estimated_s,
        share=true_s / whole_s if whole_s else 0.0,
        error=_error(estimated_s, true_s),
        processes_s=processes_s,
    )


def _counted(network: NetworkTruth) -> list[LayerTruth]:
    return [layer for layer in network.layers if layer.share > COUNTED_SHARE]


def _error(value: float, true: float) -> float | None:
    return value / true - 1 if true else None
