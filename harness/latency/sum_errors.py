"""How far sums of layers, chains and windows are off the time of whole networks, as longer windows show it.

A processor runs layers in *windows of neighbours*: these are chains that the device does not report, so they have no
`ordered` layers.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from harness.latency.chain_windows import boundaries, tiling_windows, windows
from harness.latency.layer_latency import CampaignData, Latency
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.sparse_system import Solution
from harness.latency.unknowns import chain_alone, coefficient
from harness.probe.chain_plan import ChainProbes

USUAL_EXCESS = 0.02
"""Relative error of sums if no window of several chains was measured: such windows correct others by so much."""
LONGEST_PAIR = 2
"""Networks of so many chains hold no window that is longer than a pair."""
_UNSEEN = 1 / math.sqrt(3)
"""Root of the mean square of a part that may be anything from none to all."""


def by_network(chains: Sequence[ChainProbes]) -> Iterator[tuple[str, list[ChainProbes]]]:
    """Yield each network with its chains."""
    for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
        yield network, list(group)


def long_window_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of chains by network, as its longest windows show it.

    What the longest windows take beyond shorter ones is corrected. Still longer ones may show anything between nothing
    and as much again. Chains that no window holds have the usual error; a network of one or two chains has none.
    """
    errors = {}
    for network, group in by_network(chains):
        held = [chain for chain in group if chain.ordered and chain_alone(chain) in solution]
        if len(held) <= LONGEST_PAIR:
            continue
        joint = [one for one in windows(held) if len(one.chains) > 1 and one.own in solution]
        longest = [one for one in joint if not any({*one.places} < {*other.places} for other in joint)]
        alone_s = solution.sum_of(map(chain_alone, held))
        whole_s = alone_s + solution.sum_of(one.own for one in joint)
        inside = {at for one in joint for at in one.places}
        share = solution.sum_of(chain_alone(held[at]) for at in inside) / alone_s if min(alone_s, whole_s) > 0 else 0.0
        share = min(1.0, max(0.0, share))  # noise may make short chains negative
        differences_s = [solution.sum_of([one.own]) for one in longest]
        shown = _UNSEEN * _error_of_sum(differences_s, whole_s) if share > 0 else 0.0
        errors[network] = math.hypot(shown, (1 - share) * USUAL_EXCESS)
    return errors


def neighbour_window_errors(data: CampaignData, solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of windows of neighbours on windows of several of them, by network."""
    overhead = {name: solution.sum_of([coefficient(name)]) for name in COLUMNS}
    found: dict[str, list[tuple[float, float]]] = {}
    for window in tiling_windows(data.chains):
        parts = [*map(chain_alone, window.chains), *boundaries(window.chains)]
        is_known = window.probes <= data.summaries.keys() and all(part in solution for part in parts)
        if window.chains[0].ordered or not is_known:
            continue
        left_s = 0.0
        for probe, sign in ((window.probe, 1), (window.null, -1)):
            if probe:
                row = zip(COLUMNS, row_of(data.terms[probe]), strict=True)
                host_s = sum(overhead[name] * amount for name, amount in row)
                left_s += sign * (data.summaries[probe].latency_s - host_s)
        found.setdefault(window.chains[0].network, []).append((solution.sum_of(parts) - left_s, left_s))
    return {
        network: _error_of_sum([difference_s for difference_s, _ in held], whole_s)
        for network, held in found.items()
        if (whole_s := sum(left_s for _, left_s in held)) > 0
    }


def border_errors(chains: Sequence[ChainProbes], solution: Solution) -> dict[str, float]:
    """Return the relative error of sums of windows of neighbours by what their borders add to them, by network.

    Pools of longer windows are measured at other times, when the caches of a host may hold more or less of them. A
    border may cost anything between nothing and what it seems to.
    """
    found: dict[str, float] = {}
    for network, group in by_network(chains):
        known = [chain for chain in group if not chain.ordered and chain_alone(chain) in solution]
        added_s, alone_s = solution.sum_of(boundaries(known)), solution.sum_of(map(chain_alone, known))
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
    found: dict[str, float] = {}
    for network, group in by_network(chains):
        known = [chain for chain in group if chain_alone(chain) in solution and layers.keys() >= {*chain.places}]
        whole_s = solution.sum_of(map(chain_alone, known))
        if known and whole_s > 0 and not any(chain.meeting for chain in group) and len(group) > 1:
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
