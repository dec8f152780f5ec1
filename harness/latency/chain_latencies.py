"""Latencies of chains of layers from windows of a network, and what of a chain each of its layers takes.

A network takes the sum of its chains and of their meetings. A meeting is charged to both chains in proportion to what
they take by themselves, and how it is to be charged is in doubt. Chains have errors in common where they share
windows, what stands in front of these, and the overhead; the covariance says so.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.latency.chain_queues import ChainLayers, parts_of
from harness.latency.layer_latency import Latency
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.sparse_system import Solution
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SIGNED = ("chain ", "meeting ")
"""What the names of unknowns begin with that may come out negative."""
LEAST_SHARE = 0.1
"""Of a chain by itself, that stays charged to it where it meets the next one in less time."""
_LEAST_S = 1e-12


@dataclass(frozen=True)
class ChainLatencies:
    """What chains take in their networks, in seconds, each with its part of its meetings; always positive.

    `covariance` in s² has the order of `chains`, and is that of what was measured. `charging` is that of how meetings
    are charged: a meeting might be either of its chains' alone, which is an error that both have the other way round.
    """

    chains: tuple[ChainProbes, ...]
    values: Array
    covariance: Array
    charging: Array


@dataclass(frozen=True)
class LayerShares:
    """What of the chains' latencies each of their layers takes.

    `chains` are indices of the chains, and `places` those of the layers, chain by chain; `values` in seconds and
    `covariance` in s² have their order.
    """

    chains: tuple[int, ...]
    places: tuple[tuple[str, str], ...]
    values: Array
    covariance: Array


def chain_equations(
    chains: Sequence[ChainProbes], terms: Mapping[str, OverheadTerms], measured: Collection[str]
) -> dict[tuple[str, ...], tuple[str, Mapping[str, float]]]:
    """For each equation the probe whose total it explains, and how much of each unknown that holds.

    Amounts are those of the overhead's columns, and one of each content. `chains` of a network follow each other, as
    planned; those with a window that is not among the `measured` have no equation.
    """
    equations: dict[tuple[str, ...], tuple[str, Mapping[str, float]]] = {}

    def add(name: tuple[str, ...], probe: str, *contents: str) -> None:
        overhead = dict(zip(COLUMNS, row_of(terms[probe]), strict=True))
        # Two equal chains that follow each other are twice the same unknown.
        equations[name] = (probe, {**overhead, **Counter(contents)})

    for chain, behind in _with_next(chains):
        if not _known(chain, measured):
            continue
        front = _front(chain.alone_null)
        if front:
            add((chain.alone_null,), chain.alone_null, *front)
        add((chain.alone,), chain.alone, *front, _chain(chain))
        if behind is None or not _meets(chain, behind, measured):
            continue
        front = _front(chain.meeting_null)
        if front:
            add((chain.meeting_null,), chain.meeting_null, *front)
        contents = (*front, _chain(chain), _chain(behind), _meeting(chain, behind))
        add((chain.meeting, chain.alone, behind.alone), chain.meeting, *contents)
    return equations


def chain_latencies(chains: Sequence[ChainProbes], solution: Solution) -> ChainLatencies:
    """The chains that the solution knows, each with its part of its meetings with the ones in front and behind.

    Where these would leave a chain with less than LEAST_SHARE of what it takes by itself, its neighbours are charged
    with the rest: sums over networks stay what they are.
    """
    import numpy as np

    names = frozenset(solution.names)
    known = [(chain, behind) for chain, behind in _with_next(chains) if _chain(chain) in names]
    alone = [solution.index(_chain(chain)) for chain, _ in known]
    alone_s = np.maximum(solution.values[alone], _LEAST_S)
    charged = np.zeros((len(known), len(solution.names)))
    charged[range(len(known)), alone] = 1.0
    charging = np.zeros((len(known), len(known)))
    for at, (chain, behind) in enumerate(known):
        if behind is None or _meeting(chain, behind) not in names:
            continue
        meeting = solution.index(_meeting(chain, behind))
        both = [at, at + 1]
        parts = alone_s[both] / alone_s[both].sum()
        charged[both, meeting] += parts
        # What may be a meeting's own error is in the covariance already.
        beyond = max(0.0, float(solution.values[meeting] ** 2 - solution.covariance[meeting, meeting]))
        charging[np.ix_(both, both)] += beyond * parts.prod() * np.array([[1.0, -1.0], [-1.0, 1.0]])
    values = charged @ solution.values
    floors = np.maximum(_LEAST_S, LEAST_SHARE * alone_s)
    start = 0
    for _, group in itertools.groupby(known, key=lambda one: one[0].network):
        stop = start + sum(1 for _ in group)
        values[start:stop] = _charged(values[start:stop], floors[start:stop])
        start = stop
    covariance = charged @ solution.covariance @ charged.T
    return ChainLatencies(tuple(chain for chain, _ in known), values, covariance, charging)


def shares(latencies: ChainLatencies, layers: Mapping[tuple[str, str], Latency]) -> LayerShares:
    """Splits each chain by what its layers do in the chain's queues; `layers` are in their contexts, by their places.

    The covariance is that of the chains and of how their meetings are charged, split likewise, and a part that leaves
    each chain's sum as it is: the doubts of `parts_of`. A layer that is not in `layers` is taken for an average one of
    its chain, and is as uncertain as that is long.
    """
    import numpy as np

    chains = latencies.chains
    if not chains:
        return LayerShares((), (), np.zeros(0), np.zeros((0, 0)))
    owners = [at for at, chain in enumerate(chains) for _ in chain.places]
    in_context = [_in_context(chain, layers, whole_s) for chain, whole_s in zip(chains, latencies.values, strict=True)]
    work = ChainLayers(
        owners,
        np.concatenate([context_s for context_s, _ in in_context]),
        [sizes for chain in chains for sizes in chain.borders or [()] * len(chain.places)],
        np.array([size for chain in chains for size in chain.weight_bytes or [0] * len(chain.places)], float),
    )
    of_chains = latencies.covariance + latencies.charging
    split = parts_of(work, latencies.values, np.sqrt(np.diag(of_chains)))
    lacking = np.concatenate([lacks for _, lacks in in_context])
    doubts = np.where(lacking, np.maximum(split.doubts, split.parts), split.doubts) * latencies.values[owners]
    charged = np.zeros((len(owners), len(chains)))
    charged[range(len(owners)), owners] = split.parts
    # What is taken from one layer goes to all of its chain in proportion: the chain's sum does not change.
    within = np.equal.outer(owners, owners)
    balance = np.eye(len(owners)) - split.parts[:, None] * within
    covariance = charged @ of_chains @ charged.T + (balance * doubts**2) @ balance.T
    places = tuple(place for chain in chains for place in chain.places)
    return LayerShares(tuple(owners), places, charged @ latencies.values, covariance)


def check_residuals(
    chains: Sequence[ChainProbes],
    solution: Solution,
    terms: Mapping[str, OverheadTerms],
    measured: Mapping[str, Measurement],
) -> tuple[float, ...]:
    """For each network what chains and meetings are off by in windows of three chains, as a part of what these take.

    Nothing is fitted to these windows. Errors that have one sign add up over a network, others partly cancel: the
    larger of their sum and the root of their squares counts.
    """
    names = frozenset(solution.names)
    overhead = {name: float(solution.values[solution.index(name)]) for name in COLUMNS if name in names}
    differences: dict[str, list[float]] = {}
    whole: Counter[str] = Counter()
    for first, second, third in zip(chains, chains[1:], chains[2:], strict=False):
        parts = [_chain(first), _chain(second), _chain(third), _meeting(first, second), _meeting(second, third)]
        nulls = {first.check_null} - {""}
        if not first.check or not {first.check, *nulls} <= measured.keys() or not names.issuperset(parts):
            continue
        left_s = measured[first.check].latency_s - sum(measured[null].latency_s for null in nulls)
        amounts = dict(zip(COLUMNS, row_of(terms[first.check]), strict=True))
        for null in nulls:
            amounts = {name: amounts[name] - one for name, one in zip(COLUMNS, row_of(terms[null]), strict=True)}
        left_s -= sum(overhead.get(name, 0.0) * amount for name, amount in amounts.items())
        taken_s = sum(float(solution.values[solution.index(part)]) for part in parts)
        differences.setdefault(first.network, []).append(taken_s - left_s)
        whole[first.network] += left_s  # type: ignore[assignment]
    return tuple(
        max(abs(sum(found)), sum(one**2 for one in found) ** 0.5) / whole[network]
        for network, found in differences.items()
        if whole[network] > 0
    )


def _with_next(chains: Sequence[ChainProbes]) -> Iterator[tuple[ChainProbes, ChainProbes | None]]:
    """Each chain with the one behind it, where a window holds both."""
    for chain, behind in itertools.zip_longest(chains, chains[1:]):
        follows = behind is not None and behind.network == chain.network and chain.meeting != ""
        yield chain, behind if follows else None


def _known(chain: ChainProbes, measured: Collection[str]) -> bool:
    return chain.alone in measured and (not chain.alone_null or chain.alone_null in measured)


def _meets(chain: ChainProbes, behind: ChainProbes, measured: Collection[str]) -> bool:
    seen = chain.meeting in measured and (not chain.meeting_null or chain.meeting_null in measured)
    return seen and _known(behind, measured)


def _front(null: str) -> tuple[str, ...]:
    return (f"in front {null}",) if null else ()


def _chain(chain: ChainProbes) -> str:
    return f"chain {chain.alone}"


def _meeting(chain: ChainProbes, behind: ChainProbes) -> str:
    # One window may be parted into two chains in two ways, in two networks.
    return f"meeting {chain.meeting} {chain.alone} {behind.alone}"


def _charged(values: Array, floors: Array) -> Array:
    """Each value at least its floor: what lacks is taken from the next ones, then from those before.

    Where all together lack it, the floors themselves.
    """
    if values.sum() <= floors.sum():
        return floors
    charged, lacking = values.copy(), 0.0
    for at in (*range(len(charged)), *reversed(range(len(charged)))):
        available = charged[at] - lacking
        charged[at] = max(available, floors[at])
        lacking = charged[at] - available
    return charged


def _in_context(chain: ChainProbes, layers: Mapping[tuple[str, str], Latency], whole_s: float) -> tuple[Array, Array]:
    """What each layer of a chain takes by itself, in seconds, and whether that is not known."""
    import numpy as np

    found = [layers.get(place) for place in chain.places]
    known = [one.latency_s for one in found if one is not None]
    average_s = sum(known) / len(known) if known else whole_s / len(found)
    return (
        np.array([average_s if one is None else one.latency_s for one in found]),
        np.array([one is None for one in found]),
    )
