"""Searches the cuts of one chain: the coarsest that fits, finer ones, and what its halo does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.regions import is_windowed
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.chains.chain import (
    MAX_PASSES,
    BufferCounts,
    ChainDraft,
    ChainPlan,
    HaloRange,
    MemoryBudget,
    countless,
    draft_chain,
)
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import DividesParts, NotTileable, cut_chain
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import multiplies_computed
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain, Cut, HaloMode, count_tiles
from device_agents.emulated_npu.compiler.planning.search.chain_times import ChainTimes, QueueTimes, TimedPlan
from device_agents.emulated_npu.compiler.planning.search.choices import computes_halo_again
from device_agents.emulated_npu.compiler.planning.search.cuts import CutCandidates, Cuts, first_guess, first_that_fits
from device_agents.emulated_npu.compiler.planning.search.effort import Effort, is_searched
from device_agents.emulated_npu.compiler.planning.search.known_estimates import KnownEstimates
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine

_SINGLE_BUFFERS = BufferCounts(across=1, between=1)
_MANY_PASSES = 32
"""With fewer passes, their shape matters little."""
_MUCH_HALO = 0.1
"""The least part of a chain's room in NB that its halo takes, so that tiles of other shapes are tried."""
_HARDLY_MORE = 1.03
_DOUBT = 1.15
"""How much faster a chain in several passes is beyond doubt, where one pass would do."""
_FEW_CUTS = 3
"""Fewer cuts along an axis, such as three heads, do not show whether parts are faster: the next axis is cut, too."""
_FEW_PASSES = 2
"""Where these do not fit, more passes than one must be faster beyond doubt."""
_WORTH_PARTS = 1.01
"""How much longer than its busier queue a chain in one pass must take: parts save no more than that."""
_WORTH_FINER = 0.998
"""The search for finer cuts ends where they are hardly faster: without latency of transfers, each is a little."""
_RETAIN: tuple[HaloMode, ...] = ("retain",)
_RECOMPUTE: tuple[HaloMode, ...] = ("recompute",)


class CutSearch:
    """Searches for plans of chains on a machine, each cut in one way."""

    def __init__(
        self,
        values: Mapping[str, Value],
        machine: Machine,
        options: Options,
        externals: Externals,
        known: KnownEstimates,
    ) -> None:
        self._values, self._machine, self._options = values, machine, options
        self._times = ChainTimes(values, machine, externals, known)
        self.same_for = HaloRange()
        """The sizes of the halo buffer for which what was searched since this was set has the same result."""
        self._drafts: dict[object, ChainDraft] = {}
        self._plans: dict[object, dict[int, ChainPlan]] = {}
        self._candidates = CutCandidates(options.tile, values)

    def coarsest(self, chain: Chain, budget: MemoryBudget, effort: Effort) -> list[TimedPlan]:
        """Return plans for the coarsest cuts that fit, and finer ones; raises DoesNotFit, or NotTileable."""
        problems: list[DoesNotFit] = []
        refused: DoesNotFit | None = None
        last = chain.layers[-1]
        most = effort.tiles if len(chain.layers) > 1 else MAX_PASSES
        products = any(map(multiplies_computed, chain.layers))
        for stage in itertools.islice(self._candidates.stages(chain.layers), effort.stages):
            found: list[ChainPlan] = []
            tried = effort
            for group in stage:
                candidates = [cuts for cuts in group if is_searched(last, cuts, most)]
                if not candidates:
                    fewest = min((count_tiles(last, cuts) for cuts in group), default=0)
                    refused = countless(last, fewest) if fewest > MAX_PASSES else refused
                    continue
                wanted = 2 * problems[0].demand_bytes / max(1, budget.nb_bytes) if problems else 1.0
                try:
                    found += self._coarsest_whole(candidates, wanted, chain, budget, tried)
                except DoesNotFit as error:
                    problems.append(error.with_traceback(None))
                except NotTileable:
                    continue
                # Groups of other layers differ in the order in which they read memory: the first that fits may be slow.
                enough = is_windowed(last) and not products and len(chain.layers) > 1
                if enough and found and found[0].passes < _MANY_PASSES:
                    if not (effort.all_groups and _has_much_halo(found[0])):
                        break
                    tried = replace(effort, finer=0)
            if found:
                timed = list(map(self._times.timed, found))
                return timed + self._in_parts(timed[0], chain, budget, effort)
        if not problems and refused is not None:
            raise refused
        if not problems:
            raise NotTileable(f"{chain.layers[-1].name} cannot be cut along any axis")
        problems.sort(key=lambda problem: problem.demand_bytes)
        raise problems.pop(0)

    def _in_parts(self, whole: TimedPlan, chain: Chain, budget: MemoryBudget, effort: Effort) -> list[TimedPlan]:
        """Return plans in a few passes for a chain that fits in one.

        Later passes load, and earlier ones store, while others compute. A chain in one pass may do so beside the chains
        around it, which its prediction does not know.
        """
        times = whole.times
        if whole.plan.passes > 1 or self._options.chains != "auto":
            return []
        busy_ps = max(times.io_ps, times.unit_ps)
        if _WORTH_PARTS * busy_ps >= times.together_ps and not _could_keep_weights(whole.plan, budget):
            return []
        tried, wanted = replace(effort, finer=max(1, effort.finer)), 2 * whole.plan.nb_bytes / max(1, budget.nb_bytes)
        found: list[ChainPlan] = []
        for stage in itertools.islice(self._candidates.stages(chain.layers), 1, effort.stages):
            enough = False
            for group in stage:
                candidates = [cuts for cuts in group if is_searched(chain.layers[-1], cuts, effort.tiles)]
                # Two passes at a time may need more room than one, and the first axis may not be one that chains cut.
                with contextlib.suppress(DoesNotFit, NotTileable):
                    found += self._coarsest_whole(candidates, wanted, chain, budget, tried) if candidates else []
                enough = enough or bool(found and len(candidates) >= _FEW_CUTS)
                if enough and not (effort.all_groups and _has_much_halo(found[0])):
                    break
                tried = replace(tried, finer=0) if enough else tried
            if enough:
                break
        timed = [self._times.timed(each) for each in found]
        if timed and timed[0].plan.passes > _FEW_PASSES:
            timed = [each for each in timed if _DOUBT * each.times.together_ps < times.together_ps]
        return [replace(each, doubtful=not _is_faster(each.times, times)) for each in timed]

    def _finer(
        self, candidates: Iterable[Cuts], fastest_ps: float, chain: Chain, budget: MemoryBudget, effort: Effort
    ) -> list[TimedPlan]:
        """Return plans of cuts from coarse to fine, until `effort.finer` in a row are hardly faster than before."""
        found: list[TimedPlan] = []
        idle = 0
        for cuts in candidates:
            if idle == effort.finer:
                break
            idle += 1
            with contextlib.suppress(DoesNotFit, NotTileable):  # a finer cut may keep more halo than there is room for
                timed = list(map(self._times.timed, self._variants(chain, cuts, budget, effort)))
                found += timed
                took_ps = min(each.times.together_ps for each in timed)
                if took_ps < _WORTH_FINER * fastest_ps:
                    fastest_ps, idle = took_ps, 0
        return found

    def _coarsest_whole(
        self, candidates: list[Cuts], wanted: float, chain: Chain, budget: MemoryBudget, effort: Effort
    ) -> list[ChainPlan]:
        """Return `_coarsest_of`, without candidates that divide what a layer of the chain writes as one part."""
        try:
            return self._coarsest_of(candidates, wanted, chain, budget, effort)
        except DividesParts:
            whole = [cuts for cuts in candidates if _keeps_parts(chain, cuts)]
            if not whole:
                raise
            return self._coarsest_of(whole, wanted, chain, budget, effort)

    def _coarsest_of(
        self, candidates: list[Cuts], wanted: float, chain: Chain, budget: MemoryBudget, effort: Effort
    ) -> list[ChainPlan]:
        guess = first_guess(chain.layers[-1], candidates, wanted)
        first, found = self._fitting(candidates, guess, chain, budget, effort)
        if len(chain.layers) == 1 and is_windowed(chain.layers[0]) and found[0].passes >= _MANY_PASSES:
            with contextlib.suppress(DoesNotFit):  # larger tiles, loaded between computations, fetch less halo
                found += self._fitting(
                    candidates[: first + 1], first, chain, budget, replace(effort, buffer_counts=_SINGLE_BUFFERS)
                )[1]
        finer = candidates[first + 1 :]
        if finer and self._options.halo == "auto" and computes_halo_again(found[0]):
            with contextlib.suppress(DoesNotFit, NotTileable):  # smaller tiles leave room for the halo
                found += self._fitting(finer, 0, chain, budget, replace(effort, modes=_RETAIN))[1]
        if found[0].passes > 1 and not found[0].overlaps and self._uses_both_units(found[0]):
            with contextlib.suppress(DoesNotFit):  # smaller tiles, so that MFU and VFU work on different ones
                found += self._fitting(candidates[first:], 0, chain, budget, effort.overlapping())[1]
        return found

    def _uses_both_units(self, plan: ChainPlan) -> bool:
        """Return whether a plan has work for MFU and VFU, and each has a queue."""
        if not self._machine.vfu_queue_depth:
            return False
        times = self._times.timed(plan).times
        return times.unit_ps < times.cp_ps

    def _fitting(
        self, candidates: list[Cuts], guess: int, chain: Chain, budget: MemoryBudget, effort: Effort
    ) -> tuple[int, list[ChainPlan]]:
        """Return the place of the first candidate that fits, and the plans of it and of some after it."""
        tried: dict[int, list[ChainPlan]] = {}

        def plans(place: int) -> list[ChainPlan]:
            if place not in tried:
                tried[place] = self._variants(chain, candidates[place], budget, effort)
            return tried[place]

        first = first_that_fits(len(candidates), guess, plans)
        found = plans(first)
        if not effort.finer:
            return first, found
        fastest_ps = min(self._times.timed(each).times.together_ps for each in found)
        finer = self._finer(candidates[first + 1 :], fastest_ps, chain, budget, effort)
        return first, found + [each.plan for each in finer]

    def _variants(self, chain: Chain, cuts: Cuts, budget: MemoryBudget, effort: Effort) -> list[ChainPlan]:
        """Return plans of a chain cut in one way, one for each halo mode that fits; raises DoesNotFit."""
        found: list[ChainPlan] = []
        problems: list[DoesNotFit] = []
        for modes in [effort.modes * len(cuts)] if effort.modes else self._halo_modes(len(cuts)):
            cut = tuple([Cut(item.axis, item.size, mode) for item, mode in zip(cuts, modes, strict=True)])
            try:
                found.append(self._planned(chain, cut, budget, effort.buffer_counts))
            except DoesNotFit as error:
                problems.append(error.with_traceback(None))  # a traceback would keep all callers' values, as cycles
                if error.memory == "NB" and error.demand_bytes > budget.nb_bytes:  # does not fit without a halo either
                    break
                continue
            if not found[-1].halo_places or len(found) == effort.plans:  # without a halo all modes are the same
                break
        if problems and not found:
            raise problems.pop()
        return found

    def _planned(self, chain: Chain, cuts: Cuts, budget: MemoryBudget, buffer_counts: BufferCounts) -> ChainPlan:
        """Return the plan of a chain cut in one way; only whether it fits depends on the budget."""
        key = chain.key, cuts, buffer_counts
        if key not in self._drafts:
            self._drafts[key] = draft_chain(chain, self._values, cuts, self._machine, buffer_counts)
        self.same_for.note(self._drafts[key], budget)
        self._drafts[key].check(budget)
        known = self._plans.setdefault(key, {})
        if budget.sb_bytes not in known:
            same = (one for one in known.values() if one.keeps_weights and one.sb_bytes <= budget.sb_bytes)
            plan = next(same, None) or self._drafts[key].with_weights(self._machine, budget.sb_bytes)
            known[budget.sb_bytes] = plan
            if chain.number is not None:
                self._times.number(plan, (chain.number, cuts, buffer_counts, budget.sb_bytes))
        return known[budget.sb_bytes]

    def _halo_modes(self, cuts: int) -> Iterator[tuple[HaloMode, ...]]:
        choice = self._options.halo
        if choice == "retain-columns" and cuts:
            yield (*_RECOMPUTE * (cuts - 1), *_RETAIN)
            return
        if choice in ("auto", "retain"):
            yield _RETAIN * cuts
        if choice in ("recompute", "refetch") or (choice == "auto" and cuts):
            yield _RECOMPUTE * cuts
        if choice == "retain-columns":
            yield ()


def _is_faster(parts: QueueTimes, whole: QueueTimes) -> bool:
    """Return whether a chain in several passes is faster beyond doubt, and hardly busier beside its neighbours."""
    busy = parts.io_ps <= _HARDLY_MORE * whole.io_ps and parts.cp_ps <= _HARDLY_MORE * whole.cp_ps
    return busy and _DOUBT * parts.together_ps < whole.together_ps


def _has_much_halo(plan: ChainPlan) -> bool:
    """Return whether tiles of another shape may save a part of a chain's time that matters."""
    return computes_halo_again(plan) or _MUCH_HALO * plan.nb_bytes < plan.halo_bytes


def _could_keep_weights(plan: ChainPlan, budget: MemoryBudget) -> bool:
    """Return whether a plan streams weights that SB can hold: in several passes they stay there, in larger loads."""
    loads = [load for weights in plan.weights.values() for load in weights.loads]
    return not plan.keeps_weights and sum(load.bytes for load in loads) <= budget.sb_bytes


def _keeps_parts(chain: Chain, cuts: Cuts) -> bool:
    try:
        cut_chain(chain, cuts)
    except NotTileable:
        return False
    return True
