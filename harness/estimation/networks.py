"""`harness.estimate`: whole networks from a lookup table, without a device (S1.8)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.latency.overhead import row_of
from harness.lut.store import open_table
from harness.lut.table import Entry, Lut
from harness.measure.summary import Z_95
from harness.network.graph import FreeNode, Network
from harness.network.layers import Layer, cut
from harness.network.models import load_networks
from harness.probe.plan import context_of
from harness.probe.terms import Terms
from harness.workspace import Workspace

COVERAGE_CLASSES = ("measured", "interpolated", "extrapolated", "unknown")


@dataclass(frozen=True)
class LayerEstimate:
    """One layer of a network; latency and error are None where the table does not hold it.

    `context` says where the layer's inputs come from, which makes two latencies of one key.
    """

    name: str
    op: str
    key: str
    latency_s: float | None
    stderr_s: float | None
    source: str
    context: str = ""


@dataclass(frozen=True)
class NetworkEstimate:
    """The latency of a network.

    `latency_s` and its 95 % `interval_s` are None where a layer is unknown; `covered_latency_s` then holds
    what is known. `coverage` counts layers by class, `overhead_s` is a, b, c at the network's own sizes.
    """

    name: str
    latency_s: float | None
    interval_s: tuple[float, float] | None
    covered_latency_s: float
    overhead_s: float
    coverage: Mapping[str, int]
    layers: tuple[LayerEstimate, ...]
    free: tuple[FreeNode, ...]

    @property
    def unknown(self) -> tuple[LayerEstimate, ...]:
        """Layers that the table does not hold."""
        return tuple(layer for layer in self.layers if layer.source == "unknown")


def estimate(
    models: Sequence[str],
    *,
    device: str | None = None,
    lut: Path | None = None,
    workspace: Workspace | None = None,
    dims: Mapping[str, int] | None = None,
) -> tuple[NetworkEstimate, ...]:
    """Estimates networks from the newest table of `device`, or from the table in the folder `lut`."""
    table = open_table(device, lut, workspace)
    return tuple(estimate_network(network, table) for network in load_networks(models, dims))


def estimate_network(network: Network, table: Lut) -> NetworkEstimate:
    """Cuts the network by the table's fusion rules and sums what the table says of its layers."""
    layers = cut(network, table.rules)
    contexts = [context_of(network, layer) for layer in layers]
    found = [table.find(layer.key.digest, context) for layer, context in zip(layers, contexts, strict=True)]
    estimates = tuple(map(_layer, layers, contexts, found))
    known = [entry for entry in found if entry is not None]
    terms = Terms(input_bytes=network.input_bytes, output_bytes=network.output_bytes)
    overhead_s, overhead_variance = table.overhead.of(row_of(terms))
    covered_s = sum(entry.latency_s for entry in known) + overhead_s
    complete = len(known) == len(layers)
    coverage = dict.fromkeys(COVERAGE_CLASSES, 0) | dict(Counter(layer.source for layer in estimates))
    stderr_s = math.sqrt(_variance(table, known) + overhead_variance + (table.overhead.scatter * covered_s) ** 2)
    return NetworkEstimate(
        name=network.name,
        latency_s=covered_s if complete else None,
        interval_s=(max(0.0, covered_s - Z_95 * stderr_s), covered_s + Z_95 * stderr_s) if complete else None,
        covered_latency_s=covered_s,
        overhead_s=overhead_s,
        coverage=coverage,
        layers=estimates,
        free=network.free,
    )


def _layer(layer: Layer, context: str, entry: Entry | None) -> LayerEstimate:
    latency_s, stderr_s = (entry.latency_s, entry.stderr_s) if entry else (None, None)
    source = "measured" if entry else "unknown"
    return LayerEstimate(layer.name, layer.op, layer.key.digest, latency_s, stderr_s, source, context)


def _variance(table: Lut, entries: Sequence[Entry]) -> float:
    """Of the sum: a repeated entry errs the same way each time, others as far as the table says."""
    if not entries:
        return 0.0
    at = {(entry.key, entry.context): number for number, entry in enumerate(table.entries)}
    return table.variance(Counter(at[entry.key, entry.context] for entry in entries))
