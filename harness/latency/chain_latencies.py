"""Latencies of chains of layers from windows of a network.

The time of a network is the sum of its chains, of the boundary terms between neighbours (`meeting`), and of the
long-window excesses (`reach`). A boundary term is the time of two chains together minus those of each. A saving is
charged to the chain whose work it hides, other boundary terms to both chains in proportion to their own times, with an
error for the choice. Chains share errors through common windows, the producers of these, and the overhead; the
covariance includes them.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from harness.array_types import Floats
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.sparse_system import Solution
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms

SIGNED = ("chain ", "meeting ", "reach ")
"""Prefixes of unknowns that may come out negative."""
LEAST_SHARE = 0.1
"""Least fraction of a chain's own time that it keeps where it overlaps its neighbours."""
_LEAST_S = 1e-12


def chain_name(chain: ChainProbes) -> str:
    """Return the name of the unknown of a chain by itself."""
    return f"chain {chain.alone}"


def meeting_name(chain: ChainProbes, behind: ChainProbes) -> str:
    """Return the name of the boundary term of two chains."""
    # Two networks may divide one window into two chains in two ways.
    return f"meeting {chain.meeting} {chain.alone} {behind.alone}"


def is_known(chain: ChainProbes, measured: Collection[str]) -> bool:
    """Return whether the windows of a chain by itself were measured."""
    return chain.alone in measured and (not chain.alone_null or chain.alone_null in measured)


@dataclass(frozen=True)
class LongWindow:
    """A window of several chains; `inside` are the unknown reaches of the long windows in it."""

    held: Sequence[ChainProbes]
    probe: str
    null: str
    inside: tuple[str, ...] = ()

    @property
    def reach(self) -> str:
        """The name of the unknown of the long-window excess."""
        # Two networks may divide one window into chains in two ways.
        return f"reach {self.probe} {self.held[0].alone}"

    def is_known(self, measured: Collection[str]) -> bool:
        """Return whether the window and the chains in it were measured."""
        windows = (name for name in (self.probe, self.null) if name)
        return all(name in measured for name in windows) and all(is_known(one, measured) for one in self.held)


def long_windows(chains: Sequence[ChainProbes]) -> Iterator[LongWindow]:
    """Yield the check windows of a device that chains layers, then the windows across two of them.

    Windows of neighbours have none: on a processor, the differences of long windows are mostly noise.
    """
    checks = {}
    for at, first in enumerate(chains):
        held = chains[at : at + first.checked]
        if first.check and first.ordered and all(one.network == first.network for one in held):
            checks[at] = LongWindow(held, first.check, first.check_null)
    yield from checks.values()
    for (at, one), (last, other) in itertools.pairwise(checks.items()):
        if chains[at].across and chains[at].network == chains[last].network:
            held = chains[at : last + len(other.held)]
            yield LongWindow(held, chains[at].across, chains[at].across_null, (one.reach, other.reach))


@dataclass(frozen=True)
class ChainLatencies:
    """The times of chains in their networks, in seconds, each with its part of its meetings; always positive.

    `covariance` in s² has the order of `chains` and covers the measurements. `charging` covers the choice of how
    meetings are charged: a boundary term could belong to only one of the chains, an error of opposite sign in the two.
    """

    chains: tuple[ChainProbes, ...]
    values: Floats
    covariance: Floats
    charging: Floats


def chain_equations(
    chains: Sequence[ChainProbes], terms: Mapping[str, OverheadTerms], measured: Collection[str]
) -> dict[tuple[str, ...], tuple[str, Mapping[str, float]]]:
    """Return for each equation its probe and the amount of each unknown in the probe's total.

    The amounts are those of the overhead's columns, and one of each content. `chains` of a network are in the
    network's order; those with a window that is not among the `measured` have no equation.
    """
    equations: dict[tuple[str, ...], tuple[str, Mapping[str, float]]] = {}

    def add_probe(name: tuple[str, ...], probe: str, *contents: str) -> None:
        overhead = dict(zip(COLUMNS, row_of(terms[probe]), strict=True))
        # Two equal chains in a row are twice the same unknown.
        equations[name] = (probe, {**overhead, **Counter(contents)})

    def add(probe: str, null: str, chains: Sequence[ChainProbes], *contents: str) -> None:
        """Add a window that is named after these chains, and the window without its layers."""
        front = (f"in front {null}",) if null else ()
        if front:
            add_probe((null,), null, *front)
        add_probe((probe, *(chain.alone for chain in chains)), probe, *front, *contents)

    for at, (chain, behind) in enumerate(_with_next(chains)):
        if not is_known(chain, measured):
            continue
        add(chain.alone, chain.alone_null, (), chain_name(chain))
        held = chains[at - chain.wider[0] : at + 2 + chain.wider[1]]
        if behind is None or not _meets(chain, held, measured):
            continue
        meetings = (meeting_name(one, other) for one, other in itertools.pairwise(held))
        add(chain.meeting, chain.meeting_null, (chain, behind), *map(chain_name, held), *meetings)
    found = {name for _, amounts in equations.values() for name in amounts}
    for window in long_windows(chains):
        if not window.is_known(measured) or not found.issuperset(window.inside):
            continue
        meetings = (meeting_name(one, other) for one, other in itertools.pairwise(window.held))
        parts = (*map(chain_name, window.held), *(name for name in meetings if name in found), *window.inside)
        add(window.probe, window.null, window.held[:1], *parts, window.reach)
        found.add(window.reach)
    return equations


def chain_latencies(chains: Sequence[ChainProbes], solution: Solution) -> ChainLatencies:
    """Return the chains in the solution, each with its part of its meetings with the previous and the next one.

    What a long window takes beyond everything else in it is charged to all of its chains in proportion. A chain left
    with less than LEAST_SHARE of its own time keeps that much, and its neighbours are charged the rest: sums over
    networks do not change.
    """
    names = frozenset(solution.names)
    known = [(chain, behind) for chain, behind in _with_next(chains) if chain_name(chain) in names]
    alone = [solution.index(chain_name(chain)) for chain, _ in known]
    alone_s = np.maximum(solution.values[alone], _LEAST_S)
    weights = [sum(chain.weight_bytes) for chain, _ in known]
    byte_s = min((time_s / size for time_s, size in zip(alone_s, weights, strict=True) if size), default=0.0)
    charged = np.zeros((len(known), len(solution.names)))
    charged[range(len(known)), alone] = 1.0
    charging = np.zeros((len(known), len(known)))

    def charge(held: Sequence[int], name: str, parts: Sequence[float] | None = None) -> None:
        """Charge an unknown to chains in these parts, by default in proportion to their own times."""
        unknown = solution.index(name)
        by_time = alone_s[held] / alone_s[held].sum()
        charged[held, unknown] += by_time if parts is None else parts
        # The unknown's own error is already in the covariance.
        beyond = max(0.0, float(solution.values[unknown] ** 2 - solution.variances[unknown]))
        charging[np.ix_(held, held)] += beyond * (np.diag(by_time) - np.outer(by_time, by_time))

    for at, (chain, behind) in enumerate(known):
        if behind is None or meeting_name(chain, behind) not in names:
            continue
        meeting = meeting_name(chain, behind)
        saved_s = -float(solution.values[solution.index(meeting)])
        charge([at, at + 1], meeting, _parts_of_saving(saved_s, weights[at + 1] * byte_s))
    places = {id(chain): at for at, (chain, _) in enumerate(known)}
    for window in long_windows([chain for chain, _ in known]):
        if window.reach in names:
            charge([places[id(one)] for one in window.held], window.reach)
    values = charged @ solution.values
    floors = np.maximum(_LEAST_S, LEAST_SHARE * alone_s)
    for _, group in itertools.groupby(range(len(known)), key=lambda at: known[at][0].network):
        held = list(group)
        values[held] = _charged(values[held], floors[held])
    covariance = solution.covariance.of_sums(csr_array(charged))
    return ChainLatencies(tuple(chain for chain, _ in known), values, covariance, charging)


def _with_next(chains: Sequence[ChainProbes]) -> Iterator[tuple[ChainProbes, ChainProbes | None]]:
    """Yield each chain with the next one, or with None where no window holds both."""
    for chain, behind in itertools.zip_longest(chains, chains[1:]):
        follows = behind is not None and behind.network == chain.network and chain.meeting != ""
        yield chain, behind if follows else None


def _meets(chain: ChainProbes, window: Sequence[ChainProbes], measured: Collection[str]) -> bool:
    """Return whether the window of a chain's meeting was measured, and all chains and other meetings in it."""
    others = [one for one in window[:-1] if one is not chain]
    windows = (name for one in (chain, *others) for name in (one.meeting, one.meeting_null) if name)
    planned = all(other.meeting and other.wider == (0, 0) for other in others)
    return planned and all(name in measured for name in windows) and all(is_known(one, measured) for one in window)


def _parts_of_saving(saved_s: float, loading_s: float) -> tuple[float, float] | None:
    """Return the parts of a saving that belong to two neighbours; None without a saving, or without weights to load.

    The device loads the weights of the second chain while the first one computes. If all of `loading_s` is saved, the
    loads are hidden; if less is, the loads took longer, and they hide the computation of the first chain.
    """
    if saved_s <= 0 or loading_s <= 0:
        return None
    hidden = min(1.0, saved_s / loading_s) ** 2
    return 1 - hidden, hidden


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
