"""The queues without time: the order in which items take effect if the semaphores leave a choice.

A program is correct only if every order that the semaphores allow gives the same values. Besides the order of the
program, extreme orders are tested, in which one queue always runs first as long as it can: a missing semaphore shows as
a wrong value in one of them. VFU and last-level cache always have separate queues here, even if the machine has none:
that allows more orders.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.unit_commands import Command, Fence, Post, Queue, Wait

Order = Literal["program", "io-first", "cp-first", "own-first"]

_Entry = tuple[int, int, Command | Wait | Post]
"""Position in the order of issue, index of the instruction, item."""


_EAGER: Mapping[Order, tuple[Queue, ...]] = {
    "program": tuple(Queue),
    "io-first": (Queue.IO,),
    "cp-first": (Queue.CP,),
    "own-first": (Queue.VFU, Queue.LLC),
}
_MOST_PENDING = 1 << 16
"""Issued items of a queue: so many that an order reaches its extreme; they bound the memory that a program takes."""


def run_items(steps: Iterable[IssuedStep], execute: Callable[[Command], None], *, order: Order) -> None:
    """Apply every item, in an order that the semaphores allow.

    With "program" an item takes effect as soon as it is issued, if it can. With the others, a queue that is not
    preferred proceeds only if the preferred one is blocked or empty and nothing more can be issued.

    Raises Deadlock if no queue can proceed, and the errors of `execute` with the instruction's number added.
    """
    for deadlock in run_while_possible(steps, execute, lambda _: True, order=order):
        raise deadlock


def run_while_possible(
    steps: Iterable[IssuedStep],
    execute: Callable[[Command], None],
    is_ready: Callable[[Command], bool],
    *,
    order: Order,
) -> Iterator[Deadlock]:
    """Do the same as `run_items` for a core among others: yield the Deadlock that it would raise, then try again.

    A command at the head of its queue takes effect once `is_ready` returns true, which depends on the other cores.
    Raises the errors of `execute` with the instruction's number added.
    """
    scheduler = _Scheduler(execute, is_ready, order)
    for step in steps:
        item = step.item
        if item is None:
            break
        if isinstance(item, Fence):
            yield from scheduler.drain()
        else:
            yield from scheduler.issue(step.pc, item)
    yield from scheduler.drain()


class _Scheduler:
    """The queues of issued items, and the semaphores."""

    def __init__(self, execute: Callable[[Command], None], is_ready: Callable[[Command], bool], order: Order) -> None:
        self._execute, self._can_start = execute, is_ready
        self._pending: dict[Queue, deque[_Entry]] = {queue: deque() for queue in Queue}
        self._semaphores: Counter[int] = Counter()
        self._issued = 0
        self._eager = _EAGER[order]

    def issue(self, pc: int, item: Command | Wait | Post) -> Iterator[Deadlock]:
        """Issue the next item after making room for it; yield whenever nothing can proceed."""
        pending = self._pending[item.queue]
        while len(pending) >= _MOST_PENDING:
            yield from self._one_step()
        pending.append((self._issued, pc, item))
        self._issued += 1
        self._advance()

    def drain(self) -> Iterator[Deadlock]:
        """Apply all issued items; yield whenever nothing can proceed."""
        self._advance()
        while any(self._pending.values()):
            yield from self._one_step()

    def _one_step(self) -> Iterator[Deadlock]:
        """Apply one item of a queue that is not preferred, then as many of the preferred one as possible."""
        while not (ready := [queue for queue in self._pending if self._is_ready(queue)]):
            yield self._deadlock()
        self._take(min(ready, key=lambda queue: self._pending[queue][0][0]))
        self._advance()

    def _advance(self) -> None:
        """Apply as many items of the preferred queues as possible, the oldest first."""
        while ready := [queue for queue in self._eager if self._is_ready(queue)]:
            self._take(min(ready, key=lambda queue: self._pending[queue][0][0]))

    def _is_ready(self, queue: Queue) -> bool:
        pending = self._pending[queue]
        if not pending:
            return False
        item = pending[0][2]
        if isinstance(item, Wait):
            return self._semaphores[item.semaphore] >= item.count
        return isinstance(item, Post) or self._can_start(item)

    def _take(self, queue: Queue) -> None:
        _, pc, item = self._pending[queue].popleft()
        if isinstance(item, Wait):
            self._semaphores[item.semaphore] -= item.count
        elif isinstance(item, Post):
            self._semaphores[item.semaphore] += item.count
        else:
            try:
                self._execute(item)
            except ExecutionFault as fault:
                raise fault.at(f"instruction {pc}") from fault

    def _deadlock(self) -> Deadlock:
        heads = []
        for queue, pending in self._pending.items():
            if not pending:
                heads += [f"queue {queue.name} is empty"] if queue in (Queue.IO, Queue.CP) else []
                continue
            _, pc, item = pending[0]
            awaited = f"a message of core {item.peer}" if isinstance(item, Command) else ""
            if isinstance(item, Wait):
                value = self._semaphores[item.semaphore]
                awaited = f"semaphore {item.semaphore} to be {item.count} and it is {value}"
            heads.append(f"instruction {pc} in queue {queue.name} waits for {awaited}")
        why = "no issued instruction can proceed"
        return Deadlock("; ".join(heads), why, "every WAIT needs a POST on another queue")
