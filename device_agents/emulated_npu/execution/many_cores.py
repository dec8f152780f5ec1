"""All cores of a system without time: each runs until it waits for a message, and goes on when it is there (S5.7).

Cores of a group share DDR and LLC. What is sent is written when it is received: a core that reads before it has
received finds what lay there before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.command import Command, Function, Operand
from device_agents.emulated_npu.errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.execution.functional import (
    Counters,
    Filling,
    FunctionalMachine,
    load,
    memories_for,
    outputs_of,
    started,
)
from device_agents.emulated_npu.execution.interleaving import Order, queue_depths, run_while_possible
from device_agents.emulated_npu.execution.memory import NUMPY_TYPES, Array, Memories
from device_agents.emulated_npu.execution.signatures import fault, operands_of
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.machine import Machine


@dataclass(frozen=True)
class GroupProgram:
    """What the cores of a group run, by core, and what their DDR holds at the beginning.

    The setup of the group is that of its first core.
    """

    programs: Mapping[int, Program]
    fill: Filling


@dataclass(frozen=True)
class SystemRun:
    """The outputs of one run by name, and what each core read and wrote.

    What is sent counts as read by the sender and as written by the receiver.
    """

    outputs: Mapping[str, Array]
    counters: Mapping[int, Counters]


def run_cores(
    groups: Sequence[GroupProgram], machine: Machine, inputs: Mapping[str, Array], *, order: Order = "program"
) -> SystemRun:
    """Runs all cores on one input of the network; `order` as in `functional.run`.

    Raises Deadlock naming what every core waits for, what `functional.run` raises, with the number of the core, and
    ExecutionFault for a message that is not what its receiver expects.
    """
    messages = _Messages({core: number for number, group in enumerate(groups) for core in group.programs})
    cores: dict[int, _Core] = {}
    for group in groups:
        first: _Core | None = None
        for core, program in group.programs.items():
            memories = memories_for(machine, program.footprint)
            cores[core] = _Core(core, program, memories if first is None else memories.beside(first.memories), messages)
            first = first or cores[core]
        if first is not None:
            load(first.program, first.functional, group.fill, order=order)
    _run_all({core: each.run(inputs, order) for core, each in cores.items()}, messages)
    outputs: dict[str, Array] = {}
    for each in cores.values():
        outputs.update(outputs_of(each.program, each.memories))
    return SystemRun(outputs, {core: each.functional.counters for core, each in cores.items()})


def _run_all(running: dict[int, Iterator[Deadlock]], messages: _Messages) -> None:
    """Lets cores run in turn, each until it waits; raises Deadlock when all wait and nothing was sent meanwhile."""
    while running:
        sent, waiting = messages.sent, {}
        for core, run in tuple(running.items()):
            try:
                blocked = next(run, None)
            except ExecutionFault as found:
                raise type(found)(f"core {core}: {found.what}", found.why, found.next_step) from found
            if blocked is None:
                del running[core]
            else:
                waiting[core] = blocked
        if len(waiting) == len(running) > 0 and messages.sent == sent:
            what = "; ".join(f"core {core}: {blocked.what}" for core, blocked in waiting.items())
            raise Deadlock(what, "no core can go on", "every RECEIVE needs a SEND, and they must not wait in a circle")


@dataclass(frozen=True)
class _Message:
    """`target` as the sender has it, and what it sends; None where that is in the memory already."""

    target: Operand
    payload: Array | None


class _Messages:
    """Messages under way, by sender and receiver."""

    def __init__(self, group_of: Mapping[int, int]) -> None:
        self._group_of = group_of
        self._queues: dict[tuple[int, int], deque[_Message]] = {}
        self._latest: dict[int, tuple[int, _Message]] = {}
        self.sent = 0

    def send(self, sender: int, command: Command, payload: Array | None) -> None:
        """Puts a message on its way; word of a payload comes with that, for it need not have been received yet."""
        if command.peer not in self._group_of:
            raise fault(command, f"there is no core {command.peer} that runs")
        group = self._group_of[command.peer]
        message = _Message(command.target, payload)
        if payload is not None:
            self._latest[sender] = (group, message)
        elif sender in self._latest:
            its_group, latest = self._latest[sender]
            if (its_group, latest.target) == (group, command.target):
                message = latest
        self._queues.setdefault((sender, command.peer), deque()).append(message)
        self.sent += 1

    def is_there(self, receiver: int, command: Command) -> bool:
        """Whether there is a message for a RECEIVE."""
        return bool(self._queues.get((command.peer, receiver)))

    def take(self, receiver: int, command: Command) -> Array | None:
        """The payload of the next message; raises ExecutionFault if it is not the one that is expected."""
        message = self._queues[command.peer, receiver].popleft()
        if message.target != command.target:
            raise fault(command, f"core {command.peer} has sent {_shown(message.target)}, not {_shown(command.target)}")
        return message.payload


def _shown(operand: Operand) -> str:
    descriptor = operand.descriptor
    return f"{descriptor.space.name} {operand.address} {descriptor.dims} {descriptor.strides} {descriptor.dtype.name}"


class _Core:
    """One core with its program and memories."""

    def __init__(self, core: int, program: Program, memories: Memories, messages: _Messages) -> None:
        self.core, self.program, self.memories = core, program, memories
        self.functional = FunctionalMachine(memories)
        self._messages = messages

    def run(self, inputs: Mapping[str, Array], order: Order) -> Iterator[Deadlock]:
        """Runs the program, yielding whenever it has to wait for a message."""
        steps = started(self.program, self.memories, inputs)
        return run_while_possible(steps, self._execute, self._is_ready, order=order, queues=queue_depths(None))

    def _is_ready(self, command: Command) -> bool:
        return command.function is not Function.RECEIVE or self._messages.is_there(self.core, command)

    def _execute(self, command: Command) -> None:
        if command.function is Function.SEND:
            self._send(command)
        elif command.function is Function.RECEIVE:
            self._receive(command)
        else:
            self.functional.execute(command)

    def _send(self, command: Command) -> None:
        operands = operands_of(command)
        first = operands[0]
        payload: Array | None = None
        if first is not None:
            source, target = self.memories.view(first), command.target.descriptor
            if source.shape != target.dims or source.dtype != NUMPY_TYPES[target.dtype]:
                raise fault(command, f"{source.dtype.name} {source.shape} is sent as {target.dtype.name} {target.dims}")
            payload = source.copy()
        self._messages.send(self.core, command, payload)
        self.functional.count(command, operands)

    def _receive(self, command: Command) -> None:
        operands = operands_of(command)
        target = self.memories.writable(command.target)
        payload = self._messages.take(self.core, command)
        self.functional.count(command, operands)
        if payload is not None:
            np.copyto(target, payload)
            self.functional.count_written(command.target)
