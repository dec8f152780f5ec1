"""Predict networks without any of their layers, from a table alone: no device is measured.

    python -m benchmarks.accuracy.leave_one_out TABLE [--rows 100,200,400]

For each reference network the predictor learns from the entries of TABLE (a folder) whose layers the network does not
have, and predicts all of its layers. Their sum with the table's overhead is compared with the sum of the network's own
entries. Intervals are of 90 %. --rows also learns from that many random entries.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from harness.latency.overhead import row_of
from harness.lut.table import Entry, Lut
from harness.lut.table_files import read_lut
from harness.network.layers import context_of, cut
from harness.network.network_list import load_networks
from harness.network.zoo import NAMES
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.predictor.uncertainty.intervals import LEVEL, NORMAL_90
from harness.predictor.uncertainty.network_errors import stderr_of_sum
from harness.probe.overhead_terms import OverheadTerms


@dataclass(frozen=True)
class TabledNetwork:
    """A network as the table lists it: `layers` are texts of keys with latencies in seconds."""

    name: str
    overhead_s: float
    layers: tuple[tuple[str, float], ...]

    @property
    def latency_s(self) -> float:
        """The sum of layers and overhead."""
        return self.overhead_s + sum(latency_s for _, latency_s in self.layers)


@dataclass(frozen=True)
class Outcome:
    """A network that was left out: relative errors of it and its layers, and whether their intervals hold."""

    name: str
    rows: int
    error: float
    half_width: float
    layer_errors: tuple[float, ...]
    weighted_error: float
    held: tuple[bool, ...]
    coverage: tuple[str, ...]


def measured_networks(table: Lut) -> list[TabledNetwork]:
    """Return the reference networks whose layers the table has."""
    found = []
    for network in load_networks([f"builtin:{name}" for name in NAMES], None):
        layers = cut(network, table.rules)
        entries = [table.find(layer.key.digest, context_of(network, layer)) for layer in layers]
        terms = OverheadTerms(input_bytes=network.input_bytes, output_bytes=network.output_bytes)
        overhead_s, _ = table.overhead.of(row_of(terms))
        known = [(entry.signature, entry.latency_s) for entry in entries if entry is not None]
        if len(known) == len(layers):
            found.append(TabledNetwork(network.name, overhead_s, tuple(known)))
    return found


def samples_of(entries: Sequence[Entry], networks: Sequence[TabledNetwork]) -> list[TrainingExample]:
    """Return the training examples, with the networks that each layer occurs in."""
    sources: dict[str, set[str]] = {}
    for network in networks:
        for signature, _ in network.layers:
            sources.setdefault(signature, set()).add(network.name)
    described = [(entry, describe(entry.signature)) for entry in entries]
    return [
        TrainingExample(layer, entry.latency_s, entry.stderr_s, frozenset(sources.get(entry.signature, ())))
        for entry, layer in described
        if layer is not None
    ]


def left_out(entries: Sequence[Entry], networks: Sequence[TabledNetwork], asked: TabledNetwork) -> Outcome:
    """Predict one network from the layers that it does not have."""
    own = {signature for signature, _ in asked.layers}
    others = [network for network in networks if network is not asked]
    samples = samples_of([entry for entry in entries if entry.signature not in own], others)
    predictor = fit_predictor(samples)
    layers = [_described(signature) for signature, _ in asked.layers]
    found = predictor.predict_all(layers)
    latency_s = asked.overhead_s + sum(each.latency_s for each in found)
    distinct = {signature: (each, layer_s) for (signature, layer_s), each in zip(asked.layers, found, strict=True)}
    pairs = list(zip(found, [layer_s for _, layer_s in asked.layers], strict=True))
    return Outcome(
        asked.name,
        len(samples),
        latency_s / asked.latency_s - 1.0,
        NORMAL_90 * stderr_of_sum(layers, found) / latency_s,
        tuple(each.latency_s / layer_s - 1.0 for each, layer_s in distinct.values()),
        sum(abs(each.latency_s - layer_s) for each, layer_s in pairs) / sum(layer_s for _, layer_s in pairs),
        tuple(each.low_s <= layer_s <= each.high_s for each, layer_s in distinct.values()),
        tuple(each.coverage.value for each, _ in distinct.values()),
    )


def _described(signature: str) -> LayerFeatures:
    layer = describe(signature)
    if layer is None:
        raise SystemExit(f"{signature[:80]} is not a key of this version")
    return layer


def show(outcomes: Sequence[Outcome]) -> None:
    """Print figures over all networks."""
    errors = np.abs([outcome.error for outcome in outcomes])
    held = [hit for outcome in outcomes for hit in outcome.held]
    networks_held = sum(abs(outcome.error) <= outcome.half_width for outcome in outcomes)
    print(f"\nnetworks: median {np.median(errors):.1%}, mean {np.mean(errors):.1%}, within 5 %:", end=" ")
    print(
        f"{np.sum(errors <= 0.05)}, within 10 %: {np.sum(errors <= 0.1)} of {len(outcomes)}; intervals hold in", end=" "
    )
    print(f"{networks_held}, p of {LEVEL:.0%}: {binomtest(networks_held, len(outcomes), LEVEL).pvalue:.2g}")
    print(f"layers: {statistics.mean(held):.1%} of {len(held)} intervals hold", end="")
    for name, hits in by_coverage(outcomes).items():
        print(f"; {name} {statistics.mean(hits):.1%} of {len(hits)}", end="")
    print()


def by_coverage(outcomes: Sequence[Outcome]) -> Mapping[str, list[bool]]:
    """Return whether intervals hold, by class of coverage."""
    found: dict[str, list[bool]] = {}
    for outcome in outcomes:
        for name, hit in zip(outcome.coverage, outcome.held, strict=True):
            found.setdefault(name, []).append(hit)
    return found


def line(outcome: Outcome) -> str:
    """Return a row of the table."""
    return (
        f"| {outcome.name} | {outcome.rows} | {outcome.error:+.1%} | ±{outcome.half_width:.1%} "
        f"| {'yes' if abs(outcome.error) <= outcome.half_width else 'no'} "
        f"| {statistics.median(map(abs, outcome.layer_errors)):.1%} | {outcome.weighted_error:.1%} "
        f"| {statistics.mean(outcome.held):.0%} |"
    )


def every_network(entries: Sequence[Entry], networks: Sequence[TabledNetwork]) -> list[Outcome]:
    """Leave out one network after the other, and print the results."""
    print(
        "\n| network | training entries | error | interval | holds | median error of layers | by time | layers held |"
    )
    print("|---|---|---|---|---|---|---|---|")
    outcomes = []
    for network in networks:
        outcomes.append(left_out(entries, networks, network))
        print(line(outcomes[-1]), flush=True)
    show(outcomes)
    return outcomes


def main() -> None:
    """Leave out networks of a table, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="folder of the table")
    parser.add_argument("--rows", default="", help="numbers of random entries to learn from, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random entries")
    given = parser.parse_args()
    table = read_lut(given.table)
    networks = measured_networks(table)
    every_network(table.entries, networks)
    order = np.random.default_rng(given.seed).permutation(len(table.entries))
    for count in map(int, filter(None, given.rows.split(","))):
        print(f"\nwith {count} random entries")
        every_network([table.entries[at] for at in order[:count]], networks)


if __name__ == "__main__":
    main()
