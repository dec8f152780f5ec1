"""Predicted times and chains of whole graphs on one core, for the choice of convolution algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.order import order
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces, placeholders
from device_agents.emulated_npu.compiler.planning.plan import plan
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import (
    Alternative,
    decide_by_each_assumption,
    other_chains,
)
from device_agents.emulated_npu.compiler.splitting.division import divide
from device_agents.emulated_npu.machine import Machine


class GraphPredictor:
    """Predicts graphs on a machine (`odd_dft.choice.Predictions`); keeps what it knows of the last network's chains."""

    def __init__(self, machine: Machine, options: Options) -> None:
        self._machine, self._options = machine, options
        self._known: tuple[Graph, list[Planner]] | None = None

    def time_ps(self, graph: Graph) -> int:
        """Return the time of a graph by the formula of S2.6, without its setup; raises DoesNotFit.

        The chains are those of the first assumption.
        """
        (group,) = plan(divide(graph, self._machine), self._options)
        (core,) = group.cores
        cached = core.cached if graph.setup is None else None
        return order(core.commands, self._machine, self._options, cached).predicted_ps

    def chains(self, graph: Graph) -> list[tuple[int, int]]:
        """Return the first layer and the end of every chain of a graph; raises DoesNotFit."""
        return [(decision.start, decision.end) for decision in next(self.candidates(graph)).decisions]

    def candidates(self, graph: Graph) -> Iterator[Alternative]:
        """Yield the chains of a graph under each assumption on their neighbours; raises DoesNotFit.

        For a VFU with a separate queue, also those that are best if it shares that of the MFU.
        """
        for planner in self._planners(graph)[:-1]:
            yield from decide_by_each_assumption(planner)

    def others(self, graph: Graph, chains: tuple[Decision, ...], tried: set[object]) -> Iterator[tuple[Decision, ...]]:
        """Yield other chains of a graph, which differ at one place, as `other_chains` does."""
        yield from other_chains(self._planners(graph)[-1], chains, tried)

    def _planners(self, graph: Graph) -> list[Planner]:
        """Return the planners of a graph; the last one is for other chains.

        Equal chains share the estimate of the first of them that a planner meets. So which other chains are compared
        does not depend on how the candidates were found.
        """
        if self._known is None or self._known[0] is not graph:
            externals = placeholders(graph, self._machine, choose_spaces(graph, self._machine))
            machines = dict.fromkeys((self._machine, replace(self._machine, vfu_queue_depth=0)))
            planners = [Planner(graph, machine, self._options, externals) for machine in machines]
            self._known = graph, [*planners, planners[0].without_estimates()]
        return self._known[1]
