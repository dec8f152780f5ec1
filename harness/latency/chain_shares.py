"""Each layer's share of its chain's latency, by the two queues that its layers share.

A chain keeps two queues busy: one computes, the other moves tensors over the chain's borders, and weights.

    chain   = (compute^p + moved^p)^(1/p)
    compute = sum over layers of (a * context^2 - weights^2)^(1/2)
    moved   = sum over layers of small_rate * small borders + large_rate * large borders + weights
    weights = large_rate * bytes of weights, at most a * context

Small borders fit into a cache; large ones are read from the same memory as weights. In its context a layer's borders
are on chip and its weights are not, so the context's time includes the weights. The constants a and p, both rates, and
the size of large borders are fitted to all chains of a campaign. A chain's time is the sum of its layers' parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from harness.array_types import Floats
from harness.latency.chain_latencies import ChainLatencies
from harness.latency.layer_latency import Latency
from harness.probe.chain_plan import ChainProbes

MODEL_ERROR = 0.05
"""Relative error of the model on any chain."""
USUAL_DOUBT = 0.3
"""Relative error of a layer's part where there are too few chains to estimate it."""
_UNKNOWNS = 4
_HELD = 0.9
"""Share of the chains whose intervals of that level hold them."""
_Z_HELD = 1.645
_USUAL_POWER = 4.0
_USUAL_MOVED = 0.5
_PULL = 0.3
_LEAST_COMPUTE = 0.1
_MOST_SIZES = 64
_TINY_S = 1e-15


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


@dataclass(frozen=True)
class ChainLayers:
    """The layers of all chains: `chain` is the index of each layer's chain, in ascending order.

    `context_s` is its time in its context; `borders` are the sizes in bytes of the tensors that it moves over the
    chain's borders.
    """

    chain: Sequence[int]
    context_s: Floats
    borders: Sequence[Sequence[int]]
    weight_bytes: Floats


@dataclass(frozen=True)
class ChainFractions:
    """Each layer's fraction of its chain, and its standard error before the fractions are made to add up to one."""

    values: Floats
    doubts: Floats


@dataclass(frozen=True)
class _QueueTimes:
    """Seconds by layer and queue, and by queue and chain, at some values of the unknowns."""

    compute: Floats
    moved: Floats
    queues: tuple[Floats, Floats]
    power: float

    @property
    def computing(self) -> Floats:
        """The weight of the computing queue in each chain's time, from 0 to 1."""
        computing, moving = (np.log(queue) * self.power for queue in self.queues)
        weight: Floats = np.exp(computing - np.logaddexp(computing, moving))
        return weight

    @property
    def log_total(self) -> Floats:
        """Logarithm of each chain's seconds."""
        one, other = (np.log(queue) * self.power for queue in self.queues)
        total: Floats = np.logaddexp(one, other) / self.power
        return total


def fractions_of(layers: ChainLayers, chains_s: Floats, stderr_s: Floats) -> ChainFractions:
    """Fit the queues to chains of `chains_s` seconds, and divide each chain among its layers.

    A layer's standard error has two sources. One is the chains' residuals beyond their own errors, divided among the
    layers; the other the difference between its fractions of the two queues where neither dominates.
    """
    relative = stderr_s / chains_s
    found = min((_fit(layers, size, chains_s, relative) for size in _sizes(layers)), key=lambda fit: fit[0])
    times, owner = found[1], np.asarray(layers.chain, int)
    compute, moved = times.compute / times.queues[0][owner], times.moved / times.queues[1][owner]
    decides = times.computing[owner]
    parts = decides * compute + (1 - decides) * moved
    # Independent errors of layers add up to a chain's error by the root of their squares.
    spread = np.sqrt(np.bincount(owner, parts**2, len(chains_s)))
    beyond = np.maximum(0.0, ((times.log_total - np.log(chains_s)) / _Z_HELD) ** 2 - relative**2)
    seen = np.append(np.sqrt(beyond) / spread, np.full(_UNKNOWNS, USUAL_DOUBT))
    error = float(np.quantile(seen, _HELD))
    return ChainFractions(parts, np.hypot(error * parts, np.sqrt(decides * (1 - decides)) * (compute - moved)))


def _sizes(layers: ChainLayers) -> Sequence[float]:
    """Return the sizes to try as the smallest large border: between any two neighbouring sizes, or some of these."""
    known = np.unique([size for sizes in layers.borders for size in sizes if size])
    between = np.sqrt(known[1:] * known[:-1].astype(float))
    if len(between) > _MOST_SIZES:
        between = between[np.linspace(0, len(between) - 1, _MOST_SIZES).round().astype(int)]
    return [0.0, *between.tolist()]


def _fit(layers: ChainLayers, large_bytes: float, chains_s: Floats, relative: Floats) -> tuple[float, _QueueTimes]:
    """Return the cost of the best values of the unknowns for one size, and the queues' times at these."""
    small = np.array([sum(size for size in sizes if size < large_bytes) for sizes in layers.borders], float)
    large = np.array([sum(sizes) for sizes in layers.borders], float) - small
    member = np.equal.outer(np.arange(len(chains_s)), np.asarray(layers.chain)).astype(float)
    moved_bytes = max(1.0, float((small + large + layers.weight_bytes).sum()))
    usual_rate = _USUAL_MOVED * float(layers.context_s.sum()) / moved_bytes
    usual = np.array([0.0, np.log(usual_rate), np.log(usual_rate), np.log(_USUAL_POWER - 1)])

    def times(unknowns: Floats) -> _QueueTimes:
        scale, small_rate, large_rate, overlap = np.exp(unknowns)
        context = scale * layers.context_s
        weights = np.minimum(large_rate * layers.weight_bytes, context)
        compute = np.maximum(np.sqrt(context**2 - weights**2), _LEAST_COMPUTE * context)
        moved = small_rate * small + large_rate * large + weights + _TINY_S
        queues: tuple[Floats, Floats] = (member @ compute, member @ moved)
        return _QueueTimes(compute, moved, queues, 1 + overlap)

    def misfit(unknowns: Floats) -> Floats:
        off = (times(unknowns).log_total - np.log(chains_s)) / np.hypot(MODEL_ERROR, relative)
        return np.append(off, _PULL * (unknowns - usual))

    fitted = least_squares(misfit, usual, loss="soft_l1")
    return float(fitted.cost), times(fitted.x)
