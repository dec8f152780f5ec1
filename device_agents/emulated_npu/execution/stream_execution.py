"""All cores of a system without time: each runs until it waits for a message, and goes on when it is there (S5.7).

Cores of a group share DDR and LLC, and take the next input together; groups are as far ahead of each other as messages
let them. What is sent is written when it is received: a core that reads before it has received finds what lay there
before, and what is sent for later inputs waits outside memory, where the machine has slots of a ring for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.execution.functional import (
    ExecutionCounters,
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
from device_agents.emulated_npu.unit_commands import Command, Function, Operand


@dataclass(frozen=True)
class GroupProgram:
    """What the cores of a group run, by core, and what their DDR holds at the beginning.

    The setup of the group is that of its first core.
    """

    programs: Mapping[int, Program]
    fill: Filling


@dataclass(frozen=True)
class StreamRun:
    """The outputs of every input by name, and what each core read and wrote for all of them.

    A payload counts as read by the sender and as written by the core that it is sent to, not by others of its group.
    """

    outputs: tuple[Mapping[str, Array], ...]
    counters: Mapping[int, ExecutionCounters]


@dataclass(frozen=True)
class SystemRun:
    """The outputs of a single input by name, and counters as `StreamRun` has them."""

    outputs: Mapping[str, Array]
    counters: Mapping[int, ExecutionCounters]


def run_cores(
    groups: Sequence[GroupProgram], machine: Machine, inputs: Mapping[str, Array], *, order: Order = "program"
) -> SystemRun:
    """Runs all cores on one input of the network; raises as `run_stream`."""
    run = run_stream(groups, machine, (inputs,), order=order)
    return SystemRun(run.outputs[0], run.counters)


def run_stream(
    groups: Sequence[GroupProgram],
    machine: Machine,
    stream: Sequence[Mapping[str, Array]],
    *,
    order: Order = "program",
) -> StreamRun:
    """Runs all cores on a stream of inputs of the network; `order` as in `functional.run`.

    A group goes on to the next input when all its cores have ended the last. It runs as many inputs ahead of others as
    it gets messages for: more than the machine lets it, whose SEND waits for a slot of the ring.

    Raises Deadlock naming what every core waits for, what `functional.run` raises, with the number of the core, and
    ExecutionFault for a message that is not what its receiver expects.
    """
    messages = _Mailboxes({core: number for number, group in enumerate(groups) for core in group.programs})
    running = [_GroupExecution(_loaded(group, machine, messages, order), stream, order, messages) for group in groups]
    _run_all(running, messages)
    outputs: tuple[dict[str, Array], ...] = tuple({} for _ in stream)
    for group in running:
        for together, own in zip(outputs, group.outputs, strict=True):
            together.update(own)
    return StreamRun(outputs, {each.core: each.functional.counters for group in running for each in group.cores})


def _loaded(group: GroupProgram, machine: Machine, messages: _Mailboxes, order: Order) -> list[_CoreExecution]:
    """The cores of a group with their memories, and in them what is there before the first input."""
    cores: list[_CoreExecution] = []
    for core, program in group.programs.items():
        memories = memories_for(machine, program.footprint)
        cores.append(_CoreExecution(core, program, memories.beside(cores[0].memories) if cores else memories, messages))
    if cores:
        load(cores[0].program, cores[0].functional, group.fill, order=order)
    return cores


def _run_all(groups: Sequence[_GroupExecution], messages: _Mailboxes) -> None:
    """Lets groups run in turn, each as far as it can; raises Deadlock when all wait and nothing was sent meanwhile."""
    while True:
        sent = messages.sent
        waiting: dict[int, Deadlock] = {}
        for group in groups:
            waiting.update(group.go_on())
        if not waiting:
            return
        if messages.sent == sent:
            what = "; ".join(f"core {core}: {blocked.what}" for core, blocked in waiting.items())
            raise Deadlock(what, "no core can go on", "every RECEIVE needs a SEND, and they must not wait in a circle")


@dataclass(frozen=True)
class _SentPayload:
    """`target` as the sender has it, and what it sends; None where that is in the memory already.

    `is_word`: the payload was sent to another core of the receiver's group, which this one is only told of.
    """

    target: Operand
    payload: Array | None
    is_word: bool = False


class _Mailboxes:
    """Messages under way, by input, sender and receiver."""

    def __init__(self, group_of: Mapping[int, int]) -> None:
        self._group_of = group_of
        self._queues: dict[tuple[int, int, int], deque[_SentPayload]] = {}
        self._latest: dict[int, tuple[int, int, _SentPayload]] = {}
        self.sent = 0

    def send(self, number: int, sender: int, command: Command, payload: Array | None) -> None:
        """Puts a message for an input on its way.

        Word of a payload comes with that, for the core that it was sent to need not have received it yet.
        """
        if command.peer not in self._group_of:
            raise fault(command, f"there is no core {command.peer} that runs")
        group = self._group_of[command.peer]
        message = _SentPayload(command.target, payload)
        if payload is not None:
            self._latest[sender] = (number, group, message)
        elif sender in self._latest:
            *its, latest = self._latest[sender]
            if its == [number, group] and latest.target == command.target:
                message = replace(latest, is_word=True)
        self._queues.setdefault((number, sender, command.peer), deque()).append(message)
        self.sent += 1

    def is_there(self, number: int, receiver: int, command: Command) -> bool:
        """Whether there is a message for a RECEIVE."""
        return bool(self._queues.get((number, command.peer, receiver)))

    def take(self, number: int, receiver: int, command: Command) -> _SentPayload:
        """The next message; raises ExecutionFault if it is not the one that is expected."""
        message = self._queues[number, command.peer, receiver].popleft()
        if message.target != command.target:
            raise fault(command, f"core {command.peer} has sent {_shown(message.target)}, not {_shown(command.target)}")
        return message


def _shown(operand: Operand) -> str:
    descriptor = operand.descriptor
    return f"{descriptor.space.name} {operand.address} {descriptor.dims} {descriptor.strides} {descriptor.dtype.name}"


class _GroupExecution:
    """Cores that share a memory and take the next input together; `outputs` are those of the inputs that they ended."""

    def __init__(
        self, cores: Sequence[_CoreExecution], stream: Sequence[Mapping[str, Array]], order: Order, messages: _Mailboxes
    ) -> None:
        self.cores, self.outputs = cores, list[dict[str, Array]]()
        self._stream, self._order, self._messages = stream, order, messages
        self._running: dict[int, Iterator[Deadlock]] = {}

    def go_on(self) -> dict[int, Deadlock]:
        """Lets its cores run until each of them waits, and tells what for; for nothing at the end of the stream."""
        while self._running or len(self.outputs) < len(self._stream):
            if not self._running:
                number = len(self.outputs)
                inputs = self._stream[number]
                self._running = {each.core: each.run(number, inputs, self._order) for each in self.cores}
            waiting = self._in_turn()
            if waiting:
                return waiting
            self.outputs.append({})
            for each in self.cores:
                self.outputs[-1].update(outputs_of(each.program, each.memories))
        return {}

    def _in_turn(self) -> dict[int, Deadlock]:
        """Lets its cores run on their input; returns when all that have not ended wait, and send nothing any more."""
        waiting: dict[int, Deadlock] = {}
        sent = -1
        while self._running and (len(waiting) < len(self._running) or self._messages.sent != sent):
            sent, waiting = self._messages.sent, {}
            for core, run in tuple(self._running.items()):
                try:
                    blocked = next(run, None)
                except ExecutionFault as found:
                    raise type(found)(f"core {core}: {found.what}", found.why, found.next_step) from found
                if blocked is None:
                    del self._running[core]
                else:
                    waiting[core] = blocked
        return waiting


class _CoreExecution:
    """One core with its program and memories."""

    def __init__(self, core: int, program: Program, memories: Memories, messages: _Mailboxes) -> None:
        self.core, self.program, self.memories = core, program, memories
        self.functional = FunctionalMachine(memories)
        self._messages = messages
        self._number = 0

    def run(self, number: int, inputs: Mapping[str, Array], order: Order) -> Iterator[Deadlock]:
        """Runs the program on the input of this number, yielding whenever it has to wait for a message."""
        self._number = number
        steps = started(self.program, self.memories, inputs)
        return run_while_possible(steps, self._execute, self._is_ready, order=order, queues=queue_depths(None))

    def _is_ready(self, command: Command) -> bool:
        return command.function is not Function.RECEIVE or self._messages.is_there(self._number, self.core, command)

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
        self._messages.send(self._number, self.core, command, payload)
        self.functional.count(command, operands)

    def _receive(self, command: Command) -> None:
        operands = operands_of(command)
        target = self.memories.writable(command.target)
        message = self._messages.take(self._number, self.core, command)
        self.functional.count(command, operands)
        if message.payload is not None:
            np.copyto(target, message.payload)
            if not message.is_word:
                self.functional.count_written(command.target)
