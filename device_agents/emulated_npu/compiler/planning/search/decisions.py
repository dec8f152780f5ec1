"""Decides how a graph is divided into chains, and how the chains share the halo buffer and a common buffer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.allocation import aligned, aligned_down
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, Room
from device_agents.emulated_npu.compiler.planning.chains.chain_commands import Externals
from device_agents.emulated_npu.compiler.planning.search.chain_planner import ChainOutline, Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.choices import ASSUMPTIONS
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine

_HALO_LOSS = 0.01
_SHORT = 24
"""Layers of a graph that is tried as one chain."""


def decide(graph: Graph, machine: Machine, options: Options, externals: Externals) -> tuple[Decision, ...]:
    """Choose the chains of a graph by predicted time, under one of ASSUMPTIONS; raises DoesNotFit.

    It is the first one, or for a layer without neighbours the second. Where features and weights share one buffer,
    every chain divides it in the way that is fastest for that chain.
    """
    planner = Planner(graph, machine, options, externals, rooms_of(machine))
    return _decided(planner.assuming(1 if len(graph.layers) == 1 else 0), options)


def decide_by_each_assumption(
    graph: Graph, machine: Machine, options: Options, externals: Externals
) -> Iterator[tuple[Decision, ...]]:
    """Yield the chains of a graph that are fastest under each of ASSUMPTIONS, without repetition; raises DoesNotFit.

    Chains that keep a halo are followed by the fastest that keep none: passes that do not need rows of the pass before
    them overlap more with their neighbours than predictions know. A short graph is tried as one chain, too: the search
    ends before it gets there.
    """
    planner = Planner(graph, machine, options, externals, rooms_of(machine))
    seen: list[tuple[tuple[ChainPlan, ...], ...]] = []
    for place in range(len(ASSUMPTIONS)):
        for decisions in _alternatives(planner.assuming(place), graph, options):
            chains = tuple(decision.chains for decision in decisions)
            if chains not in seen:
                seen.append(chains)
                yield decisions


def _alternatives(planner: Planner, graph: Graph, options: Options) -> Iterator[tuple[Decision, ...]]:
    """Yield the fastest chains by prediction, and others that may be faster; raises DoesNotFit."""
    first = _decided(planner, options)
    yield first
    if options.halo == "auto" and any(plan.halo_bytes for decision in first for plan in decision.chains):
        with contextlib.suppress(DoesNotFit):
            yield _decided(planner.within(0), options)
    count = len(graph.layers)
    if len(first) > 1 and count <= _SHORT and len(planner.starts(count)) > 1:
        with contextlib.suppress(DoesNotFit):
            yield (planner.whole(),)


def decide_chains(
    graph: Graph, machine: Machine, options: Options, externals: Externals, ends: Sequence[int], halo_bytes: int
) -> tuple[Decision, ...]:
    """Choose how to run chains that end at `ends`, with that much of a halo buffer; raises DoesNotFit."""
    planner = Planner(graph, machine, options, externals, rooms_of(machine)).within(halo_bytes)
    return tuple(planner.decide(start, end) for start, end in itertools.pairwise((0, *ends)))


def _decided(planner: Planner, options: Options) -> tuple[Decision, ...]:
    if options.chains == "whole":
        return (planner.whole(),)
    outline, chosen = min(_outlines(planner), key=lambda pair: pair[0].predicted_ps)
    return tuple(chosen.decide(start, end) for start, end in itertools.pairwise(outline.ends))


def _outlines(planner: Planner) -> Iterator[tuple[ChainOutline, Planner]]:
    """Yield outlines that fit, each with its planner; raises DoesNotFit if there is none.

    The halo buffer takes room that the first outline has promised to other chains. If that costs more than
    `_HALO_LOSS`, a quarter of the halo buffer and no halo buffer are tried as well.
    """
    free = planner.outline()
    problems: list[DoesNotFit] = []
    sizes = tuple(dict.fromkeys((free.halo_bytes, aligned(free.halo_bytes // 4), 0)))
    for size in sizes:
        smaller = planner.within(size)
        same = smaller.outlined(free.ends)
        if same is not None:
            yield same, smaller
            if same.predicted_ps <= (1 + _HALO_LOSS) * free.predicted_ps:
                return
        try:
            yield smaller.outline(), smaller
        except DoesNotFit as error:
            problems.append(error)
    if len(problems) == len(sizes):
        raise problems[0]


def rooms_of(machine: Machine) -> tuple[Room, ...]:
    """Return the buffers that a chain may use: all of them, or several ways to divide one buffer."""
    if not machine.shared_buffer:
        return (Room(machine.nb_bytes, machine.sb_bytes, machine.halo_bytes),)
    sizes = [aligned_down(machine.nb_bytes * quarters // 4) for quarters in range(1, 4)]
    return tuple(Room(size, machine.nb_bytes - size, min(machine.halo_bytes, size)) for size in sizes)
