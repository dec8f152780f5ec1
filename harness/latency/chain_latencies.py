"""Latencies of chains of layers from windows of a network, and each layer's share of its chain.

A network takes the sum of its chains, of their meetings, and of the reaches of long windows. A meeting is the time of
two chains together minus those of each. A saving is charged to the chain whose work it hides, other meetings to both
chains in proportion to their own times, with an error for the choice. Chains share errors through common windows, the
layers in front of these, and the overhead; the covariance includes them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from harness.array_types import Floats
from harness.latency.chain_queues import ChainLayers, parts_of
from harness.latency.layer_latency import Latency
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.sparse_system import Solution
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms

SIGNED = ("chain ", "meeting ", "reach ")
"""Prefixes of unknowns that may come out negative."""
LEAST_SHARE = 0.1
"""Least fraction of a chain's own time that it keeps where it overlaps its neighbours."""
_LEAST_S = 1e-12


@dataclass(frozen=True)
class ChainLatencies:
    """The times of chains in their networks, in seconds, each with its part of its meetings; always positive.

    `covariance` in s² has the order of `chains` and covers the measurements. `charging` covers the choice of how
    meetings are charged: a meeting could belong to either chain alone, an error of opposite sign in the two.
    """

    chains: tuple[ChainProbes, ...]
    values: Floats
    covariance: Floats
    charging: Floats


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


def chain_equations(
    chains: Sequence[ChainProbes], terms: Mapping[str, OverheadTerms], measured: Collection[str]
) -> dict[tuple[str, ...], tuple[str, Mapping[str, float]]]:
    """Return for each equation its probe and the amount of each unknown in the probe's total.

    The amounts are those of the overhead's columns, and one of each content. `chains` of a network are in the
    network's order; those with a window that is not among the `measured` have no equation.
    """
    equations: dict[tuple[str, ...], tuple[str, Mapping[str, float]]] = {}

    def add(name: tuple[str, ...], probe: str, *contents: str) -> None:
        overhead = dict(zip(COLUMNS, row_of(terms[probe]), strict=True))
        # Two equal chains in a row are twice the same unknown.
        equations[name] = (probe, {**overhead, **Counter(contents)})

    for at, (chain, behind) in enumerate(_with_next(chains)):
        if not _known(chain, measured):
            continue
        front = _front(chain.alone_null)
        if front:
            add((chain.alone_null,), chain.alone_null, *front)
        add((chain.alone,), chain.alone, *front, _chain(chain))
        held = chains[at - chain.wider[0] : at + 2 + chain.wider[1]]
        if behind is None or not _meets(chain, held, measured):
            continue
        front = _front(chain.meeting_null)
        if front:
            add((chain.meeting_null,), chain.meeting_null, *front)
        meetings = (_meeting(one, other) for one, other in itertools.pairwise(held))
        contents = (*front, *map(_chain, held), *meetings)
        add((chain.meeting, chain.alone, behind.alone), chain.meeting, *contents)
    found = {name for _, amounts in equations.values() for name in amounts}
    for window in _long_windows(chains):
        if not window.is_known(measured) or not found.issuperset(window.inside):
            continue
        front = _front(window.null)
        if front:
            add((window.null,), window.null, *front)
        meetings = (_meeting(one, other) for one, other in itertools.pairwise(window.held))
        parts = (*map(_chain, window.held), *(name for name in meetings if name in found), *window.inside)
        add((window.probe, window.held[0].alone), window.probe, *front, *parts, window.reach)
        found.add(window.reach)
    return equations


def chain_latencies(chains: Sequence[ChainProbes], solution: Solution) -> ChainLatencies:
    """Return the chains in the solution, each with its part of its meetings with the previous and the next one.

    What a long window takes beyond everything else in it is charged to all of its chains in proportion. A chain left
    with less than LEAST_SHARE of its own time keeps that much, and its neighbours are charged the rest: sums over
    networks do not change.
    """
    names = frozenset(solution.names)
    known = [(chain, behind) for chain, behind in _with_next(chains) if _chain(chain) in names]
    alone = [solution.index(_chain(chain)) for chain, _ in known]
    alone_s = np.maximum(solution.values[alone], _LEAST_S)
    weights = [sum(chain.weight_bytes) for chain, _ in known]
    byte_s = min((time_s / size for time_s, size in zip(alone_s, weights, strict=True) if size), default=0.0)
    charged = np.zeros((len(known), len(solution.names)))
    charged[range(len(known)), alone] = 1.0
    charging = np.zeros((len(known), len(known)))
    for at, (chain, behind) in enumerate(known):
        if behind is None or _meeting(chain, behind) not in names:
            continue
        meeting = solution.index(_meeting(chain, behind))
        both = [at, at + 1]
        parts = alone_s[both] / alone_s[both].sum()
        hidden = _hidden(-float(solution.values[meeting]), weights[at + 1] * byte_s)
        charged[both, meeting] += parts if hidden is None else [1 - hidden, hidden]
        # The meeting's own error is already in the covariance.
        beyond = max(0.0, float(solution.values[meeting] ** 2 - solution.variances[meeting]))
        charging[np.ix_(both, both)] += beyond * parts.prod() * np.array([[1.0, -1.0], [-1.0, 1.0]])
    places = {id(chain): at for at, (chain, _) in enumerate(known)}
    for window in _long_windows([chain for chain, _ in known]):
        if window.reach not in names:
            continue
        reach, within = solution.index(window.reach), [places[id(one)] for one in window.held]
        parts = alone_s[within] / alone_s[within].sum()
        charged[within, reach] += parts
        beyond = max(0.0, float(solution.values[reach] ** 2 - solution.variances[reach]))
        charging[np.ix_(within, within)] += beyond * (np.diag(parts) - np.outer(parts, parts))
    values = charged @ solution.values
    floors = np.maximum(_LEAST_S, LEAST_SHARE * alone_s)
    start = 0
    for _, group in itertools.groupby(known, key=lambda one: one[0].network):
        stop = start + sum(1 for _ in group)
        values[start:stop] = _charged(values[start:stop], floors[start:stop])
        start = stop
    covariance = solution.covariance.of_sums(csr_array(charged))
    return ChainLatencies(tuple(chain for chain, _ in known), values, covariance, charging)


def shares(latencies: ChainLatencies, layers: Mapping[tuple[str, str], Latency]) -> LayerShares:
    """Divide each chain among its layers by their work in its queues; `layers` are latencies in context by place.

    The covariance is that of the chains and of the charging of their meetings, divided likewise, plus the doubts of
    `parts_of`, which leave each chain's sum unchanged. A layer not in `layers` counts as an average one of its chain,
    with a standard error of the same size.
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
    split = parts_of(in_queues, latencies.values, np.sqrt(np.diag(of_chains)))
    lacking = np.concatenate([lacks for _, lacks in in_context])
    doubts = np.where(lacking, np.maximum(split.doubts, split.parts), split.doubts) * latencies.values[owners]
    charged = np.zeros((len(owners), len(chains)))
    charged[range(len(owners)), owners] = split.parts
    # An error of one layer is balanced by all layers of its chain in proportion: the chain's sum does not change.
    within = np.equal.outer(owners, owners)
    balance = np.eye(len(owners)) - split.parts[:, None] * within
    covariance = charged @ of_chains @ charged.T + (balance * doubts**2) @ balance.T
    places = tuple(place for chain in chains for place in chain.places)
    return LayerShares(tuple(owners), places, charged @ latencies.values, covariance)


def reach_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of chains and meetings by network, as the longest windows show it.

    It is what windows across two others take beyond these, or, where a network has none, what windows take beyond
    chains and meetings: it stands for what still longer windows would show.
    """
    names = frozenset(solution.names)

    def seconds(contents: Iterable[str]) -> float:
        return sum(float(solution.values[solution.index(name)]) for name in contents if name in names)

    beyond: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for window in _long_windows(chains):
        if window.reach in names:
            meetings = (_meeting(one, other) for one, other in itertools.pairwise(window.held))
            whole_s = seconds((*map(_chain, window.held), *meetings, *window.inside, window.reach))
            reach_s = seconds([window.reach])
            # Windows across others hold each chain twice.
            share = 2 if window.inside else 1
            beyond[window.held[0].network, bool(window.inside)].append((reach_s, whole_s / share))
    longest = dict(sorted(beyond.items()))
    return {network: _error_of_sum(found) for (network, _), found in longest.items()}


def check_residuals(
    chains: Sequence[ChainProbes],
    solution: Solution,
    terms: Mapping[str, OverheadTerms],
    measured: Mapping[str, Measurement],
) -> dict[str, float]:
    """Return the relative error of sums of windows of neighbours on windows of several of them, by network."""
    names = frozenset(solution.names)
    overhead = {name: float(solution.values[solution.index(name)]) for name in COLUMNS if name in names}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for at, first in enumerate(chains):
        held = chains[at : at + first.checked]
        parts = [*map(_chain, held), *(_meeting(one, other) for one, other in itertools.pairwise(held))]
        nulls = {first.check_null} - {""}
        is_measured = {first.check, *nulls} <= measured.keys() and names.issuperset(parts)
        if first.ordered or not first.check or not is_measured:
            continue
        left_s = measured[first.check].latency_s - sum(measured[null].latency_s for null in nulls)
        amounts = dict(zip(COLUMNS, row_of(terms[first.check]), strict=True))
        for null in nulls:
            amounts = {name: amounts[name] - one for name, one in zip(COLUMNS, row_of(terms[null]), strict=True)}
        left_s -= sum(overhead.get(name, 0.0) * amount for name, amount in amounts.items())
        taken_s = sum(float(solution.values[solution.index(part)]) for part in parts)
        found[first.network].append((taken_s - left_s, left_s))
    return {
        network: _error_of_sum(windows) for network, windows in found.items() if sum(left for _, left in windows) > 0
    }


def disagreements(
    chains: Sequence[ChainProbes], solution: Solution, layers: Mapping[tuple[str, str], Latency]
) -> dict[str, float]:
    """Return half the relative difference to its single layers of each network whose windows have no borders.

    `layers` are latencies in context by place. Windows of neighbours and single layers would agree if a layer cost the
    same in any company. What a window shows of the difference, a longer one would show more of.
    """
    names = frozenset(solution.names)
    found: dict[str, float] = {}
    for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
        windows = list(group)
        known = [chain for chain in windows if _chain(chain) in names and layers.keys() >= {*chain.places}]
        whole_s = sum(float(solution.values[solution.index(_chain(chain))]) for chain in known)
        if known and whole_s > 0 and not any(chain.meeting for chain in windows) and len(windows) > 1:
            singles_s = sum(layers[place].remainder_s for chain in known for place in chain.places)
            found[network] = abs(singles_s - whole_s) / whole_s / 2
    return found


def _with_next(chains: Sequence[ChainProbes]) -> Iterator[tuple[ChainProbes, ChainProbes | None]]:
    """Yield each chain with the next one, or with None where no window holds both."""
    for chain, behind in itertools.zip_longest(chains, chains[1:]):
        follows = behind is not None and behind.network == chain.network and chain.meeting != ""
        yield chain, behind if follows else None


@dataclass(frozen=True)
class _LongWindow:
    """A window of several chains; `inside` are the unknown reaches of the long windows in it."""

    held: Sequence[ChainProbes]
    probe: str
    null: str
    inside: tuple[str, ...] = ()

    @property
    def reach(self) -> str:
        """The unknown that stands for what the window takes beyond everything else in it."""
        # Two networks may divide one window into chains in two ways.
        return f"reach {self.probe} {self.held[0].alone}"

    def is_known(self, measured: Collection[str]) -> bool:
        """Return whether the window and the chains in it were measured."""
        windows = (name for name in (self.probe, self.null) if name)
        return all(name in measured for name in windows) and all(_known(one, measured) for one in self.held)


def _long_windows(chains: Sequence[ChainProbes]) -> Iterator[_LongWindow]:
    """Yield the check windows of a device that chains layers, then the windows across two of them.

    Windows of neighbours have none: on a processor, the differences of long windows are mostly noise.
    """
    checks = {}
    for at, first in enumerate(chains):
        held = chains[at : at + first.checked]
        if first.check and first.ordered and all(one.network == first.network for one in held):
            checks[at] = _LongWindow(held, first.check, first.check_null)
    yield from checks.values()
    for (at, one), (last, other) in itertools.pairwise(checks.items()):
        if chains[at].across and chains[at].network == chains[last].network:
            held = chains[at : last + len(other.held)]
            yield _LongWindow(held, chains[at].across, chains[at].across_null, (one.reach, other.reach))


def _known(chain: ChainProbes, measured: Collection[str]) -> bool:
    return chain.alone in measured and (not chain.alone_null or chain.alone_null in measured)


def _meets(chain: ChainProbes, window: Sequence[ChainProbes], measured: Collection[str]) -> bool:
    """Return whether the window of a chain's meeting was measured, and all chains and other meetings in it."""
    others = [one for one in window[:-1] if one is not chain]
    windows = (name for one in (chain, *others) for name in (one.meeting, one.meeting_null) if name)
    planned = all(other.meeting and other.wider == (0, 0) for other in others)
    return planned and all(name in measured for name in windows) and all(_known(one, measured) for one in window)


def _hidden(saved_s: float, loading_s: float) -> float | None:
    """Return the part of a saving that belongs to the chain behind; None without a saving, or without weights behind.

    The device loads the weights of the chain behind while the chain in front computes. If all of `loading_s` is saved,
    the loads are hidden; if less is, the loads took longer, and the computation in front is hidden behind them.
    """
    if saved_s <= 0 or loading_s <= 0:
        return None
    return min(1.0, saved_s / loading_s) ** 2


def _front(null: str) -> tuple[str, ...]:
    return (f"in front {null}",) if null else ()


def _chain(chain: ChainProbes) -> str:
    return f"chain {chain.alone}"


def _meeting(chain: ChainProbes, behind: ChainProbes) -> str:
    # Two networks may divide one window into two chains in two ways.
    return f"meeting {chain.meeting} {chain.alone} {behind.alone}"


def _error_of_sum(windows: Sequence[tuple[float, float]]) -> float:
    """Return the relative error of a sum, from the differences and times of its windows in seconds.

    Errors of one sign add up over a network, others partly cancel: the larger of their sum and the root of their
    squares counts.
    """
    differences, times_s = zip(*windows, strict=True)
    error: float = max(abs(sum(differences)), math.hypot(*differences)) / sum(times_s)
    return error


def _charged(values: Floats, floors: Floats) -> Floats:
    """Return values of at least their floors: a shortfall is taken from the next ones, then from those before.

    If even the sum is too small, returns the floors.
    """
    if values.sum() <= floors.sum():
        return floors
    charged, lacking = values.copy(), 0.0
    for at in (*range(len(charged)), *reversed(range(len(charged)))):
        available = charged[at] - lacking
        charged[at] = max(available, floors[at])
        lacking = charged[at] - available
    return charged


def _in_context(chain: ChainProbes, layers: Mapping[tuple[str, str], Latency], whole_s: float) -> tuple[Floats, Floats]:
    """Return each layer's time in context, in seconds, and whether it was not measured."""
    found = [layers.get(place) for place in chain.places]
    known = [one.latency_s for one in found if one is not None]
    average_s = sum(known) / len(known) if known else whole_s / len(found)
    return (
        np.array([average_s if one is None else one.latency_s for one in found]),
        np.array([one is None for one in found]),
    )
