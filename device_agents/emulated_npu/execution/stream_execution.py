"""All cores of a system without time: each core runs until it waits for a message, and continues on arrival.

Cores of a group share DDR and LLC and start the next input together; groups run as far ahead of each other as messages
allow. A payload is written when it is received: a core that reads earlier finds the old content, and payloads for
later inputs wait outside memory, where the machine has ring slots for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.execution.functional import (
    Filling,
    FunctionalMachine,
    load,
    memories_for,
    outputs_of,
    start_run,
)
from device_agents.emulated_npu.execution.interleaving import Order, run_while_possible
from device_agents.emulated_npu.execution.operand_checks import fault, operands_of
from device_agents.emulated_npu.isa.program import Preload, Program
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space


@dataclass(frozen=True)
class GroupProgram:
    """The programs of the cores of a group, by core, and the initial content of their DDR.

    The group runs the setup of its first core, then the preloads of its cores, given by core.
    """

    programs: Mapping[int, Program]
    fill: Filling
    preloads: Mapping[int, Preload] = field(default_factory=dict)


def run_stream(
    groups: Sequence[GroupProgram], machine: Machine, stream: Sequence[Mapping[str, Array]], *, order: Order = "program"
) -> tuple[Mapping[str, Array], ...]:
    """Run all cores on a stream of inputs of the network, and return the outputs of each by name.

    `order` as in `FunctionalMachine`.

    A group starts the next input when all its cores have ended the last. It runs as many inputs ahead of other groups
    as it has messages for; on the machine a SEND would wait for a slot of the ring.

    Raises Deadlock, naming what every core waits for; the errors of `functional.run`, with the number of the core; and
    ExecutionFault for a message that its receiver does not expect.
    """
    messages = _Mailboxes({core: number for number, group in enumerate(groups) for core in group.programs})
    running = [_GroupExecution(_loaded(group, machine, messages, order), stream, messages) for group in groups]
    sent, waiting = -1, dict[int, Deadlock]()
    while messages.sent != sent:  # another turn, as long as a group has sent a message
        sent, waiting = messages.sent, {}
        for group in running:
            waiting.update(group.proceed())
    if waiting:
        what = "; ".join(f"core {core}: {blocked.what}" for core, blocked in waiting.items())
        why = "every RECEIVE needs a SEND, and cores must not wait for each other"
        raise Deadlock(what, "no core can proceed", why)
    outputs: tuple[dict[str, Array], ...] = tuple({} for _ in stream)
    for group in running:
        for together, own in zip(outputs, group.outputs, strict=True):
            together.update(own)
    return outputs


def _loaded(group: GroupProgram, machine: Machine, messages: _Mailboxes, order: Order) -> list[_CoreExecution]:
    """Return the cores of a group with their memories, filled for the first input."""
    cores: list[_CoreExecution] = []
    for core, program in group.programs.items():
        memories = memories_for(machine.of_core(core), program.footprint)
        functional = FunctionalMachine(memories.beside(cores[0].memories) if cores else memories, order)
        cores.append(_CoreExecution(core, program, functional, messages))
    if cores:
        load(cores[0].program, cores[0].functional, group.fill)
    for each in cores:
        if each.core in group.preloads:
            each.preload(group.preloads[each.core])
    return cores


@dataclass(frozen=True)
class _SentPayload:
    """The target as the sender names it, and the payload; None if that is in the memory already."""

    target: Operand
    payload: Array | None


class _Mailboxes:
    """Messages on their way, by input, sender and receiver."""

    def __init__(self, group_of: Mapping[int, int]) -> None:
        self._group_of = group_of
        self._queues: dict[tuple[int, int, int], deque[_SentPayload]] = {}
        self._latest: dict[int, tuple[int, int, _SentPayload]] = {}
        self.sent = 0

    def send(self, number: int, sender: int, command: Command, payload: Array | None) -> None:
        """Put a message for an input on its way.

        A notice carries the payload that it announces: the core it was sent to may not have received it yet.
        """
        if command.peer not in self._group_of:
            raise fault(command, f"core {command.peer} has no program")
        group = self._group_of[command.peer]
        message = _SentPayload(command.target, payload)
        if payload is not None:
            self._latest[sender] = (number, group, message)
        elif sender in self._latest:
            *addressed, latest = self._latest[sender]
            if addressed == [number, group] and latest.target == command.target:
                message = latest
        self._queues.setdefault((number, sender, command.peer), deque()).append(message)
        self.sent += 1

    def is_there(self, number: int, receiver: int, command: Command) -> bool:
        """Return whether there is a message for a RECEIVE."""
        return bool(self._queues.get((number, command.peer, receiver)))

    def take(self, number: int, receiver: int, command: Command) -> _SentPayload:
        """Return the next message; raise ExecutionFault if its target is not the expected one."""
        message = self._queues[number, command.peer, receiver].popleft()
        if message.target != command.target:
            raise fault(command, f"core {command.peer} has sent {_shown(message.target)}, not {_shown(command.target)}")
        return message


def _shown(operand: Operand) -> str:
    descriptor = operand.descriptor
    return f"{descriptor.space.name} {operand.address} {descriptor.dims} {descriptor.strides} {descriptor.dtype.name}"


class _GroupExecution:
    """Cores that share memory and start the next input together; `outputs` holds the outputs of the ended inputs."""

    def __init__(
        self, cores: Sequence[_CoreExecution], stream: Sequence[Mapping[str, Array]], messages: _Mailboxes
    ) -> None:
        self.cores, self.outputs = cores, list[dict[str, Array]]()
        self._stream, self._messages = stream, messages
        self._running: dict[int, Iterator[Deadlock]] = {}

    def proceed(self) -> dict[int, Deadlock]:
        """Run the cores until each of them waits; return what each waits for, nothing at the end of the stream."""
        while self._running or len(self.outputs) < len(self._stream):
            if not self._running:
                number = len(self.outputs)
                inputs = self._stream[number]
                self._running = {each.core: each.run(number, inputs) for each in self.cores}
            waiting = self._in_turn()
            if waiting:
                return waiting
            self.outputs.append({})
            for each in self.cores:
                self.outputs[-1].update(outputs_of(each.program, each.memories))
        return {}

    def _in_turn(self) -> dict[int, Deadlock]:
        """Run the cores on their input until all unfinished cores wait and send nothing; return what each waits for."""
        waiting: dict[int, Deadlock] = {}
        sent = -1
        while self._running and (len(waiting) < len(self._running) or self._messages.sent != sent):
            sent, waiting = self._messages.sent, {}
            for core, run in tuple(self._running.items()):
                try:
                    blocked = next(run, None)
                except ExecutionFault as found:
                    raise found.at(f"core {core}") from found
                if blocked is None:
                    del self._running[core]
                else:
                    waiting[core] = blocked
        return waiting


class _CoreExecution:
    """One core with its program and memories."""

    def __init__(self, core: int, program: Program, functional: FunctionalMachine, messages: _Mailboxes) -> None:
        self.core, self.program, self.functional, self.memories = core, program, functional, functional.memories
        self._messages = messages
        self._number = 0
        self._kept: tuple[int, Array] | None = None

    def preload(self, preload: Preload) -> None:
        """Run the loads of a preload, and keep what they write."""
        for step in sequence(preload.code):
            if isinstance(step.item, Command):
                self.functional.execute(step.item)
        kept = Descriptor(Space.SB, DataType.UINT8, (preload.stop - preload.start,), (1,))
        self._kept = preload.start, self.memories.view(Operand(kept, preload.start)).copy()

    def run(self, number: int, inputs: Mapping[str, Array]) -> Iterator[Deadlock]:
        """Run the program on the input of this number; yield whenever it has to wait for a message."""
        self._number = number
        steps = start_run(self.program, self.functional, inputs)
        if self._kept is not None:
            self.memories.write(*self._kept, Space.SB)
        return run_while_possible(steps, self._execute, self._is_ready, order=self.functional.order)

    def _is_ready(self, command: Command) -> bool:
        return command.function is not Function.RECEIVE or self._messages.is_there(self._number, self.core, command)

    def _execute(self, command: Command) -> None:
        if command.function not in (Function.SEND, Function.RECEIVE):
            self.functional.execute(command)
            return
        operands_of(command)  # raises for operands that it must not have
        if command.function is Function.SEND:
            self._send(command)
        else:
            self._receive(command)

    def _send(self, command: Command) -> None:
        payload: Array | None = None
        if command.first is not None:
            source, target = self.memories.view(command.first), command.target.descriptor
            if source.shape != target.dims or source.dtype != NUMPY_TYPES[target.dtype]:
                raise fault(command, f"{source.dtype.name} {source.shape} is sent as {target.dtype.name} {target.dims}")
            payload = source.copy()
        self._messages.send(self._number, self.core, command, payload)

    def _receive(self, command: Command) -> None:
        target = self.memories.writable(command.target)
        message = self._messages.take(self._number, self.core, command)
        if message.payload is not None:
            np.copyto(target, message.payload)
