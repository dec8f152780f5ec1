"""Lets the cores of a group reuse the memory that they share (S5.7).

The layers of a group run in phases. A core stores nothing in a phase before all other cores have ended the earlier
ones, and so a value may take the address of another that no core accesses in the same phase or later. Most messages
announce data; a core that announces nothing at the end of a phase sends a message of its own, if another core has to
know that the phase is over.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.unit_commands import EXTERNAL, Command, Function, Operand

Phases = Mapping[int, int]
"""The phase of each layer of a core, by the index of the layer."""


def phases_of(phases: Sequence[int], chains: Sequence[ChainPlan]) -> Phases:
    """Return the phases of a core's layers from those of all layers: a chain runs in the phase of its first layer.

    No other core computes in the phases of its other layers.
    """
    found: dict[int, int] = {}
    for chain in chains:
        first = min(phases[layer.index] for layer in chain.layers)
        found.update((layer.index, first) for layer in chain.layers)
    return found


def shared_lifetimes(parts: Sequence[Graph], phases: Sequence[Phases]) -> Mapping[str, tuple[int, int]]:
    """Return the first and the last phase in which cores access each value that they compute, except outputs.

    `parts` are the graphs of the cores of a group.
    """
    spans: dict[str, tuple[int, int]] = {}
    written: dict[str, None] = {}
    for part, own in zip(parts, phases, strict=True):
        for layer in part.layers:
            written[layer.output.value] = None
            phase = own[layer.index]
            for view in (*layer.reads, layer.output):
                first, last = spans.get(view.value, (phase, phase))
                spans[view.value] = min(first, phase), max(last, phase)
    results = {name for part in parts for name in part.outputs}
    return {name: spans[name] for name in written if name not in results}


def with_notices(
    commands: Sequence[Command], own: Phases, peers: Mapping[int, Phases]
) -> tuple[list[Command], frozenset[int]]:
    """Return the commands of a core, with a notice at the end of a phase to each peer that goes on after it.

    A notice is a message that announces no data; the second result has the places of the notices.
    `peers` has the phases of the other cores of the group. A peer that is idle until this core has ended another phase
    needs none.
    """
    turns = {peer: sorted(set(phases.values())) for peer, phases in peers.items()}
    parts = [(phase, list(part)) for phase, part in _by_phase(commands, own)]
    result: list[Command] = []
    notices: set[int] = set()
    accessed: Operand | None = None
    for place, (phase, part) in enumerate(parts):
        result += part
        notified: set[int] = set()
        for command in part:
            if command.function is Function.SEND:
                notified.add(command.peer)
            elif (operand := _accessed(command)) is not None:
                accessed, notified = operand, set()
        for peer, turn in turns.items():
            after = bisect_right(turn, phase)
            waits = after < len(turn) and (place + 1 == len(parts) or turn[after] <= parts[place + 1][0])
            if waits and peer not in notified and accessed is not None:
                notices.add(len(result))
                result.append(Command(Function.SEND, accessed, peer=peer, layer=part[-1].layer))
    return result, frozenset(notices)


def barriers(
    commands: Sequence[Command], own: Phases, core: int, sent: Mapping[int, tuple[Iterable[Command], Phases]]
) -> Mapping[int, Mapping[int, int]]:
    """Return, by the place of a command, how many messages of each peer a core awaits before it.

    `sent` has the SENDs of the other cores of the group, and their phases. In each phase the first STORE awaits them.
    """
    found: dict[int, Mapping[int, int]] = {}
    ended = {
        peer: [phases[command.layer] for command in own_sends if command.peer == core]
        for peer, (own_sends, phases) in sent.items()
    }
    place = 0
    for phase, part in _by_phase(commands, own):
        several = list(part)
        first = next((at for at, command in enumerate(several) if command.function is Function.STORE), None)
        if first is not None:
            counts = ((peer, bisect_left(messages, phase)) for peer, messages in ended.items())
            found[place + first] = {peer: count for peer, count in counts if count}
        place += len(several)
    return found


def _by_phase(commands: Sequence[Command], own: Phases) -> Iterator[tuple[int, Iterator[Command]]]:
    return itertools.groupby(commands, key=lambda command: own[command.layer])


def _accessed(command: Command) -> Operand | None:
    """Return an operand in the memory that cores share."""
    operands = (command.target, *command.sources)
    return next((each for each in operands if each.descriptor.space in EXTERNAL), None)
