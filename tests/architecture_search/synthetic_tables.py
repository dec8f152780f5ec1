"""Tables for a search space with random latencies, errors and correlations, as several kinds of devices have them."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.search.mobile_space import mobile_space
from harness.architecture_search.search_space import SearchSpace
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.chain_rows import ChainRow
from harness.lut.error_correlations import pack
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry, Lut
from harness.measure.core_caches import HELD_CACHES
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.layers import Layer, context_of, cut, place_of
from harness.network.network import Network

RULES = (*DEFAULT_RULES, FusionRule("Conv(x0);Add(0,x1)"))


def table_of(space: SearchSpace, kind: str, seed: int = 0) -> Lut:
    """Return a table: `plain`, `neighbourhoods`, `chained`, `missing` or `predicted`.

    Tables with neighbourhoods list those of five candidates, the one of chains also the chains of these. Those with
    missing layers lack a third of them; only `predicted` has a predictor, and caches that some candidates fit into.
    """
    random = np.random.default_rng(seed)
    drawn = [[at % size for size in space.sizes] for at in range(max(space.sizes))]
    networks = [space.network_of(candidate) for candidate in drawn]
    weights_bytes = [network.constant_bytes(network.nodes) for network in networks]
    found: dict[tuple[str, str], Entry] = {}
    rows: list[ChainRow] = []
    for number, network in enumerate(networks):
        layers = cut(network, RULES)
        for at, layer in enumerate(layers):
            places = [context_of(network, layer)]
            if kind in ("neighbourhoods", "chained"):
                places.append(place_of(network, layers, at))
            for place in places:
                found.setdefault((layer.key.digest, place), _entry(layer, place, network, random))
            if kind == "chained":
                rows.append(_row(number, at, layer, places[-1], random))
    entries = tuple(found.values())
    if kind in ("missing", "predicted"):
        entries = tuple(entry for entry in entries if random.random() < 2 / 3)
    mixed = random.normal(size=(len(entries), 5)) * 1e-5
    spread = np.array([entry.remainder_stderr_s for entry in entries])
    correlations = pack(mixed @ mixed.T + np.diag(spread**2))
    table = Lut(
        path=Path("synthetic"),
        device="synthetic",
        created="2026-01-01T00:00:00+00:00",
        clock="cpu",
        method="joint",
        fingerprint={"core_cache_bytes": str(int(np.median(weights_bytes)) // HELD_CACHES)},
        overhead=_overhead(),
        rules=RULES,
        entries=entries,
        sum_error=0.02,
        interruptions=0.03,
        correlations=correlations,
        chains=tuple(rows),
        repeatability=0.01,
    )
    return dataclasses.replace(table, predictor=_predictor(entries, random)) if kind == "predicted" else table


def _predictor(entries: Sequence[Entry], random: np.random.Generator) -> bytes:
    """Return a predictor that has learnt from these entries and from those of a wider space, warm and slower cold."""
    space = SearchSpace.read(mobile_space((12, 20, 32), edge=32, blocks=1))
    found = {one.place: one for one in entries}
    for at in range(max(space.sizes)):
        network = space.network_of([at % size for size in space.sizes])
        for layer in cut(network, RULES):
            place = layer.key.digest, context_of(network, layer)
            found.setdefault(place, _entry(layer, place[1], network, random))
    warm = tuple(found.values())
    cold = (dataclasses.replace(one, visit="pool", latency_s=1.5 * one.latency_s) for one in warm)
    return _learnt((*warm, *cold))


@cache
def _learnt(entries: tuple[Entry, ...]) -> bytes:
    return learn_predictor(entries)


def _entry(layer: Layer, context: str, network: Network, random: np.random.Generator) -> Entry:
    written = sum(network.types[name].bytes for name in layer.graph.outputs)
    latency_s = float((1e-6 + 1e-9 * written) * random.uniform(0.8, 1.2))
    stderr_s = float(random.uniform(0.001, 0.05)) * latency_s
    remainder_s = latency_s if random.random() < 0.9 else latency_s / 2
    return Entry(
        key=layer.key.digest,
        context=context,
        op=layer.op,
        latency_s=latency_s,
        stderr_s=stderr_s,
        samples=10,
        resolved=True,
        visit="warm",
        flags="",
        networks=network.sha256[:8],
        campaign=1,
        probe="",
        baseline="",
        signature=layer.key.text,
        remainder_s=remainder_s,
        remainder_stderr_s=stderr_s,
    )


def _row(number: int, at: int, layer: Layer, context: str, random: np.random.Generator) -> ChainRow:
    sizes: Sequence[int] = random.choice([0, 512, 4096], 4).tolist()
    return ChainRow(f"{number:016x}", at // 3, layer.key.digest, context, *sizes, follows=at > 0)


def _overhead() -> Overhead:
    coefficients = {name: Coefficient(1e-9, 1e-11, 0.9e-9, 1.1e-9) for name in COLUMNS}
    covariance = tuple(tuple(1e-22 if row == column else 0.0 for column in COLUMNS) for row in COLUMNS)
    return Overhead(coefficients, covariance, dict.fromkeys(COLUMNS, 1e-9), 1.0, 1.0, 2.0, 0.01, 20, drift=0.005)
