"""Ways to run a chain, their estimates, and the assumptions under which one is chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, MemoryBudget
from device_agents.emulated_npu.compiler.planning.search.chain_times import QueueTimes, TimedPlan, in_sequence


@dataclass(frozen=True)
class Assumption:
    """What the choice of chains assumes of their neighbours, which are not chosen yet.

    `before` and `after` are the shares of a chain's first loads and last stores that neighbours hide. `trusting`
    choices divide a chain that fits in one pass wherever that is predicted to be faster; others only where it is beyond
    doubt. If neighbours keep the queues `busy` all the time, a chain costs what it adds to their work. With `few`, ways
    that hardly cost more are better in fewer passes: predictions do not know of waits between passes.
    """

    before: float
    after: float
    trusting: bool
    busy: bool = False
    few: bool = False

    def between(self, is_first: bool, is_last: bool) -> Assumption:
        """Return the assumption for a chain by its place: before the first and after the last one there is nothing."""
        if not is_first and not is_last:
            return self
        return replace(self, before=0.0 if is_first else self.before, after=0.0 if is_last else self.after)

    def predicted_ps(self, times: Sequence[QueueTimes]) -> int:
        """Return the time of chains in sequence."""
        return sum(each.beside_ps(self.before, self.after) for each in times)

    def cost_ps(self, times: Sequence[QueueTimes]) -> int:
        """Return the cost that the search minimises: the time of chains, or the mean of the work of both queues."""
        return sum(each.io_ps + each.cp_ps for each in times) // 2 if self.busy else self.predicted_ps(times)

    def fastest(self, timed: Sequence[TimedPlan]) -> TimedPlan:
        """Return the plan that costs least."""
        trusted = [each for each in timed if self.trusting or not each.doubtful]
        return min(trusted, key=lambda each: self.cost_ps([each.times]))


ASSUMPTIONS = (
    Assumption(0.0, 0.0, False),
    Assumption(0.0, 0.0, True),
    Assumption(0.5, 0.5, True, few=True),
    Assumption(0.5, 0.5, True, busy=True),
)
"""The assumptions that are tried; the formula then says which fits the network."""


@dataclass(frozen=True)
class ChainCandidate:
    """A candidate execution of some layers, as one chain or several in sequence, within a memory budget."""

    label: str
    timed: tuple[TimedPlan, ...]
    budget: MemoryBudget

    @property
    def doubtful(self) -> bool:
        """Whether a plan of it is doubtful."""
        return any(each.doubtful for each in self.timed)

    def chosen(self, assumption: Assumption) -> Choice:
        """Return the choice that it is under an assumption."""
        estimate = estimate_of(self.timed, self.budget, assumption)
        return Choice(self.label, tuple(each.plan for each in self.timed), estimate.predicted_ps, estimate.cost_ps)


@dataclass(frozen=True)
class Choice:
    """A way to run some layers, as one chain or several in sequence, with its predicted time and its cost."""

    label: str
    chains: tuple[ChainPlan, ...]
    predicted_ps: int
    cost_ps: int

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes it from the other ways to run the same layers: cuts, bytes and weights of its chains."""
        return tuple((one.geometry.cuts, one.nb_bytes, one.halo_bytes, one.kept_weights) for one in self.chains)

    @property
    def passes(self) -> int:
        """The number of passes of all chains."""
        return sum(chain.passes for chain in self.chains)

    @property
    def overlaps(self) -> bool:
        """Whether MFU and VFU work on different passes of a chain."""
        return any(chain.overlaps for chain in self.chains)


class ChainEstimate(NamedTuple):
    """Time and cost of some layers as one chain, the bytes that they need, and those of NB in their budget."""

    predicted_ps: int
    cost_ps: int
    nb_bytes: int
    halo_bytes: int
    room_bytes: int

    def fits(self, reserved_bytes: int) -> bool:
        """Return whether the layers fit in their budget if the halo buffer has that many bytes of it."""
        return self.halo_bytes <= reserved_bytes <= self.room_bytes - self.nb_bytes


def estimate_of(timed: Iterable[TimedPlan], budget: MemoryBudget, assumption: Assumption) -> ChainEstimate:
    """Return the estimate of chains in sequence; where two fit SB, the weights of one arrive during the one before."""
    chains = tuple(timed)
    plans, times = [each.plan for each in chains], [each.times for each in chains]
    if all(one.sb_bytes + other.sb_bytes <= budget.sb_bytes for one, other in itertools.pairwise(plans)):
        times = [in_sequence(times)]
    nb_bytes, halo_bytes = max(plan.nb_bytes for plan in plans), max(plan.halo_bytes for plan in plans)
    predicted_ps, cost_ps = assumption.predicted_ps(times), assumption.cost_ps(times)
    return ChainEstimate(predicted_ps, cost_ps, nb_bytes, halo_bytes, budget.nb_bytes)


def computes_halo_again(plan: ChainPlan) -> bool:
    """Return whether passes compute or fetch the halo of the pass before them again."""
    return any(cut.mode == "recompute" for cut in plan.geometry.cuts)


def label_of(plan: ChainPlan) -> str:
    """Return how a chain runs, in words."""
    parts = [f"{plan.passes} passes" if plan.passes > 1 else "one pass"]
    if plan.halo_places:
        parts.append("halo retained")
    elif plan.passes > 1 and computes_halo_again(plan):
        parts.append("halo fetched again" if len(plan.layers) == 1 else "halo recomputed")
    if any(not weights.resident for weights in plan.weights.values()):
        parts.append("weights streamed" if plan.passes == 1 else "features resident, weights streamed")
    elif plan.weights and plan.passes > 1:
        parts.append("weights resident")
    return ", ".join(parts)
