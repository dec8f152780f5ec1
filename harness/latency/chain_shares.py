"""Each layer's share of its chain's latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.latency.chain_latencies import ChainLatencies
from harness.latency.chain_queues import ChainLayers, fractions_of
from harness.latency.layer_latency import Latency
from harness.probe.chain_plan import ChainProbes


@dataclass(frozen=True)
class LayerShares:
    """Each layer's share of its chain's latency.

    `chains` are the indices of the chains and `places` the places of the layers, chain by chain; `values` in seconds
    and `covariance` in s² have their order.
    """

    chains: tuple[int, ...]
    places: tuple[tuple[str, str], ...]
    values: Floats
    covariance: Floats


def shares(latencies: ChainLatencies, layers: Mapping[tuple[str, str], Latency]) -> LayerShares:
    """Divide each chain among its layers by their work in its queues; `layers` are latencies in context by place.

    The covariance is that of the chains and of the charging of their meetings, divided likewise, plus the doubts of
    `fractions_of`, which leave each chain's sum unchanged. A layer not in `layers` counts as an average one of its
    chain, with a standard error of the same size.
    """
    chains = latencies.chains
    if not chains:
        return LayerShares((), (), np.zeros(0), np.zeros((0, 0)))
    owners = [at for at, chain in enumerate(chains) for _ in chain.places]
    in_context = [_in_context(chain, layers, whole_s) for chain, whole_s in zip(chains, latencies.values, strict=True)]
    in_queues = ChainLayers(
        owners,
        np.concatenate([context_s for context_s, _ in in_context]),
        [sizes for chain in chains for sizes in chain.borders or [()] * len(chain.places)],
        np.array([size for chain in chains for size in chain.weight_bytes or [0] * len(chain.places)], float),
    )
    of_chains = latencies.covariance + latencies.charging
    fractions = fractions_of(in_queues, latencies.values, np.sqrt(np.diag(of_chains)))
    lacking = np.concatenate([lacks for _, lacks in in_context])
    doubts = np.where(lacking, np.maximum(fractions.doubts, fractions.values), fractions.doubts)
    doubts *= latencies.values[owners]
    charged = np.zeros((len(owners), len(chains)))
    charged[range(len(owners)), owners] = fractions.values
    # An error of one layer is balanced by all layers of its chain in proportion: the chain's sum does not change.
    within = np.equal.outer(owners, owners)
    balance = np.eye(len(owners)) - fractions.values[:, None] * within
    covariance = charged @ of_chains @ charged.T + (balance * doubts**2) @ balance.T
    places = tuple(place for chain in chains for place in chain.places)
    return LayerShares(tuple(owners), places, charged @ latencies.values, covariance)


def _in_context(chain: ChainProbes, layers: Mapping[tuple[str, str], Latency], whole_s: float) -> tuple[Floats, Floats]:
    """Return each layer's time in context, in seconds, and whether it was not measured."""
    found = [layers.get(place) for place in chain.places]
    known = [one.latency_s for one in found if one is not None]
    average_s = sum(known) / len(known) if known else whole_s / len(found)
    return (
        np.array([average_s if one is None else one.latency_s for one in found]),
        np.array([one is None for one in found]),
    )
