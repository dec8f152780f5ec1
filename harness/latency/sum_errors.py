"""How well chains, meetings and windows of neighbours add up to networks, as longer windows show it."""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from harness.latency.chain_latencies import chain_name, long_windows, meeting_name
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
_UNSEEN = 1 / math.sqrt(3)
"""Root of the mean square of a part that may be anything from none to all."""


def reach_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of chains by network, as its longest windows show it.

    What the longest windows take beyond shorter ones is corrected. Still longer ones may show anything between nothing
    and as much again. Chains that no window holds have the usual error; a network of one or two chains has none.
    """
    names = frozenset(solution.names)
    errors = {}
    for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
        held = [chain for chain in group if chain.ordered and chain_name(chain) in names]
        if len(held) <= LONGEST_PAIR:
            continue
        beyond = [(span, solution.sum_of([name])) for span, name in _windows(held) if name in names]
        alone_s = solution.sum_of(map(chain_name, held))
        whole_s = alone_s + sum(difference_s for _, difference_s in beyond)
        longest = [difference_s for span, difference_s in beyond if not any(_holds(other, span) for other, _ in beyond)]
        inside = {at for (first, end), _ in beyond for at in range(first, end)}
        share = solution.sum_of(chain_name(held[at]) for at in inside) / alone_s if min(alone_s, whole_s) > 0 else 0.0
        share = min(1.0, max(0.0, share))  # noise may make short chains negative
        shown = _UNSEEN * _error_of_sum(longest, whole_s) if share > 0 else 0.0
        errors[network] = math.hypot(shown, (1 - share) * USUAL_REACH)
    return errors


def _windows(chains: Sequence[ChainProbes]) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the first chain, the end and the unknown difference of all windows of several chains of a network."""
    for at, (one, other) in enumerate(itertools.pairwise(chains)):
        yield (at, at + 2), meeting_name(one, other)
    places = {id(chain): at for at, chain in enumerate(chains)}
    for window in long_windows(chains):
        first = places[id(window.held[0])]
        yield (first, first + len(window.held)), window.reach


def _holds(window: tuple[int, int], other: tuple[int, int]) -> bool:
    return window != other and window[0] <= other[0] and other[1] <= window[1]


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
        taken_s = solution.sum_of(parts)
        found[first.network].append((taken_s - left_s, left_s))
    return {
        network: _error_of_sum([difference_s for difference_s, _ in windows], whole_s)
        for network, windows in found.items()
        if (whole_s := sum(left_s for _, left_s in windows)) > 0
    }


def border_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of windows of neighbours by what their borders add to them, by network.

    Pools of longer windows are measured at other times, when the caches of a host may hold more or less of them. A
    border may cost anything between nothing and what it seems to.
    """
    names = frozenset(solution.names)
    found: dict[str, float] = {}
    for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
        known = [chain for chain in group if not chain.ordered and chain_name(chain) in names]
        borders = (meeting_name(one, other) for one, other in itertools.pairwise(known) if one.meeting)
        added_s, alone_s = solution.sum_of(borders), solution.sum_of(map(chain_name, known))
        if added_s and alone_s + added_s > 0:
            found[network] = _UNSEEN * abs(added_s) / (alone_s + added_s)
    return found


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
        whole_s = solution.sum_of(map(chain_name, known))
        if known and whole_s > 0 and not any(chain.meeting for chain in windows) and len(windows) > 1:
            singles_s = sum(layers[place].remainder_s for chain in known for place in chain.places)
            found[network] = abs(singles_s - whole_s) / whole_s / 2
    return found


def root_mean_square(errors: Collection[float]) -> float:
    """Return the root mean square of relative errors, 0 without any."""
    return math.hypot(*errors) / math.sqrt(max(1, len(errors)))


def _error_of_sum(differences_s: Sequence[float], whole_s: float) -> float:
    """Return the relative error of a sum from the differences of its windows.

    Errors of one sign add up over a network, others partly cancel: the larger of their sum and the root of their
    squares counts.
    """
    error: float = max(abs(sum(differences_s)), math.hypot(*differences_s)) / whole_s
    return error
