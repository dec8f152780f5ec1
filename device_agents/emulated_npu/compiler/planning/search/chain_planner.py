"""Chooses where chains end, by predicted time (S3.7)."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import aligned_down
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.value_parts import with_parts
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, HaloRange, MemoryBudget
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import NotTileable
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain
from device_agents.emulated_npu.compiler.planning.search.chain_keys import ChainKeys
from device_agents.emulated_npu.compiler.planning.search.chain_search import ChainSearch
from device_agents.emulated_npu.compiler.planning.search.choices import (
    ASSUMPTIONS,
    Assumption,
    ChainCandidate,
    ChainEstimate,
    Choice,
)
from device_agents.emulated_npu.compiler.planning.search.known_estimates import Rows, known_estimates
from device_agents.emulated_npu.compiler.planning.search.possible_chains import PossibleChains
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine

MAX_CHAIN = 12
"""The most layers of a chain in the first search."""
_CLOSE = 1.01
"""How much more fewer passes may cost where the units overlap: one waits for the other in every pass."""
_ALIKE = 1.02
"""How much more they may cost under an assumption with `few`, because queues wait for each other in every pass."""
_SAME = 1.002
"""How much more they may cost otherwise: many passes take long to compile."""
_NEAR = 0.02
_PATIENCE = 3
"""The search for longer chains ends after this many starts that lose more than the share `_NEAR` of their time."""


@dataclass(frozen=True)
class Decision:
    """The way chosen to run layers [start, end), and the other ways that were considered.

    `singly_ps` is the predicted time of the layers one by one, with the halo fetched again. It is None for one
    layer, if the end of the chain was forced, or if a layer does not fit by itself.
    """

    start: int
    end: int
    chosen: Choice
    others: tuple[Choice, ...]
    singly_ps: int | None

    @property
    def chains(self) -> tuple[ChainPlan, ...]:
        """The chains, in the order in which they run."""
        return self.chosen.chains


@dataclass(frozen=True)
class ChainOutline:
    """The ends of chains before their plans are decided, with their estimated cost and halo buffer."""

    cost_ps: int
    halo_bytes: int
    ends: tuple[int, ...]

    def extended(self, estimate: ChainEstimate, end: int) -> ChainOutline:
        """Return the outline with one more chain, up to `end`."""
        halo_bytes = max(self.halo_bytes, estimate.halo_bytes)
        return ChainOutline(self.cost_ps + estimate.cost_ps, halo_bytes, (*self.ends, end))


class Planner:
    """Plans a graph on a machine by one of ASSUMPTIONS, the first at first.

    Where features and weights share one buffer, every chain divides it in the way that is fastest for that chain.
    """

    def __init__(self, graph: Graph, machine: Machine, options: Options, externals: Externals) -> None:
        self.graph, self.options, self._machine, self._budgets = graph, options, machine, _budgets_of(machine)
        self._chains = PossibleChains(graph, machine)
        self._shared = known_estimates()
        self._search = ChainSearch(with_parts(graph.values), machine, options, externals, self._shared)
        self._context = self._shared.number((machine, options))
        self._keys = ChainKeys(graph, externals, self._chains, self._shared.number)
        self._assumed = 0
        self._known: dict[object, tuple[ChainEstimate, ...]] = {}
        self._wider: dict[object, tuple[ChainEstimate, ...]] = {}
        self._within: dict[int, Planner] = {}
        self._candidates: dict[tuple[int, int, bool], list[tuple[HaloRange, list[ChainCandidate]]]] = {}

    def within(self, halo_bytes: int) -> Planner:
        """Return a planner with that many bytes reserved for the halo buffer; it shares estimates that stay valid."""
        if halo_bytes not in self._within:
            other = self._within[halo_bytes] = copy.copy(self)
            budgets = (replace(budget, halo_bytes=halo_bytes, reserved_bytes=halo_bytes) for budget in self._budgets)
            other._budgets, other._wider, other._known = tuple(budgets), self._known, {}
            other._within = {}
        return self._within[halo_bytes].assuming(self._assumed)

    def without_estimates(self) -> Planner:
        """Return a planner that makes its own estimates; it shares the ways to run chains that others found."""
        other = copy.copy(self)
        other._known, other._wider, other._within = {}, {}, {}
        return other

    def assuming(self, place: int) -> Planner:
        """Return a planner by another of ASSUMPTIONS; it shares all estimates."""
        other = copy.copy(self)
        other._assumed = place
        return other

    def outline(self) -> ChainOutline:
        """Return the ends of chains in the fastest sequence; raises DoesNotFit."""
        return self._joined(range(len(self.graph.layers) + 1), 0)

    def longer(self, chains: Sequence[Decision]) -> ChainOutline:
        """Return these chains, those in one pass joined to more than MAX_CHAIN layers as long as that is faster."""
        ends = (0, *(chain.end for chain in chains))
        several = [chain.end for chain in chains if chain.chosen.passes > 1]
        found = self.outlined(ends)
        while (longer := self._joined(found.ends, MAX_CHAIN, several)).cost_ps < found.cost_ps:
            found = longer
        return found

    def _joined(self, ends: Sequence[int], beyond: int, apart: Sequence[int] = ()) -> ChainOutline:
        """Return the fastest chains that end at some of these places; raises DoesNotFit.

        Each is between two places that follow each other, or has more than `beyond` layers; one that ends at a place of
        `apart` is joined to no other.
        """
        best = {0: ChainOutline(0, 0, (0,))}
        for place, end in enumerate(ends[1:], 1):
            first = max((other for other in apart if other < end), default=0)
            longer = (ends[start] for start in self.starts(place)[1:] if end - ends[start] > beyond)
            joined = [start for start in longer if start >= first and end not in apart]
            best[end] = self._cheapest(end, [ends[place - 1], *joined], best)
        return best[ends[-1]]

    def outlined(self, ends: Sequence[int]) -> ChainOutline:
        """Return the outline of chains with these ends within the memory of this planner; raises DoesNotFit."""
        result = ChainOutline(0, 0, (0,))
        for start, end in itertools.pairwise(ends):
            estimate = self._estimated(start, end)
            if estimate is None:
                raise DoesNotFit(f"{self.graph.layers[end - 1].name} does not fit in the chain that ends there")
            result = result.extended(estimate, end)
        return result

    def estimated_ps(self, start: int, end: int) -> int | None:
        """Return the predicted time of layers [start, end) as one chain; None if they cannot be one, or do not fit."""
        estimate = self._estimated(start, end) if self._chains.allows(start, end) else None
        return None if estimate is None else estimate.predicted_ps

    def decide(self, start: int, end: int) -> Decision:
        """Return the best way to run layers [start, end) as one chain; raises DoesNotFit if there is none."""
        assumption = self._assumptions(start, end)[self._assumed]
        found = self._candidates_of(start, end)
        candidates = (each for each in found if assumption.trusting or not each.doubtful)
        choices = sorted((each.chosen(assumption) for each in candidates), key=lambda choice: choice.cost_ps)
        close = _CLOSE if self._machine.vfu_queue_depth and choices[0].overlaps else _ALIKE if assumption.few else _SAME
        chosen = _with_fewest_passes(choices, close)
        others = tuple(choice for choice in choices if choice is not chosen)
        return Decision(start, end, chosen, others, self._singly_ps(start, end))

    def _candidates_of(self, start: int, end: int) -> list[ChainCandidate]:
        """Return all ways to run layers [start, end) as one chain; halo buffers of about one size share them."""
        halo_bytes, is_reserved = self._budgets[0].reserved_bytes, self._budgets[0].is_reserved
        known = self._candidates.setdefault((start, end, is_reserved), [])
        for same_for, found in known:
            if halo_bytes in same_for or not is_reserved:
                return found
        same_for = self._search.begin()
        known.append((same_for, self._all_candidates(self._numbered(start, end))))
        return known[-1][1]

    def _all_candidates(self, chain: Chain) -> list[ChainCandidate]:
        """Return all ways to run a chain; raises DoesNotFit if there is none."""
        candidates: list[ChainCandidate] = []
        problems: list[DoesNotFit] = []
        for budget in self._budgets:
            try:
                candidates.extend(self._search.candidates(chain, budget))
            except DoesNotFit as error:
                problems.append(error.with_traceback(None))
            except NotTileable as error:
                what = f"{chain.layers[-1].name} cannot be cut into tiles that fit"
                problems.append(DoesNotFit(what, str(error)))
        if not candidates:
            raise problems.pop(0) if problems else DoesNotFit(f"There is no room for {chain.layers[-1].name}")
        return candidates

    def _singly_ps(self, start: int, end: int) -> int | None:
        if end - start == 1 or self.options.chains != "auto":
            return None
        try:
            estimates = [self._estimated(place, place + 1) for place in range(start, end)]
        except DoesNotFit:
            return None
        return sum(estimate.predicted_ps for estimate in estimates if estimate is not None)

    def whole(self) -> Decision:
        """Return the best way to run all layers as one chain; raises DoesNotFit if there is none."""
        count = len(self.graph.layers)
        try:
            if self._chains.allows(0, count):
                return self.decide(0, count)
            why = "a layer needs a tensor whole or in memory, but the chain computes it part by part"
        except DoesNotFit as error:
            why = f"{error.what}: {error.why}"
        raise DoesNotFit("The network cannot run as one chain", why, "Let the compiler choose where chains end")

    def _cheapest(self, end: int, starts: Sequence[int], best: Mapping[int, ChainOutline]) -> ChainOutline:
        """Return the fastest chains for the layers before `end`, from the fastest for every earlier end."""
        found: ChainOutline | None = None
        idle = 0
        for start in starts:
            if not self._chains.allows(start, end):
                continue
            estimate = self._estimated(start, end)
            if estimate is None:
                break
            candidate = best[start].extended(estimate, end)
            lost_ps = 0 if found is None else candidate.cost_ps - found.cost_ps
            idle += lost_ps > _NEAR * estimate.cost_ps
            if found is None or candidate.cost_ps < found.cost_ps:
                found, idle = candidate, 0
            if idle == _PATIENCE:
                break
        if found is None:
            raise DoesNotFit(f"{self.graph.layers[end - 1].name} does not fit in any chain")
        return found

    def _estimated(self, start: int, end: int) -> ChainEstimate | None:
        """Return the estimate of layers [start, end) as one chain, None if they do not fit; equal chains share it."""
        key = self._keys.key(start, end), start == 0, end == len(self.graph.layers)
        if key not in self._known:
            self._known[key] = self._estimates(key, start, end)
        found = self._known[key]
        return found[self._assumed] if found else None

    def _estimates(self, key: object, start: int, end: int) -> tuple[ChainEstimate, ...]:
        """Return the estimates of layers [start, end), one for each of ASSUMPTIONS; none if they do not fit."""
        if key in self._wider:
            wider = self._wider[key]
            if all(one.fits(self._budgets[0].reserved_bytes) for one in wider):
                return wider
        found = []
        for budget in self._budgets:
            if known := self._known_rows(budget, start, end):
                found.append([ChainEstimate(*row) for row in known])
        if not found and end - start == 1:
            chosen = self.decide(start, end).chosen
            nb_bytes = max(plan.nb_bytes for plan in chosen.chains)
            halo_bytes = max(plan.halo_bytes for plan in chosen.chains)
            room_bytes = min(budget.nb_bytes for budget in self._budgets)
            return (ChainEstimate(chosen.predicted_ps, chosen.cost_ps, nb_bytes, halo_bytes, room_bytes),) * len(
                ASSUMPTIONS
            )
        return tuple(min(each, key=lambda estimate: estimate.cost_ps) for each in zip(*found, strict=True))

    def _known_rows(self, budget: MemoryBudget, start: int, end: int) -> Rows:
        """Return the estimates of layers [start, end) that this process knows, or else finds.

        Reserved halo buffers of about one size share them.
        """
        exact = self._keys.exact(start, end), start == 0, end == len(self.graph.layers)
        key = self._context, exact, budget.nb_bytes, budget.sb_bytes, budget.is_reserved
        for turn in itertools.count():
            same_for, *found = self._shared.rows((key, turn), functools.partial(self._searched, budget, start, end))
            if budget.reserved_bytes in HaloRange(*same_for) or not budget.is_reserved:
                break
        return tuple(found)

    def _searched(self, budget: MemoryBudget, start: int, end: int) -> Rows:
        """Return the sizes of the halo buffer that have the same estimates of layers [start, end), and these.

        There are none if the layers do not fit.
        """
        same_for, found = self._search.begin(), tuple[ChainEstimate, ...]()
        with contextlib.suppress(DoesNotFit, NotTileable):
            found = self._search.estimates(self._numbered(start, end), budget, self._assumptions(start, end))
        return (same_for.low, same_for.high), *found

    def _numbered(self, start: int, end: int) -> Chain:
        """Return the chain of layers [start, end) with its number."""
        number = self._shared.number((self._context, self._keys.exact(start, end)))
        return replace(self._chains.chain(start, end), number=number)

    def _assumptions(self, start: int, end: int) -> tuple[Assumption, ...]:
        """Return ASSUMPTIONS for the chain of layers [start, end)."""
        return tuple(one.between(start == 0, end == len(self.graph.layers)) for one in ASSUMPTIONS)

    def starts(self, end: int) -> Sequence[int]:
        """Return where a chain up to `end` may begin, by the options."""
        if self.options.single_layers:
            return (end - 1,)
        return range(end - 1, max(-1, end - 1 - MAX_CHAIN), -1)


def _budgets_of(machine: Machine) -> tuple[MemoryBudget, ...]:
    """Return the buffers that a chain may use: all of them, or several ways to divide one buffer."""
    if not machine.shared_buffer:
        return (MemoryBudget(machine.nb_bytes, machine.sb_bytes, machine.halo_bytes),)
    sizes = [aligned_down(machine.nb_bytes * quarters // 4) for quarters in range(1, 4)]
    return tuple(MemoryBudget(size, machine.nb_bytes - size, min(machine.halo_bytes, size)) for size in sizes)


def _with_fewest_passes(choices: Sequence[Choice], close: float) -> Choice:
    """Return the choice with the fewest passes of those that cost up to `close` times the first, the best."""
    alike = (choice for choice in choices if choice.cost_ps <= close * choices[0].cost_ps)
    return min(alike, key=lambda choice: choice.passes)
