"""How well chains, meetings and windows of neighbours add up to networks, as longer windows show it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from harness.latency.chain_unknowns import LongWindow, chain_name, long_windows, meeting_name
from harness.latency.layer_latency import Latency
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.sparse_system import Solution
from harness.measure.summary import Measurement
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms

USUAL_REACH = 0.02
"""Relative error of sums if no window of several chains was measured: such windows correct others by so much."""
LONGEST_PAIR = 2
"""Networks of so many chains hold no window that is longer than a pair."""


def reach_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of chains and meetings by network, as windows of several chains show it.

    Where these windows reach, it is what the longest take beyond shorter ones: still longer ones would show as much.
    Elsewhere it is what all of them together correct in other networks.
    """
    names = frozenset(solution.names)

    def seconds(contents: Iterable[str]) -> float:
        return sum(float(solution.values[solution.index(name)]) for name in contents if name in names)

    windows = [window for window in long_windows(chains) if window.reach in names]
    shown = {id(chain) for window in windows for chain in window.held[1:-1]}
    corrected, shares = dict[str, float](), dict[str, float]()
    for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
        held = [chain for chain in group if chain.ordered and chain_name(chain) in names]
        if len(held) <= LONGEST_PAIR:
            continue
        inner = held[1:-1]
        whole_s, inner_s = seconds(map(chain_name, held)), seconds(map(chain_name, inner))
        shown_s = seconds(chain_name(one) for one in inner if id(one) in shown)
        # Noise may make short chains negative.
        shares[network] = min(1.0, shown_s / inner_s) if min(shown_s, inner_s, whole_s) > 0 else 0.0
        if shares[network] > 0:
            reach_s = seconds(window.reach for window in windows if window.held[0].network == network)
            corrected[network] = reach_s / whole_s / shares[network]
    usual = root_mean_square(corrected.values()) if corrected else USUAL_REACH
    longest = _of_longest(windows, seconds)
    return {
        network: math.hypot(share * longest.get(network, 0.0), (1 - share) * usual) for network, share in shares.items()
    }


def _of_longest(windows: Sequence[LongWindow], seconds: Callable[[Iterable[str]], float]) -> dict[str, float]:
    """Return the relative error of the sum of each network's longest windows: those across others, or else all."""
    beyond: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for window in windows:
        meetings = (meeting_name(one, other) for one, other in itertools.pairwise(window.held))
        whole_s = seconds((*map(chain_name, window.held), *meetings, *window.inside, window.reach))
        # Windows across others hold each chain twice.
        times = 2 if window.inside else 1
        beyond[window.held[0].network, bool(window.inside)].append((seconds([window.reach]), whole_s / times))
    return {network: _error_of_sum(found) for (network, _), found in sorted(beyond.items()) if _total_s(found) > 0}


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
        parts = [*map(chain_name, held), *(meeting_name(one, other) for one, other in itertools.pairwise(held))]
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
        known = [chain for chain in windows if chain_name(chain) in names and layers.keys() >= {*chain.places}]
        whole_s = sum(float(solution.values[solution.index(chain_name(chain))]) for chain in known)
        if known and whole_s > 0 and not any(chain.meeting for chain in windows) and len(windows) > 1:
            singles_s = sum(layers[place].remainder_s for chain in known for place in chain.places)
            found[network] = abs(singles_s - whole_s) / whole_s / 2
    return found


def root_mean_square(errors: Collection[float]) -> float:
    """Return the root mean square of relative errors, 0 without any."""
    return math.hypot(*errors) / math.sqrt(max(1, len(errors)))


def _error_of_sum(windows: Sequence[tuple[float, float]]) -> float:
    """Return the relative error of a sum, from the differences and times of its windows in seconds.

    Errors of one sign add up over a network, others partly cancel: the larger of their sum and the root of their
    squares counts.
    """
    differences = [difference_s for difference_s, _ in windows]
    error: float = max(abs(sum(differences)), math.hypot(*differences)) / _total_s(windows)
    return error


def _total_s(windows: Sequence[tuple[float, float]]) -> float:
    return sum(time_s for _, time_s in windows)
