"""The planning stage: from the graphs of core groups to chains, addresses and the commands of every core (S2.5, S5.7).

The chains of all cores are decided and all memories laid out before any command is written: a core that sends needs
the address at the receiver. Where each core takes its messages is decided when the commands of all cores are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value, with_parts
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.barriers import (
    Phases,
    barriers,
    phases_of,
    shared_lifetimes,
    with_notices,
)
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan, element_type
from device_agents.emulated_npu.compiler.planning.chains.chain_commands import ChainWriter
from device_agents.emulated_npu.compiler.planning.chains.externals import Destination, Destinations, Externals
from device_agents.emulated_npu.compiler.planning.chains.layout import ScratchpadLayout
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, buffer_bytes
from device_agents.emulated_npu.compiler.planning.off_chip.cache_places import cached_values
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import (
    FREE,
    ExternalMemory,
    OccupiedMemory,
    choose_spaces,
    placed,
    placeholders,
)
from device_agents.emulated_npu.compiler.planning.off_chip.relocation import Relocation
from device_agents.emulated_npu.compiler.planning.receives import NO_BARRIERS, ReceivedValue, messages_to, with_receives
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import decide
from device_agents.emulated_npu.compiler.splitting.division import Division, GroupGraph
from device_agents.emulated_npu.isa.program import Footprint
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, Function, Space

NO_DECISIONS: Mapping[int, tuple[Decision, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class CorePlan:
    """What one core does: its chains, its buffers on and off chip, and its commands in program order."""

    core: int
    graph: Graph
    decisions: tuple[Decision, ...]
    layout: ScratchpadLayout
    externals: Externals
    commands: list[Command]

    @property
    def cached(self) -> tuple[CachedValue, ...]:
        """The values in the last-level cache."""
        steps = [decision.chains for decision in self.decisions]
        return cached_values(steps, self.graph.values, self.externals.values)


@dataclass(frozen=True)
class GroupPlan:
    """The plans of the cores of a group, and the memory off chip that they share.

    `received_bytes` is what the group receives for one input.
    """

    group: GroupGraph
    cores: tuple[CorePlan, ...]
    memory: ExternalMemory
    received_bytes: int

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Where the values of the group lie."""
        return self.cores[0].externals.values

    def footprint(self, core: CorePlan) -> Footprint:
        """Return the bytes of each memory that a core of the group uses."""
        return Footprint(self.memory.ddr_bytes, self.memory.llc_bytes, *core.layout.bytes)


def plan(
    division: Division,
    options: Options,
    *,
    decisions: Mapping[int, tuple[Decision, ...]] = NO_DECISIONS,
    occupied: OccupiedMemory = FREE,
    written: WrittenChains | None = None,
) -> tuple[GroupPlan, ...]:
    """Plan every core of a division and write out its commands.

    Requires: a division whose convolutions are as they are to be computed. `decisions` are chains by core that are
    already chosen; `occupied` is memory that the groups must not use; `written` has chains of other plans of one core.
    Ensures: one plan for each group. The commands of each core compute its graph if every command ends before the next
    begins. No two values that live at the same time share an address. Raises DoesNotFit, naming the group.
    """
    spaces = [_spaces(group) for group in division.groups]
    chosen = _decisions(division, spaces, options, decisions)
    sharing = [core for group in division.groups if len(group.cores) > 1 for core in group.cores]
    phases = {core: phases_of(division.phases, _chains(chosen[core])) for core in sharing}
    memories = [
        _GroupMemory.of(group, own, chosen, phases, occupied)
        for group, own in zip(division.groups, spaces, strict=True)
    ]
    buffers = [memory.buffers for memory in memories]
    cores: dict[int, CorePlan] = {}
    notices: dict[int, Collection[int]] = {}
    for group, memory in zip(division.groups, memories, strict=True):
        for core, machine, part, own in zip(group.cores, group.machines, group.parts, memory.externals, strict=True):
            chains = _chains(chosen[core])
            externals = replace(own, sends=_sends(division, core, buffers))
            layout = ScratchpadLayout.of(machine, chains)
            commands = list((written or WrittenChains()).commands(part, machine, chains, externals, layout))
            if memory.shares_addresses:
                peers = {other: phases[other] for other in group.cores if other != core}
                commands, notices[core] = with_notices(commands, phases[core], peers)
            cores[core] = CorePlan(core, part, chosen[core], layout, externals, commands)
    return _with_messages(division, memories, cores, phases, notices)


class WrittenChains:
    """Writes the chains of a core, each once: other ways to run a network have most chains at the same places."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[ChainPlan, list[Command]]] = {}  # the plan stays alive, so its id stays unique
        self._constants: object = None

    def commands(
        self,
        graph: Graph,
        machine: Machine,
        chains: Sequence[ChainPlan],
        externals: Externals,
        layout: ScratchpadLayout,
    ) -> Iterator[Command]:
        """Yield the commands of chains, one chain after the other."""
        values = with_parts(graph.values)
        constants = externals.weights, externals.constants, externals.sends
        if constants != self._constants:
            self._known, self._constants = {}, constants
        for turn, chain in enumerate(chains):
            bases = layout.bases(turn, chain)
            names = map(whole_value, chain.geometry.regions)
            key = id(chain), bases, tuple([externals.values.get(name) for name in names])
            if key not in self._known:
                self._known[key] = chain, list(ChainWriter(chain, values, machine, externals, *bases).commands())
            yield from self._known[key][1]


def _spaces(group: GroupGraph) -> dict[str, Space]:
    """Return the memories of the values, without those that are sent away and read nowhere in the group."""
    kept = {view.value for layer in group.graph.layers for view in layer.reads}
    for name, value in group.graph.values.items():
        if value.is_output or value.kind in ("input", "received", "setup"):
            kept.add(name)
    spaces = choose_spaces(group.graph, group.machine, group.slots)
    return {name: space for name, space in spaces.items() if name in kept}


def _decisions(
    division: Division,
    spaces: Sequence[Mapping[str, Space]],
    options: Options,
    known: Mapping[int, tuple[Decision, ...]],
) -> dict[int, tuple[Decision, ...]]:
    """Choose the chains of every core; predictions do not depend on addresses."""
    buffers = [
        {name: placed(group.graph.values[name], group.machine, space, 0) for name, space in own.items()}
        for group, own in zip(division.groups, spaces, strict=True)
    ]
    found = dict(known)
    for group, own in zip(division.groups, spaces, strict=True):
        for core, machine, part in zip(group.cores, group.machines, group.parts, strict=True):
            if core not in found:
                externals = placeholders(part, machine, own, _sends(division, core, buffers))
                found[core] = decide(Planner(part, machine, options, externals)) if part.layers else ()
    return found


def _chains(decisions: Sequence[Decision]) -> list[ChainPlan]:
    return [chain for decision in decisions for chain in decision.chains]


def _sends(division: Division, core: int, buffers: Sequence[Mapping[str, Buffer]]) -> Mapping[str, Destinations]:
    """Return where a core sends its values; `buffers` are those of every group."""
    found: dict[str, Destinations] = {}
    for one in division.crossings:
        if one.writer == core:
            is_own = core in division.groups[one.group].cores
            buffer = None if is_own else buffers[one.group][one.value]
            found[one.value] = (*found.get(one.value, ()), Destination(one.cores, buffer, one.region))
    return found


@dataclass(frozen=True)
class _GroupMemory:
    """The memory of a group with an address for every value, weight and constant."""

    memory: ExternalMemory
    externals: tuple[Externals, ...]
    relocation: Relocation

    @classmethod
    def of(
        cls,
        group: GroupGraph,
        spaces: Mapping[str, Space],
        decisions: Mapping[int, tuple[Decision, ...]],
        phases: Mapping[int, Phases],
        occupied: OccupiedMemory,
    ) -> _GroupMemory:
        """Lay out the memory of a group; raises DoesNotFit, naming the group.

        Several cores share addresses only if their values do not fit in the cache side by side: it takes barriers.
        """
        chains = [_chains(decisions[core]) for core in group.cores]
        found = shared_lifetimes(group.parts, [phases[core] for core in group.cores]) if len(chains) > 1 else {}
        plans = [plan for own in chains for plan in own]
        moved = {whole_value(name) for plan in plans for name in (*plan.geometry.stored, *plan.geometry.loaded)}
        kept = moved & spaces.keys() - group.slots.keys()
        found = {name: span for name, span in found.items() if name in kept}
        values = (group.graph.values[name] for name in found)
        sizes = (buffer_bytes(value.shape, element_type(value, group.machine)) for value in values)
        if sum(map(aligned, sizes)) <= group.machine.llc.bytes - occupied.llc_bytes:
            found = {}
        memory = ExternalMemory(group, spaces, chains, found, occupied)
        externals = memory.run()
        relocation = Relocation.of((group.graph.values[name] for name in found), externals[0].values)
        return cls(memory, tuple(map(relocation.apart, externals)), relocation)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Where the values of the group lie."""
        return self.externals[0].values

    @property
    def shares_addresses(self) -> bool:
        """Whether values that several cores use share addresses."""
        return bool(self.relocation.starts)


def _with_messages(
    division: Division,
    memories: Sequence[_GroupMemory],
    cores: Mapping[int, CorePlan],
    phases: Mapping[int, Phases],
    notices: Mapping[int, Collection[int]],
) -> tuple[GroupPlan, ...]:
    """Add the RECEIVEs of every core, and move values that share addresses to where they lie in the end."""
    sent = {
        core: {place: one for place, one in enumerate(own.commands) if one.function is Function.SEND}
        for core, own in cores.items()
    }
    plans = []
    for group, memory in zip(division.groups, memories, strict=True):
        values = [ReceivedValue(group.graph.values[name], buffer) for name, buffer in memory.buffers.items()]
        own = []
        for core in group.cores:
            commands, awaited = cores[core].commands, NO_BARRIERS
            if memory.shares_addresses:
                peers = {other: (sent[other].values(), phases[other]) for other in group.cores if other != core}
                awaited = barriers(commands, phases[core], core, peers)
            received = with_receives(commands, messages_to(core, sent, notices), values, awaited)
            own.append(replace(cores[core], commands=memory.relocation.moved(received, frozenset(group.cores))))
        received_bytes = sum(_payload_bytes(sends.values(), set(group.cores)) for sends in sent.values())
        plans.append(GroupPlan(group, tuple(own), memory.memory, received_bytes))
    return tuple(plans)


def _payload_bytes(sent: Iterable[Command], cores: set[int]) -> int:
    payloads = [command.target.descriptor for command in sent if command.peer in cores and command.first is not None]
    return sum(payload.elements * payload.dtype.bytes for payload in payloads)
