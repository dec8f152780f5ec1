"""The engine for one core, event by event: when each item of a program is issued, served and finished.

The rules:

- The control unit works in program order and takes `issue_cycles` for every instruction, CONFIG and CONTROL included.
- A queue is in order and has one server. An entry leaves the queue when its service starts: a command when it starts
  to run, WAIT when it is satisfied, POST when it acts. WAIT and POST are entries like commands but take no time.
- A queue holds at most its depth of unserved entries. The control unit stalls while the queue of its next item is
  full; FENCE stalls it until all queues have drained.
- WAIT at the head of its queue takes `count` from the semaphore as soon as the value suffices; POST at the head adds.
  Units are taken in the order of posting. If queues wait for one semaphore, the one that reached its head first takes
  first, IO before CP before VFU before LLC at the same instant. A WAIT that needs more than there is blocks no other
  queue.
- MFU and VFU share the CP queue unless the machine has a queue for the VFU. Without one, items of the VFU queue enter
  the CP queue. Likewise items of the LLC queue enter the IO queue.

Only queue entries are events. The control unit reads no semaphore, so it runs ahead until it depends on an entry
that is not served yet. The earliest head is served first, so semaphores change in order of time even
if a program posts after, in program order, it waits.

The engine for many cores (many_cores/core_process.py) follows the same rules, without the causes; it is slower for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand
from device_agents.emulated_npu.timing.failures import locked, over_budget
from device_agents.emulated_npu.timing.queue_rules import TransferWindow
from device_agents.emulated_npu.unit_commands import Command, Fence, Post, Queue, Wait

NOTHING = -1
_FENCE, _END = len(Queue), len(Queue) + 1


@dataclass(frozen=True)
class Schedule:
    """Times in picoseconds and their causes, by position in `steps`.

    - `issued_ps`: the control unit had issued the step (FENCE: all queues had drained). `served_ps`: the step left
      its queue. `finished_ps`: it was done.
    - `service_cause`: the step that determined `served_ps`, either the one before it in its queue or the POST that
      released it; NOTHING if its own issue did.
    - `issue_cause`: the step that determined `issued_ps` by leaving a full queue (FENCE: by its end); NOTHING if the
      control unit itself did.
    - `released_by`: the POST whose unit a WAIT took last.
    - `entries`: the steps of each queue by number; none for a queue that the machine lacks. `last`: the step that ends
      last; NOTHING if the control unit does.
    """

    steps: Sequence[IssuedStep]
    durations_ps: Sequence[int]
    issued_ps: Sequence[int]
    served_ps: Sequence[int]
    finished_ps: Sequence[int]
    service_cause: Sequence[int]
    issue_cause: Sequence[int]
    released_by: Sequence[int]
    entries: tuple[Sequence[int], ...]
    makespan_ps: int
    last: int


def schedule(
    steps: Sequence[IssuedStep],
    durations_ps: Sequence[int],
    machine: Machine,
    limit_ps: int,
    issue_ps: int,
    demands: Sequence[tuple[Demand, ...]] = (),
) -> Schedule:
    """Run the steps; `durations_ps` holds the time of each command and 0 for other steps.

    With several transfers in flight, `demands` holds those of every IO command, and they replace its time.

    Raises `Deadlock` if nothing can continue, naming the heads of all queues, and `BudgetExceeded` for a run
    longer than `limit_ps`.
    """
    return _CoreEngine(steps, durations_ps, machine, limit_ps, issue_ps, demands).run()


@dataclass(slots=True)
class _Semaphore:
    """A counter that records which POST added each unit."""

    posted: int = 0
    _taken: int = 0
    _totals: list[int] = field(default_factory=list)
    _posters: list[int] = field(default_factory=list)
    _next: int = 0

    @property
    def value(self) -> int:
        return self.posted - self._taken

    def post(self, poster: int, count: int) -> None:
        self.posted += count
        self._totals.append(self.posted)
        self._posters.append(poster)

    def take(self, count: int) -> int:
        """Take `count` units; return the POST of the last one, or NOTHING if there are not enough."""
        taken = self._taken + count
        if taken > self.posted:
            return NOTHING
        self._taken = taken
        while self._totals[self._next] < taken:
            self._next += 1
        return self._posters[self._next]


@dataclass(slots=True)
class _Server:
    """A queue and its server: `order` lists all entries ever issued, of which `head` were served."""

    queue: Queue
    depth: int
    order: list[int] = field(default_factory=list)
    head: int = 0
    free_ps: int = 0
    last: int = NOTHING
    blocked: int = 0  # by a semaphore: the number of the WAIT among those that blocked a queue
    window: TransferWindow | None = None


class _CoreEngine:
    def __init__(
        self,
        steps: Sequence[IssuedStep],
        durations: Sequence[int],
        machine: Machine,
        limit_ps: int,
        issue_ps: int,
        demands: Sequence[tuple[Demand, ...]],
    ) -> None:
        self._steps, self._durations, self._limit = steps, list(durations), limit_ps
        self._demands = demands
        self._servers = tuple(_Server(queue, depth) for queue, depth in machine.queue_depths.items())
        for server in self._servers:
            if demands and server.queue in (Queue.IO, Queue.LLC):
                server.window = TransferWindow(machine.io_outstanding)
        places = {server.queue: place for place, server in enumerate(self._servers)}
        place_of = {queue: places[machine.queue_of(queue)] for queue in Queue}
        self._kinds = [_kind(step, place_of) for step in steps]
        self._gaps = [(step.control + (step.item is not None)) * issue_ps for step in steps]
        self._semaphores: defaultdict[int, _Semaphore] = defaultdict(_Semaphore)
        self._position = self._clock = self._blocked = 0
        self._issued, self._served, self._finished = ([0] * len(steps) for _ in range(3))
        self._service_cause, self._issue_cause, self._released_by = ([NOTHING] * len(steps) for _ in range(3))

    def run(self) -> Schedule:
        first, *others = self._servers
        while True:
            self._issue()
            server, now_ps = first, self._ready_ps(first)
            for other in others:
                ready_ps = self._ready_ps(other)
                if ready_ps >= 0 and (now_ps < 0 or ready_ps < now_ps):
                    server, now_ps = other, ready_ps
            if now_ps < 0:
                break
            self._serve(server, now_ps)
        if self._position < len(self._steps) or any(server.head < len(server.order) for server in self._servers):
            raise self._deadlock()
        finishing = max(self._servers, key=lambda server: server.free_ps)
        ends_by_queue = finishing.free_ps >= self._clock
        orders = {server.queue: server.order for server in self._servers}
        return Schedule(
            steps=self._steps,
            durations_ps=self._durations,
            issued_ps=self._issued,
            served_ps=self._served,
            finished_ps=self._finished,
            service_cause=self._service_cause,
            issue_cause=self._issue_cause,
            released_by=self._released_by,
            entries=tuple(orders.get(queue, ()) for queue in Queue),
            makespan_ps=max(finishing.free_ps, self._clock),
            last=finishing.last if ends_by_queue else NOTHING,
        )

    def _issue(self) -> None:
        """Run the control unit until it depends on an entry that is not served yet."""
        clock, position, kinds, gaps, served = self._clock, self._position, self._kinds, self._gaps, self._served
        while position < len(kinds):
            kind, at, cause = kinds[position], clock + gaps[position], NOTHING
            if kind < _FENCE:
                server = self._servers[kind]
                order = server.order
                blocker = len(order) - server.depth
                if blocker >= 0:
                    if blocker >= server.head:
                        break
                    if served[order[blocker]] > at:
                        cause = order[blocker]
                        at = served[cause]
                order.append(position)
            elif kind == _FENCE:
                if any(server.head < len(server.order) for server in self._servers):
                    break
                for server in self._servers:
                    if server.free_ps > at:
                        at, cause = server.free_ps, server.last
            self._issued[position] = clock = at
            self._issue_cause[position] = cause
            position += 1
        if clock > self._limit:
            raise over_budget(self._steps[position - 1], self._limit)
        self._clock, self._position = clock, position

    def _ready_ps(self, server: _Server) -> int:
        """Return when the head of the queue can be served; negative if there is none or a semaphore blocks it."""
        if server.blocked or server.head == len(server.order):
            return NOTHING
        issued = self._issued[server.order[server.head]]
        return issued if issued > server.free_ps else server.free_ps

    def _serve(self, server: _Server, now_ps: int) -> None:
        index = server.order[server.head]
        item = self._steps[index].item
        if type(item) is Wait:
            post = self._semaphores[item.semaphore].take(item.count)
            if post == NOTHING:
                self._blocked += 1
                server.blocked = self._blocked
                return
            self._released_by[index] = post
        cause = server.last if now_ps == server.free_ps else NOTHING
        self._leave(server, index, now_ps, cause)
        if type(item) is Post:
            self._semaphores[item.semaphore].post(index, item.count)
            self._wake(item.semaphore, now_ps)

    def _leave(self, server: _Server, index: int, now_ps: int, cause: int) -> None:
        if server.window is not None:
            item, demands = self._steps[index].item, self._demands[index]
            self._durations[index] = server.window.end_ps(item, now_ps, self._issued[index], demands) - now_ps
        end = now_ps + self._durations[index]
        self._served[index], self._finished[index], self._service_cause[index] = now_ps, end, cause
        server.free_ps, server.last = end, index
        server.head += 1
        if end > self._limit:
            raise over_budget(self._steps[index], self._limit)

    def _wake(self, semaphore: int, now_ps: int) -> None:
        """Serve the heads of the queues that waited for the POST that has just acted, the one blocked first first."""
        blocked = [server for server in self._servers if server.blocked]
        for server in sorted(blocked, key=lambda each: each.blocked):
            index = server.order[server.head]
            item = self._steps[index].item
            if isinstance(item, Wait) and item.semaphore == semaphore:
                post = self._semaphores[semaphore].take(item.count)
                if post != NOTHING:
                    server.blocked = 0
                    self._released_by[index] = post
                    self._leave(server, index, now_ps, post)

    def _deadlock(self) -> Deadlock:
        steps = self._steps
        heads = {
            server.queue: steps[server.order[server.head]] if server.head < len(server.order) else None
            for server in self._servers
        }
        stuck = steps[self._position] if self._position < len(steps) else None
        return locked(heads, stuck, lambda number: self._semaphores[number].value)


def _kind(step: IssuedStep, place_of: Mapping[Queue, int]) -> int:
    """Return the place of the queue that the step enters, or _FENCE or _END."""
    item = step.item
    if isinstance(item, (Command, Wait, Post)):
        return place_of[item.queue]
    return _FENCE if isinstance(item, Fence) else _END
