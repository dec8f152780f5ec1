"""Latencies of chains in their networks.

The time of a network is the sum of its chains, of the boundary terms between neighbours, and of the excesses of long
windows. Each boundary term and excess is charged to the chains of its window, so that the latencies of chains add up to
networks. A saving is charged to the chain whose work it hides. Other boundary terms and excesses are charged to all
chains of their window in proportion to their own times, with an error for this choice.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from harness.array_types import Floats
from harness.latency.chain_windows import windows
from harness.latency.sparse_system import Solution
from harness.latency.unknowns import Unknown, chain_alone
from harness.probe.chain_plan import ChainProbes

LEAST_SHARE = 0.1
"""Least fraction of a chain's own time that it keeps where it overlaps its neighbours."""
_LEAST_S = 1e-12


@dataclass(frozen=True)
class ChainLatencies:
    """The times of chains in their networks, in seconds; always positive.

    `covariance` in s² has the order of `chains` and covers the measurements: chains share errors through common
    windows, the producers of these, and the overhead. `charging` covers the choice of how boundary terms and excesses
    are charged: each could belong to only one of the chains, an error of opposite sign in the others.
    """

    chains: tuple[ChainProbes, ...]
    values: Floats
    covariance: Floats
    charging: Floats


@dataclass(frozen=True)
class _Charge:
    """The part of an unknown that is charged to each of some chains, which have these indices."""

    unknown: Unknown
    chains: Sequence[int]
    parts: Floats


def chain_latencies(chains: Sequence[ChainProbes], solution: Solution) -> ChainLatencies:
    """Return the chains that are in the solution, each with its part of boundary terms and excesses.

    A chain left with less than LEAST_SHARE of its own time keeps that much, and its neighbours are charged the rest:
    sums over networks do not change.
    """
    known = tuple(chain for chain in chains if chain_alone(chain) in solution)
    alone = [solution.index(chain_alone(chain)) for chain in known]
    alone_s = np.maximum(solution.values[alone], _LEAST_S)
    charged = np.zeros((len(known), len(solution.unknowns)))
    charged[range(len(known)), alone] = 1.0
    charging = np.zeros((len(known), len(known)))
    for charge in _charges(known, solution, alone_s):
        unknown = solution.index(charge.unknown)
        charged[charge.chains, unknown] += charge.parts
        # The unknown's own error is already in the covariance.
        beyond = max(0.0, float(solution.values[unknown] ** 2 - solution.variances[unknown]))
        by_time = alone_s[charge.chains] / alone_s[charge.chains].sum()
        charging[np.ix_(charge.chains, charge.chains)] += beyond * (np.diag(by_time) - np.outer(by_time, by_time))
    values = charged @ solution.values
    floors = np.maximum(_LEAST_S, LEAST_SHARE * alone_s)
    for _, group in itertools.groupby(range(len(known)), key=lambda at: known[at].network):
        held = list(group)
        values[held] = _at_least(floors[held], values[held])
    return ChainLatencies(known, values, solution.covariance.of_sums(csr_array(charged)), charging)


def _charges(chains: Sequence[ChainProbes], solution: Solution, alone_s: Floats) -> Iterator[_Charge]:
    """Yield how each boundary term and excess is charged to chains that take `alone_s` by themselves."""
    weight_bytes = [sum(chain.weight_bytes) for chain in chains]
    byte_s = min((time_s / size for time_s, size in zip(alone_s, weight_bytes, strict=True) if size), default=0.0)
    for window in windows(chains):
        if len(window.chains) > 1 and window.own in solution:
            held = list(window.places)
            parts = alone_s[held] / alone_s[held].sum()
            saved_s = -solution.sum_of([window.own])
            loading_s = weight_bytes[held[-1]] * byte_s
            if window.own.kind == "boundary" and saved_s > 0 and loading_s > 0:
                parts = _parts_of_saving(saved_s, loading_s)
            yield _Charge(window.own, held, parts)


def _parts_of_saving(saved_s: float, loading_s: float) -> Floats:
    """Return the parts of a saving that belong to two neighbours.

    The device loads the weights of the second chain while the first one computes. If all of `loading_s` is saved, the
    loads are hidden; if less is, the loads took longer, and they hide the computation of the first chain.
    """
    hidden = min(1.0, saved_s / loading_s) ** 2
    return np.array([1 - hidden, hidden])


def _at_least(floors: Floats, values: Floats) -> Floats:
    """Return values of at least their floors: a shortfall is taken from the next ones, then from those before.

    If even the sum is too small, returns the floors.
    """
    if values.sum() <= floors.sum():
        return floors
    raised, lacking = values.copy(), 0.0
    for at in (*range(len(raised)), *reversed(range(len(raised)))):
        available = raised[at] - lacking
        raised[at] = max(available, floors[at])
        lacking = raised[at] - available
    return raised
