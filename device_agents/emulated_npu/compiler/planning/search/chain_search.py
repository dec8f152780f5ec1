"""Searches the ways to run one chain, by predicted time: its cuts, its halo, and what stays on chip."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value
from device_agents.emulated_npu.compiler.options import Options, ResidencyChoice
from device_agents.emulated_npu.compiler.planning.chains.chain import HaloRange, MemoryBudget, element_type
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import NotTileable
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import (
    packed_bytes,
    slice_outputs,
    uses_weight_buffer,
)
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain
from device_agents.emulated_npu.compiler.planning.search.chain_times import TimedPlan
from device_agents.emulated_npu.compiler.planning.search.choices import (
    ASSUMPTIONS,
    Assumption,
    ChainCandidate,
    ChainEstimate,
    estimate_of,
    label_of,
)
from device_agents.emulated_npu.compiler.planning.search.cut_search import CutSearch
from device_agents.emulated_npu.compiler.planning.search.effort import THOROUGH, effort_of
from device_agents.emulated_npu.compiler.planning.search.known_estimates import KnownEstimates
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine


class ChainSearch:
    """Searches for plans of chains on a machine."""

    def __init__(
        self,
        values: Mapping[str, Value],
        machine: Machine,
        options: Options,
        externals: Externals,
        known: KnownEstimates,
    ) -> None:
        self._values, self._machine, self._options = values, machine, options
        self._cuts = CutSearch(values, machine, options, externals, known)

    def begin(self) -> HaloRange:
        """Begin a search; return the sizes of the halo buffer that have its result, complete when it has ended."""
        self._cuts.same_for = HaloRange()
        return self._cuts.same_for

    def estimates(
        self, chain: Chain, budget: MemoryBudget, assumptions: Sequence[Assumption]
    ) -> tuple[ChainEstimate, ...]:
        """Return quick estimates of good choices, one for each assumption; raises as `candidates`."""
        parts = self._sweeps(chain, budget)
        found: list[tuple[ChainEstimate, ...]] = []
        problems: list[DoesNotFit | NotTileable] = []
        if parts:
            try:
                # Parts of equal size take the same time.
                alike = {part.output.shape: part for part in parts}
                each = {shape: self._plans_of(part, chain, budget) for shape, part in alike.items()}
                plans = [each[part.output.shape] for part in parts]
                found.append(tuple(estimate_of(map(one.fastest, plans), budget, one) for one in assumptions))
            except (DoesNotFit, NotTileable) as error:
                problems.append(error.with_traceback(None))
        if not parts or self._residency(chain.layers[0]) != "weights":
            try:
                whole = self._cuts.coarsest(chain, budget, effort_of(chain))
                found.append(tuple(estimate_of([one.fastest(whole)], budget, one) for one in assumptions))
            except (DoesNotFit, NotTileable) as error:
                problems.append(error.with_traceback(None))
        if problems and not found:
            raise problems.pop()
        return tuple(min(each, key=lambda estimate: estimate.cost_ps) for each in zip(*found, strict=True))

    def candidates(self, chain: Chain, budget: MemoryBudget) -> Iterator[ChainCandidate]:
        """Yield all ways around the coarsest cut that fits; raises DoesNotFit, or NotTileable, if there is none."""
        swept = False
        if parts := self._sweeps(chain, budget):
            with contextlib.suppress(DoesNotFit, NotTileable):
                timed = tuple(ASSUMPTIONS[0].fastest(self._plans_of(part, chain, budget)) for part in parts)
                yield ChainCandidate(f"weights resident in {len(timed)} sweeps", timed, budget)
                swept = True
        if swept and self._residency(chain.layers[0]) == "weights":
            return
        try:
            whole = self._cuts.coarsest(chain, budget, THOROUGH)
        except (DoesNotFit, NotTileable):
            if not swept:
                raise
            return
        for each in whole:
            yield ChainCandidate(label_of(each.plan), (each,), budget)

    def _residency(self, layer: HardwareLayer) -> ResidencyChoice:
        """Return what stays on chip, "auto" for whichever is faster."""
        if self._options.residency != "smaller":
            return self._options.residency
        view = layer.inputs[0]
        features = math.prod(view.shape) * element_type(self._values[view.value], self._machine).bytes
        return "features" if features < packed_bytes(layer, self._machine) else "weights"

    def _sweeps(self, chain: Chain, budget: MemoryBudget) -> tuple[HardwareLayer, ...]:
        """Return a single layer in parts whose weights stay in SB; none if all fit, or there are no weights."""
        layer = chain.layers[0]
        if len(chain.layers) > 1 or not uses_weight_buffer(layer) or layer.weights is None:
            return ()
        if self._residency(layer) == "features":
            return ()
        parts = slice_outputs(layer, self._machine, budget.sb_bytes)
        return parts if len(parts) > 1 else ()

    def _plans_of(self, part: HardwareLayer, chain: Chain, budget: MemoryBudget) -> list[TimedPlan]:
        """Return plans of one of several parts; in half of NB, the next part arrives during computation."""
        alone, effort = replace(chain, layers=(part,), number=None), effort_of(chain)
        plans = self._cuts.coarsest(alone, budget, effort)
        with contextlib.suppress(DoesNotFit, NotTileable):
            plans = self._cuts.coarsest(alone, replace(budget, nb_bytes=budget.nb_bytes // 2), effort) + plans
        return plans
