"""The two queues without time: in which order items take effect where the semaphores leave a choice (S2.4).

A program is right only if every order that the semaphores allow gives the same values. Besides the order of the
program there are the two extremes, in which one queue is always ahead as far as it can be: a semaphore that is
missing shows as a wrong value in one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, Fence, Post, Queue, Wait

Order = Literal["program", "io-first", "cp-first"]

# Items that may wait in a queue without a limit of the machine; bounds the memory that a long program takes.
_PLENTY = 1 << 16

_Entry = tuple[int, int, Command | Wait | Post]
"""Number in the order of issue, index of the instruction, item."""


@dataclass(frozen=True)
class Queues:
    """How many items each queue holds; issue stops while the queue of the next one is full."""

    io_depth: int
    cp_depth: int


def queue_depths(machine: Machine | None) -> Queues:
    """Those of a machine, or practically none: the extremes of an order are then reached."""
    if machine is None:
        return Queues(_PLENTY, _PLENTY)
    return Queues(machine.io_queue_depth, machine.cp_queue_depth)


def run_items(steps: Iterable[IssuedStep], execute: Callable[[Command], None], *, order: Order, queues: Queues) -> None:
    """Lets every item take effect, in an order that the semaphores and the depths of the queues allow.

    "program": as soon as it is issued, if it can. "io-first" and "cp-first": the other queue does something only
    when the preferred one is blocked or empty and nothing more can be issued.

    Raises Deadlock if neither queue can go on, and what `execute` raises with the instruction's number added.
    """
    for deadlock in run_while_possible(steps, execute, _always, order=order, queues=queues):
        raise deadlock


def run_while_possible(
    steps: Iterable[IssuedStep],
    execute: Callable[[Command], None],
    is_ready: Callable[[Command], bool],
    *,
    order: Order,
    queues: Queues,
) -> Iterator[Deadlock]:
    """As `run_items`, for a core beside others: yields what it would raise as Deadlock, and then tries again.

    A command at the head of its queue takes effect when `is_ready` says so; that may change only outside. Raises what
    `execute` raises with the instruction's number added.
    """
    scheduler = _Scheduler(execute, is_ready, order, queues)
    for step in steps:
        item = step.item
        if item is None:
            break
        if isinstance(item, Fence):
            yield from scheduler.drain()
        else:
            yield from scheduler.issue(step.pc, item)
    yield from scheduler.drain()


def _always(_: Command) -> bool:
    return True


class _Scheduler:
    """Queues of issued items, and semaphores."""

    def __init__(
        self, execute: Callable[[Command], None], is_ready: Callable[[Command], bool], order: Order, queues: Queues
    ) -> None:
        self._execute, self._can_start = execute, is_ready
        self._depths = {Queue.IO: queues.io_depth, Queue.CP: queues.cp_depth}
        self._pending: dict[Queue, deque[_Entry]] = {Queue.IO: deque(), Queue.CP: deque()}
        self._semaphores: dict[int, int] = {}
        self._issued = 0
        self._eager = {
            "program": (Queue.IO, Queue.CP),
            "io-first": (Queue.IO,),
            "cp-first": (Queue.CP,),
        }[order]

    def issue(self, pc: int, item: Command | Wait | Post) -> Iterator[Deadlock]:
        """Takes the next item of the program, after making room for it; yields as often as nothing can go on."""
        pending = self._pending[item.queue]
        while len(pending) >= self._depths[item.queue]:
            yield from self._one_step()
        pending.append((self._issued, pc, item))
        self._issued += 1
        self._advance()

    def drain(self) -> Iterator[Deadlock]:
        """Lets everything that was issued take effect; yields as often as nothing can go on."""
        self._advance()
        while any(self._pending.values()):
            yield from self._one_step()

    def _one_step(self) -> Iterator[Deadlock]:
        """Lets the queue that is not preferred go one item further, and then the preferred one as far as it can."""
        while not (ready := [queue for queue in self._pending if self._is_ready(queue)]):
            yield self._deadlock()
        self._take(min(ready, key=lambda queue: self._pending[queue][0][0]))
        self._advance()

    def _advance(self) -> None:
        """Lets the eager queues go as far as they can, the oldest item first."""
        while ready := [queue for queue in self._eager if self._is_ready(queue)]:
            if len(ready) == 2:
                ready.sort(key=lambda queue: self._pending[queue][0][0])
            self._take(ready[0])

    def _is_ready(self, queue: Queue) -> bool:
        pending = self._pending[queue]
        if not pending:
            return False
        item = pending[0][2]
        if isinstance(item, Wait):
            return self._semaphores.get(item.semaphore, 0) >= item.count
        return isinstance(item, Post) or self._can_start(item)

    def _take(self, queue: Queue) -> None:
        _, pc, item = self._pending[queue].popleft()
        if isinstance(item, Wait):
            self._semaphores[item.semaphore] -= item.count
        elif isinstance(item, Post):
            self._semaphores[item.semaphore] = self._semaphores.get(item.semaphore, 0) + item.count
        else:
            try:
                self._execute(item)
            except ExecutionFault as fault:
                raise ExecutionFault(f"instruction {pc}: {fault.what}", fault.why, fault.next_step) from fault

    def _deadlock(self) -> Deadlock:
        heads = []
        for queue, pending in self._pending.items():
            if not pending:
                heads.append(f"queue {queue.name} is empty")
                continue
            _, pc, item = pending[0]
            if isinstance(item, Wait):
                value = self._semaphores.get(item.semaphore, 0)
                heads.append(
                    f"instruction {pc} in queue {queue.name} waits for semaphore {item.semaphore} "
                    f"to be {item.count} and it is {value}"
                )
            elif isinstance(item, Command):
                heads.append(f"instruction {pc} in queue {queue.name} waits for a message of core {item.peer}")
        return Deadlock(
            "; ".join(heads), "no instruction that was issued can go on", "every WAIT needs a POST on the other queue"
        )
