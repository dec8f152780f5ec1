"""Improves the chains of a graph on one core by changes, by the formula of S2.6 where chains differ."""

from __future__ import annotations

from operator import itemgetter

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.order import KnownCommands, least_time_ps, order
from device_agents.emulated_npu.compiler.planning.plan import CorePlan, WrittenChains, plan
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision
from device_agents.emulated_npu.compiler.planning.search.decisions import in_other_ways
from device_agents.emulated_npu.compiler.prediction.graph_times import GraphPredictor
from device_agents.emulated_npu.compiler.splitting.division import divide
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command

Chains = tuple[Decision, ...]

_COMPARED = 12_000
"""Commands that are ordered to compare chains with changed ones."""
_NEARLY = 1.01
"""How much longer changed chains may take that are then compared in other ways, too."""


def improved(fastest: FastestChains, predictor: GraphPredictor) -> Chains:
    """Return chains after one faster change after the other, until so many commands have been ordered."""
    tried, nearly = set[object](), list[tuple[float, Chains]]()
    others = predictor.others(fastest.graph, fastest.decisions, tried)
    while fastest.commands < _COMPARED:
        chains = next(others, None)
        if chains is not None:
            new = _replacing(fastest.decisions, chains)
            ratio = fastest.compare(chains)
            if ratio < 1:
                others = predictor.others(fastest.graph, chains, tried)
            elif new and ratio < _NEARLY:
                nearly.append((ratio, new))
        elif nearly:
            nearly.sort(key=itemgetter(0))
            others = in_other_ways(fastest.decisions, nearly.pop(0)[1], tried)
        else:
            break
    return fastest.decisions


class FastestChains:
    """The fastest chains of a graph on a core so far. Others are timed where they differ, with a chain on each side.

    Chains farther away hardly overlap with these. `commands` counts what is ordered for it. `written` and `known` are
    shared with other ways to run the graph.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        options: Options,
        chains: Chains,
        written: WrittenChains,
        known: KnownCommands,
    ) -> None:
        self.graph, self.commands = graph, 0
        self._division, self._machine, self._options = divide(graph, machine), machine, options
        self._written, self._known = written, known
        self._best, self._times = self._planned(chains), dict[tuple[int, int], int]()

    @property
    def decisions(self) -> Chains:
        """The fastest chains."""
        return self._best.decisions

    def predicted_ps(self) -> int:
        """Return the time of the fastest chains, without weights that pass through the cache."""
        return self._best_ps(0, self.decisions[-1].end)

    def compare(self, chains: Chains) -> float:
        """Return the time of other chains over that of the fastest ones, where they differ; take them if faster."""
        part = _around_changes(self.decisions, chains)
        if part is None:
            return 1.0
        other = self._planned(chains)
        commands, best_ps = self._commands(other, *part), self._best_ps(*part)
        part_ps = least_time_ps(commands, self._machine, self._options, None, self._known)
        if part_ps < _NEARLY * best_ps:
            part_ps = self._part_ps(commands)
        if part_ps < best_ps:
            self._best, self._times = other, {}
        return part_ps / best_ps

    def _planned(self, chains: Chains) -> CorePlan:
        (group,) = plan(self._division, self._options, decisions={0: chains}, written=self._written)
        return group.cores[0]

    def _commands(self, core: CorePlan, start: int, end: int) -> list[Command]:
        """Return the commands of layers [start, end)."""
        found = [command for command in core.commands if start <= command.layer < end]
        self.commands += len(found)
        return found

    def _best_ps(self, start: int, end: int) -> int:
        """Return the time of layers [start, end) in the fastest chains, by themselves."""
        if (start, end) not in self._times:
            self._times[start, end] = self._part_ps(self._commands(self._best, start, end))
        return self._times[start, end]

    def _part_ps(self, commands: list[Command]) -> int:
        return order(commands, self._machine, self._options, known=self._known).predicted_ps


def _key(decision: Decision) -> object:
    return decision.start, decision.end, decision.chosen.key


def _around_changes(chains: Chains, others: Chains) -> tuple[int, int] | None:
    """Return the first layer and the end of the chains that others replace, and of one more on each side."""
    replaced = _replacing(others, chains)
    if not replaced:
        return None
    first, end = replaced[0].start, replaced[-1].end
    around = [each for each in chains if first <= each.end and each.start <= end]
    return around[0].start, around[-1].end


def _replacing(chains: Chains, others: Chains) -> Chains:
    """Return those of other chains that are not in some chains."""
    kept = set(map(_key, chains))
    return tuple(each for each in others if _key(each) not in kept)
