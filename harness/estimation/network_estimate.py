"""`harness.estimate`: estimate whole networks from a lookup table, without a device (S1.8)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Self

from harness.arguments import checked
from harness.estimation.layer_estimates import PREDICTED, LayerEstimate, sum_of_layers
from harness.latency.overhead import row_of
from harness.lut.table import Lut
from harness.lut.table_choice import TableReference, open_lut
from harness.measure.noise.interruptions import lengthening
from harness.measure.summary import Z_95
from harness.network.keyed_network import KeyedNetwork, keyed
from harness.network.keyed_reading import read_keyed_networks
from harness.network.model_references import Models
from harness.network.network import FreeNode, Network, UnmeasuredNode
from harness.network.network_list import NetworksRead, RefusedNetwork
from harness.notebook import BarPlot, LatencyBar, frame, html_table
from harness.probe.overhead_terms import transfers
from harness.text import microseconds, milliseconds
from harness.workspace import AnyWorkspace

if TYPE_CHECKING:
    import pandas

COVERAGE_CLASSES = ("measured", *PREDICTED, "unknown")
LAYERS_DRAWN = 25


@dataclass(frozen=True)
class NetworkEstimate:
    """The latency of a network.

    `latency_s` and its 95 % `interval_s` are None if a layer is unknown; `covered_latency_s` is the sum of the others.
    `coverage` counts layers by class; `overhead_s` is a, b, c at the network's own sizes, and on a device with its own
    memory what moving inputs and outputs takes beyond the layers. The `unmeasured` nodes, whose sizes depend on the
    data or whose results are not numbers, are in no figure.
    """

    name: str
    latency_s: float | None
    interval_s: tuple[float, float] | None
    covered_latency_s: float
    overhead_s: float
    coverage: Mapping[str, int]
    layers: tuple[LayerEstimate, ...]
    free: tuple[FreeNode, ...]
    unmeasured: tuple[UnmeasuredNode, ...] = ()

    @property
    def predicted_share(self) -> float:
        """The part of the latency that layers take which were predicted, not measured."""
        return sum(one.share_of(self.covered_latency_s) for one in self.layers if one.source in PREDICTED)

    @property
    def unknown(self) -> tuple[LayerEstimate, ...]:
        """Layers that are neither measured nor predicted."""
        return tuple(layer for layer in self.layers if layer.source == "unknown")

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with the fields of one layer in each row."""
        return frame([asdict(layer) for layer in self.layers], [each.name for each in fields(LayerEstimate)])

    def plot(self, most: int = LAYERS_DRAWN) -> BarPlot:
        """Return a plot of the `most` layers that take longest, predicted ones in another colour."""
        known = [layer for layer in self.layers if layer.latency_s is not None]
        longest = sorted(known, key=lambda layer: -(layer.latency_s or 0.0))[:most]
        title = f"{self.name}: {len(longest)} of {len(self.layers)} layers, by latency"
        return BarPlot(title, tuple(map(_bar, longest)))

    def __repr__(self) -> str:
        latency = f"{_ms(self.latency_s)} ms, " if self.interval_s else ""
        return (
            f"<{self.name}: {latency}{_interval(self)}, {self.coverage['measured']}/{len(self.layers)} layers measured>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (layer.name, layer.op, _us(layer.latency_s), _us(layer.stderr_s, Z_95), layer.source)
            for layer in self.layers
        ]
        header = ("layer", "operators", "latency µs", "± 95 %", "source")
        return html_table(f"{self.name}: {_ms(self.latency_s)} ms, {_interval(self)}", header, rows)


class NetworkEstimates(tuple[NetworkEstimate, ...]):
    """The estimates of a list of networks, and the networks that were refused."""

    refused_networks: tuple[RefusedNetwork, ...]

    @classmethod
    def of(cls, networks: NetworksRead[KeyedNetwork], table: Lut) -> Self:
        """Estimate the networks that can be used."""
        found = cls(estimate_network(network, table) for network in networks.networks)
        found.refused_networks = networks.refused
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with one network in each row: latency, the ends of its interval, and the coverage."""
        columns = ("name", "latency_s", "low_s", "high_s", "covered_latency_s", "overhead_s", *COVERAGE_CLASSES)
        rows = [
            dict(zip(columns, (*_figures(one), *(one.coverage[kind] for kind in COVERAGE_CLASSES)), strict=True))
            for one in self
        ]
        return frame(rows, columns)

    def plot(self) -> BarPlot:
        """Return a plot of the latency of each network and its interval."""
        bars = (
            LatencyBar(one.name, one.covered_latency_s, one.interval_s, not one.unknown, len(one.unknown))
            for one in self
        )
        return BarPlot("Estimated latency with 95 % intervals", tuple(bars))

    def _repr_html_(self) -> str:
        rows = [
            (one.name, _ms(one.latency_s), _interval(one), f"{one.coverage['measured']}/{len(one.layers)}")
            for one in self
        ]
        refused = [(one.file, "", f"refused: {one.what}", "") for one in self.refused_networks]
        header = ("network", "latency ms", "95 % interval", "layers measured")
        return html_table("Estimated latency", header, [*rows, *refused])


@checked()
def estimate(
    models: Models,
    *,
    device: str | None = None,
    lut: TableReference = None,
    workspace: AnyWorkspace = None,
    strict: bool = False,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    threads: int | None = None,
) -> NetworkEstimates:
    """Estimate networks from the newest table of `device`, or from the table `lut`, given as in `open_lut`.

    `models` is a path, `builtin:NAME`, an `onnx.ModelProto`, or a list of these. `batch` sets the leading dimension of
    all inputs; the table is the newest one for this batch and these threads. Networks that are refused are left out and
    listed in `refused_networks` of the result; with `strict`, or if all are refused, the refusal is raised.
    """
    table = open_lut(device, lut=lut, workspace=workspace, batch=batch, threads=threads)
    return NetworkEstimates.of(read_keyed_networks(models, table.rules, dims, batch=batch, strict=strict), table)


def estimate_network(network: Network | KeyedNetwork, table: Lut) -> NetworkEstimate:
    """Add up the latencies of the layers of a network, cut by the table's fusion rules; see `sum_of_layers`."""
    network = keyed(network, table.rules) if isinstance(network, Network) else network
    layers = sum_of_layers(network, table)
    terms = transfers(network.input_sizes, network.output_sizes)
    overhead_s, overhead_variance_s2 = table.overhead.of(row_of(terms))
    exchange_s, exchange_variance_s2 = table.overhead.exchange(network.whole_input_bytes, terms.output_bytes)
    layers_s = max(0.0, layers.latency_s)
    if exchange_s and exchange_s + layers.loads_s > layers_s:
        overhead_s += exchange_s + layers.loads_s - layers_s
        overhead_variance_s2 += exchange_variance_s2
    factor, doubt = lengthening(layers_s + overhead_s, table.interruptions)
    layers, overhead_s = layers.times(factor), overhead_s * factor
    covered_s = max(0.0, layers.latency_s) + overhead_s
    complete = all(layer.latency_s is not None for layer in layers.estimates)
    coverage = dict.fromkeys(COVERAGE_CLASSES, 0) | dict(Counter(layer.source for layer in layers.estimates))
    sum_error = table.network_errors.get(network.sha256[:16], table.sum_error)
    common = (sum_error**2 + table.overhead.drift**2 + table.repeatability**2 + doubt**2) * covered_s**2
    stderr_s = math.sqrt(layers.variance_s2 + factor**2 * overhead_variance_s2 + common)
    return NetworkEstimate(
        name=network.name,
        latency_s=covered_s if complete else None,
        interval_s=(max(0.0, covered_s - Z_95 * stderr_s), covered_s + Z_95 * stderr_s) if complete else None,
        covered_latency_s=covered_s,
        overhead_s=overhead_s,
        coverage=coverage,
        layers=layers.estimates,
        free=network.free,
        unmeasured=network.unmeasured,
    )


def _figures(one: NetworkEstimate) -> tuple[str | float | None, ...]:
    low_s, high_s = one.interval_s or (None, None)
    return one.name, one.latency_s, low_s, high_s, one.covered_latency_s, one.overhead_s


def _bar(layer: LayerEstimate) -> LatencyBar:
    latency_s, reach_s = layer.latency_s or 0.0, Z_95 * (layer.stderr_s or 0.0)
    interval_s = max(0.0, latency_s - reach_s), latency_s + reach_s
    return LatencyBar(layer.name, latency_s, interval_s, layer.source not in PREDICTED)


def _us(seconds: float | None, factor: float = 1.0) -> str:
    return "unknown" if seconds is None else microseconds(factor * seconds)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else milliseconds(seconds)


def _interval(one: NetworkEstimate) -> str:
    if one.interval_s is None:
        return f"at least {milliseconds(one.covered_latency_s)} ms, without {len(one.unknown)} unknown layers"
    return f"[{milliseconds(one.interval_s[0])}, {milliseconds(one.interval_s[1])}]"
