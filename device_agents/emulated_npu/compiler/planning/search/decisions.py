"""Decides how a graph is divided into chains, and how the chains share the halo buffer and a common buffer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.search.chain_planner import MAX_CHAIN, ChainOutline, Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.choices import ASSUMPTIONS
from device_agents.emulated_npu.emulator_errors import DoesNotFit

_DOUBTING, _ALONE = 0, 1
"""Places in ASSUMPTIONS: of the choice for cores of several, and of the first choice for a core of its own."""
_SHORT = 24
"""Layers of a graph that is tried as one chain."""
_ABOUT = 0.02
"""How much longer another way to run a chain may be predicted to take."""
_CLOSE, _CLOSER = 1.1, 1.03
"""How much longer other chains may be estimated to take; the second one for chains that only end elsewhere."""


@dataclass(frozen=True)
class Alternative:
    """Chains of a graph that are best under one of ASSUMPTIONS; `rest` are the planners with other halo buffers.

    Each comes with where its chains end, the one that is estimated to cost least first.
    """

    decisions: tuple[Decision, ...]
    planner: Planner
    rest: tuple[tuple[Planner, tuple[int, ...]], ...]

    def joined(self) -> Alternative:
        """Return it with chains in one pass joined to longer ones than are searched first; raises DoesNotFit."""
        within = self.planner.within(_halo_bytes(self.decisions))
        return replace(self, decisions=_decisions(within, within.longer(self.decisions).ends))

    def with_other_halo_buffers(self) -> Iterator[tuple[Decision, ...]]:
        """Yield the chains, joined, for the other sizes of the halo buffer."""
        for planner, ends in self.rest:
            with contextlib.suppress(DoesNotFit):
                yield replace(self, decisions=_decisions(planner, ends)).joined().decisions


def decide(planner: Planner) -> tuple[Decision, ...]:
    """Choose the chains of a graph by predicted time, under one of ASSUMPTIONS; raises DoesNotFit.

    It is the first one, or for a layer without neighbours the second.
    """
    return _decided(planner, [_ALONE if len(planner.graph.layers) == 1 else _DOUBTING])[0].decisions


def decide_by_each_assumption(planner: Planner) -> Iterator[Alternative]:
    """Yield the chains of a graph that are best under each of ASSUMPTIONS, each once; raises DoesNotFit.

    Chains in one pass are also joined to longer ones than are searched first, and a short graph is tried as one.
    """
    seen: list[tuple[tuple[ChainPlan, ...], ...]] = []
    for alternative in _alternatives(planner):
        chains = tuple(decision.chains for decision in alternative.decisions)
        if chains not in seen:
            seen.append(chains)
            yield alternative


def _alternatives(planner: Planner) -> Iterator[Alternative]:
    found = _decided(planner, range(len(ASSUMPTIONS)))
    yield from found
    for alternative in found:
        with contextlib.suppress(DoesNotFit):
            yield alternative.joined()
    count = len(planner.graph.layers)
    if 1 < count <= _SHORT and len(planner.starts(count)) > 1:
        with contextlib.suppress(DoesNotFit):
            yield Alternative((planner.whole(),), planner, ())


class _Change(NamedTuple):
    """Another choice for `replaced` chains from `place` on, with how much longer it is estimated to take.

    `ends` are where its chains begin and end. Another way to run the same layers is `decision`; what runs between other
    ends is decided when the change is tried.
    """

    more_ps: int
    place: int
    replaced: int
    ends: tuple[int, ...]
    decision: Decision | None = None

    @property
    def key(self) -> object:
        """What distinguishes it from other changes."""
        return self.ends, None if self.decision is None else self.decision.chosen.key


def other_chains(planner: Planner, decisions: Sequence[Decision], tried: set[object]) -> Iterator[tuple[Decision, ...]]:
    """Yield chains of a graph in which one runs in another way, joins the next, ends elsewhere, or is cut in two.

    Changes of ends and of ways take turns, because ways are many and much alike; of each kind, those that are estimated
    to gain most come first. They have the halo buffer of these chains. Changes that were `tried`, to which these are
    added, or are estimated to take far longer, are left out, and all if the options fix chains.
    """
    options = planner.options
    if len(planner.graph.layers) == 1 or options.chains != "auto" or options.single_layers:
        return
    planner = planner.assuming(_ALONE)
    within = planner.within(_halo_bytes(decisions))
    kinds = (
        sorted((one for one in found if one.key not in tried), key=itemgetter(0, 1, 2))
        for found in (_other_ends(planner, decisions), _other_ways(decisions, range(len(decisions))))
    )
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*kinds))
    for change in filter(None, in_turn):
        with contextlib.suppress(DoesNotFit):
            new = (change.decision,) if change.decision is not None else _decisions(within, change.ends)
            tried.add(change.key)
            yield (*decisions[: change.place], *new, *decisions[change.place + change.replaced :])


def in_other_ways(
    decisions: Sequence[Decision], new: Sequence[Decision], tried: set[object]
) -> Iterator[tuple[Decision, ...]]:
    """Yield chains with new ones in place of theirs, of which one runs in another way; `tried` as in `other_chains`.

    There are none if no chain begins or ends where the new ones do.
    """
    start, end = new[0].start, new[-1].end
    before = [each for each in decisions if each.end <= start]
    after = [each for each in decisions if each.start >= end]
    changed = (*before, *new, *after)
    if sum(each.end - each.start for each in changed) < decisions[-1].end:
        return
    for change in sorted(_other_ways(changed, range(len(before), len(before) + len(new))), key=itemgetter(0, 1, 2)):
        beside = tuple((each.end, each.chosen.key) for each in new if each.start != change.ends[0])
        key = (beside, change.key) if beside else change.key
        if key not in tried and change.decision is not None:
            tried.add(key)
            yield (*changed[: change.place], change.decision, *changed[change.place + 1 :])


def _other_ways(decisions: Sequence[Decision], places: Iterable[int]) -> Iterator[_Change]:
    """Yield the other ways to run chains that are about as fast, and need no larger halo buffer."""
    halo_bytes = _halo_bytes(decisions)
    for place in places:
        decision = decisions[place]
        chosen = decision.chosen
        for way in decision.others:
            more_ps = way.predicted_ps - chosen.predicted_ps
            if more_ps > _ABOUT * chosen.predicted_ps or any(plan.halo_bytes > halo_bytes for plan in way.chains):
                continue
            rest = tuple(each for each in (*decision.others, chosen) if each is not way)
            ends = decision.start, decision.end
            yield _Change(more_ps, place, 1, ends, replace(decision, chosen=way, others=rest))


def _other_ends(planner: Planner, decisions: Sequence[Decision]) -> Iterator[_Change]:
    """Yield the changes of where chains end that are not estimated to take far longer."""
    for place in range(len(decisions)):
        for count, ends, close in _changes(decisions[place : place + 2]):
            estimates_ps = [planner.estimated_ps(*chain) for chain in itertools.pairwise(ends)]
            taken_ps = sum(each.chosen.predicted_ps for each in decisions[place : place + count])
            needed_ps = sum(filter(None, estimates_ps))
            if all(each is not None for each in estimates_ps) and needed_ps <= close * taken_ps:
                yield _Change(needed_ps - taken_ps, place, count, ends)


def _halo_bytes(decisions: Sequence[Decision]) -> int:
    """Return the size of the halo buffer of some chains."""
    return max(plan.halo_bytes for decision in decisions for plan in decision.chains)


def _changes(pair: Sequence[Decision]) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """Yield how many of two chains change, where new ones begin and end, and how much longer these may take.

    A chain is cut in two anywhere, into parts of at most MAX_CHAIN layers: the first search has estimated most of them.
    """
    start, end, last = pair[0].start, pair[0].end, pair[-1].end
    both = len(pair)
    if both > 1:
        yield both, (start, last), _CLOSE
    inner = {start + 1, end - 1, *range(max(start + 1, end - MAX_CHAIN), min(end, start + MAX_CHAIN + 1))}
    ways = [(1, (start, other, end), _CLOSE) for other in sorted(inner)]
    ways += [(both, (start, other, last), _CLOSER) for other in (end - 1, end + 1) if both > 1]
    yield from (way for way in ways if all(low < high for low, high in itertools.pairwise(way[1])))


def decide_chains(planner: Planner, ends: Sequence[int], halo_bytes: int) -> tuple[Decision, ...]:
    """Choose how to run chains that end at `ends`, with that much of a halo buffer; raises DoesNotFit."""
    return _decisions(planner.within(halo_bytes), (0, *ends))


def _decided(planner: Planner, assumptions: Sequence[int]) -> list[Alternative]:
    """Return the best chains under each of some assumptions; raises DoesNotFit.

    The halo buffer takes room from all chains. Its size is what chains with all the room request, a quarter of the
    largest request, or zero.
    """
    if planner.options.chains == "whole":
        return [Alternative((planner.whole(),), planner, ())]
    assumed = [planner.assuming(place) for place in assumptions]
    free = [one.outline() for one in assumed]
    requested = [outline.halo_bytes for outline in free]
    sizes = tuple(dict.fromkeys((*requested, aligned(max(requested) // 4), 0)))
    return [_cheapest(one, outline.ends, sizes) for one, outline in zip(assumed, free, strict=True)]


def _cheapest(planner: Planner, ends: Sequence[int], halo_sizes: Sequence[int]) -> Alternative:
    """Return the chains that cost least with one of some sizes of the halo buffer; raises DoesNotFit if none fits."""
    found: list[tuple[int, Planner, tuple[int, ...]]] = []
    problems: list[DoesNotFit] = []
    for size in halo_sizes:
        smaller = planner.within(size)
        try:
            outline = _outline(smaller, ends)
            found.append((outline.cost_ps, smaller, outline.ends))
        except DoesNotFit as error:
            problems.append(error.with_traceback(None))
    if not found:
        raise problems.pop(0)
    found.sort(key=itemgetter(0))
    (_, chosen, best), *rest = found
    return Alternative(_decisions(chosen, best), planner, tuple((one, other) for _, one, other in rest))


def _decisions(planner: Planner, ends: Sequence[int]) -> tuple[Decision, ...]:
    """Return the chains between places that follow each other; raises DoesNotFit."""
    return tuple(planner.decide(start, end) for start, end in itertools.pairwise(ends))


def _outline(planner: Planner, ends: Sequence[int]) -> ChainOutline:
    """Return the outline that costs least, or that of chains with these ends: a layer of it may not fit by itself.

    If these chains do not fit either, the error is that of the layer: it has the demand and the limit.
    """
    try:
        return planner.outline()
    except DoesNotFit as error:
        with contextlib.suppress(DoesNotFit):
            return planner.outlined(ends)
        raise error.with_traceback(None) from None
