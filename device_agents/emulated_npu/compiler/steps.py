"""From a graph to what the units execute, step by step: chains, buffers on chip, commands, their order (S2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, with_parts
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.ordering.hazards import ONE_BUFFER, SEPARATE
from device_agents.emulated_npu.compiler.ordering.reorder import hoist_loads
from device_agents.emulated_npu.compiler.ordering.synchronise import fence_between_layers, synchronise
from device_agents.emulated_npu.compiler.planning.allocation import ALIGNMENT_BYTES, aligned
from device_agents.emulated_npu.compiler.planning.chain import ChainPlan, Room
from device_agents.emulated_npu.compiler.planning.chain_planner import ChainOutline, Decision, Planner
from device_agents.emulated_npu.compiler.planning.lowering import ChainWriter, Externals
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.unit_commands import Command, Item

_HOIST_WINDOW = 64
_HALO_LOSS = 0.01


def decide(graph: Graph, machine: Machine, options: Options, externals: Externals) -> tuple[Decision, ...]:
    """Plans for what the machine has; every chain divides a buffer for features and weights in its best way."""
    planner = Planner(graph, machine, options, externals, rooms_of(machine))
    if options.chains == "whole":
        return planner.plan()
    outline, chosen = min(_outlines(planner), key=lambda pair: pair[0].predicted_ps)
    return chosen.decide_all(outline)


def _outlines(planner: Planner) -> Iterator[tuple[ChainOutline, Planner]]:
    """Outlines that fit; raises DoesNotFit where there is none.

    The halo buffer comes out of the room which other chains count on: where that costs more than a little, it is
    tried with a quarter of it and with none.
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
    """What a chain may have of the buffers of a core: all, or several ways to divide one buffer."""
    if machine.shared_buffer:
        return tuple(_shares(machine))
    return (Room(machine.nb_bytes, machine.sb_bytes, machine.halo_bytes),)


def _shares(machine: Machine) -> Iterator[Room]:
    """Ways to divide the one buffer of a machine between features and weights, in quarters."""
    for quarters in range(1, 4):
        nb_bytes = _down(machine.nb_bytes * quarters // 4)
        yield Room(nb_bytes, machine.nb_bytes - nb_bytes, min(machine.halo_bytes, nb_bytes))


@dataclass(frozen=True)
class Layout:
    """Buffers on chip: chains take turns between both ends, so that one can begin before the other ends.

    `nb_top` and `sb_top` are where the upper chains end: above any two neighbours, where there is room for both. In a
    machine with one buffer they are the same, and a chain's weights lie behind its features.
    """

    nb_top: int
    sb_top: int
    halo_bytes: int
    one_buffer: bool

    @classmethod
    def of(cls, machine: Machine, plans: list[ChainPlan]) -> Layout:
        """Room for chains that run one after the other, within what the machine has."""
        halo_bytes = max((plan.halo_bytes for plan in plans), default=0)
        nb_sizes, sb_sizes = [aligned(plan.nb_bytes) for plan in plans], [aligned(plan.sb_bytes) for plan in plans]
        if machine.shared_buffer:
            both = [sum(sizes) for sizes in zip(nb_sizes, sb_sizes, strict=True)]
            top = min(machine.nb_bytes - halo_bytes, _highest(both))
            return cls(top, top, halo_bytes, one_buffer=True)
        nb_top = min(machine.nb_bytes - halo_bytes, _highest(nb_sizes))
        return cls(nb_top, min(machine.sb_bytes, _highest(sb_sizes)), halo_bytes, one_buffer=False)

    @property
    def bytes(self) -> tuple[int, int, int, int]:
        """As the footprint has them."""
        return self.nb_top, self.sb_top, self.halo_bytes, self.nb_top + self.halo_bytes if self.one_buffer else 0

    def bases(self, turn: int, plan: ChainPlan) -> tuple[int, int]:
        """Where the buffers of the chain in this turn begin."""
        upper = turn % 2 == 1
        if self.one_buffer:
            nb_base = _down(self.nb_top - aligned(plan.nb_bytes) - plan.sb_bytes) if upper else 0
            return nb_base, nb_base + aligned(plan.nb_bytes)
        return (_down(self.nb_top - plan.nb_bytes), _down(self.sb_top - plan.sb_bytes)) if upper else (0, 0)


def _down(address: int) -> int:
    return address // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _highest(sizes: list[int]) -> int:
    pairs = (first + second for first, second in itertools.pairwise(sizes))
    return max(max(sizes, default=0), max(pairs, default=0))


def lowered(
    graph: Graph, machine: Machine, plans: list[ChainPlan], externals: Externals, layout: Layout
) -> Iterator[Command]:
    """The commands of chains one after the other."""
    values = with_parts(graph.values)
    for turn, plan in enumerate(plans):
        nb_base, sb_base = layout.bases(turn, plan)
        yield from ChainWriter(plan, values, machine, externals, nb_base, sb_base).commands()


def ordered(commands: list[Command], machine: Machine, options: Options) -> list[Item]:
    """The commands with their synchronisation; re-ordered where that is wanted and by the formula no slower."""
    memory_of = ONE_BUFFER if machine.shared_buffer else SEPARATE
    if options.fences:
        layers = [list(group) for _, group in itertools.groupby(commands, key=lambda command: command.layer)]
        if options.reorder:
            layers = [hoist_loads(layer, window=_HOIST_WINDOW, memory_of=memory_of) for layer in layers]
        return fence_between_layers(synchronise([command for layer in layers for command in layer], memory_of))
    items = synchronise(commands, memory_of)
    if not options.reorder:
        return items
    hoisted = synchronise(hoist_loads(commands, window=_HOIST_WINDOW, memory_of=memory_of), memory_of)
    return min(hoisted, items, key=lambda order: predicted_time_ps(order, machine))


def predicted_time_ps(items: list[Item], machine: Machine) -> int:
    """Time by the formula of S2.6, before there is a program."""
    return formula((IssuedStep(pc, item, 0) for pc, item in enumerate(items)), machine).total_ps
