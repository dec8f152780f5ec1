"""One core of many, as a coroutine: its control unit, its queues and semaphores, by the rules of single_core.py.

A core affects other cores only through its IO queue. So it runs ahead until that queue reaches a command whose end
depends on others, and waits there. A transfer waits for the shared resources, a RECEIVE for the message, a SEND for a
free ring slot. The core also waits between two inputs. When the end is known, the other queues catch up, so entries are
still served in order of time. `StreamState` is what the cores of a stream of inputs share.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import heappush
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.timing.failures import locked, over_budget
from device_agents.emulated_npu.timing.many_cores.core_code import (
    FENCE,
    POST,
    RECEIVE,
    SEND,
    WAIT,
    CoreCode,
    GroupState,
    Translation,
)
from device_agents.emulated_npu.timing.queue_rules import TransferWindow
from device_agents.emulated_npu.timing.resources import TICKET_BITS
from device_agents.emulated_npu.unit_commands import Queue

_FAR = 1 << 80  # later than all times


class InputRun(NamedTuple):
    """One run of one core, in picoseconds.

    `io_ps` is the time of its transfers. The others are the time that its IO queue waited for a message of another
    group (`starved_ps`), for a message of its own group (`exchange_ps`), and for a free ring slot (`blocked_ps`).
    """

    begin_ps: int
    end_ps: int
    io_ps: int
    starved_ps: int
    exchange_ps: int
    blocked_ps: int


class StreamState:
    """The state that the cores of a stream of inputs share.

    - `events`: a heap of times with, in the lowest TICKET_BITS, the ticket of a transfer that begins its data phase, or
      the number of a resource to check.
    - `ready`: cores that continue, with the time they waited for.
    - `pending`: by core, the transfers of its current IO command that have not ended.
    - `stops`: the IO entry at which a core waits for another core.
    - `runs`: by core; `kept`: run `kept_run` with the times of its entries, by core.
    - `ahead`: how many inputs may be under way at a time.
    - `ended`: by input, how many groups have ended it, and when the last did.
    - `held`: groups that wait for all groups to end an earlier input.
    """

    def __init__(self, translation: Translation, inputs: int, limit_ps: int, kept_run: int | None = None) -> None:
        cores, self.groups = len(translation.codes), len(translation.groups)
        self.ahead = 2 * self.groups + 2
        self.ended: dict[int, tuple[int, int]] = {}
        self.held: list[GroupState] = []
        self.inputs, self.limit_ps, self.kept_run = inputs, limit_ps, kept_run
        self.events: list[int] = []
        self.ready: list[tuple[int, int]] = []
        self.pending = [1] * cores
        self.stops: dict[int, int] = {}
        self.runs: list[list[InputRun]] = [[] for _ in range(cores)]
        self.kept: dict[int, CoreRun] = {}


def begin_input(stream: StreamState, group: GroupState, now_ps: int) -> None:
    """Start the next run of all cores of a group."""
    group.running = len(group.members)
    stream.ready.extend((index, now_ps) for index in group.members)


def end_run(stream: StreamState, code: CoreCode, run: InputRun) -> None:
    """Record a run; the last core of a group frees a ring slot and starts the next input as soon as it may."""
    stream.runs[code.index].append(run)
    group = code.group
    group.latest_ps = max(group.latest_ps, run.end_ps)
    group.running -= 1
    if group.running:
        return
    stream.ready.extend((index, group.latest_ps) for index in group.waiting.pop(len(group.ends_ps), ()))
    number = len(group.ends_ps)
    group.ends_ps.append(group.latest_ps)
    if number + 1 < stream.inputs:
        stream.held.append(group)
    groups, latest_ps = stream.ended.get(number, (0, 0))
    stream.ended[number] = groups + 1, max(latest_ps, group.latest_ps)
    held, stream.held = stream.held, []
    for each in held:
        awaited = len(each.ends_ps) - stream.ahead
        groups, through_ps = stream.ended.get(awaited, (0, 0))
        if awaited < 0 or groups == stream.groups:
            begin_input(stream, each, max(each.latest_ps, through_ps))
        else:
            stream.held.append(each)


def core_process(code: CoreCode, stream: StreamState) -> Generator[None, int, None]:
    """Run a core: every `yield` waits for an event of other cores and receives its time."""
    for run in range(stream.inputs):
        begin_ps = yield
        core = CoreRun(code, stream, run, begin_ps)
        yield from core.served()
        if run == stream.kept_run:
            stream.kept[code.index] = core
        end_run(stream, code, core.result())
    yield  # never resumed after the last run


class _RunningQueue:
    """A queue in one run: `issued_ps` of all entries so far, of which `head` were served.

    `ready_ps`: when the head can be served, _FAR if there is none or a semaphore blocks it. `blocked` is the number of
    its WAIT among those that blocked a queue.
    """

    __slots__ = (
        "blocked",
        "depth",
        "finished_ps",
        "free_ps",
        "head",
        "issued_ps",
        "number",
        "ops",
        "ready_ps",
        "served_ps",
        "units",
    )

    def __init__(self, code: CoreCode, number: Queue, depth: int, begin_ps: int) -> None:
        self.number, self.depth, self.free_ps, self.ready_ps = number, depth, begin_ps, _FAR
        self.ops, self.units = code.ops[number], code.units[number]
        self.head = self.blocked = 0
        self.issued_ps: list[int] = []
        self.served_ps: list[int] = []
        self.finished_ps: list[int] = []

    def serve(self, now_ps: int, end_ps: int) -> None:
        """Take the head out of the queue."""
        self.served_ps.append(now_ps)
        self.finished_ps.append(end_ps)
        self.free_ps = end_ps
        self.head = head = self.head + 1
        self.ready_ps = _FAR
        if head < len(self.issued_ps):
            issued_ps = self.issued_ps[head]
            self.ready_ps = issued_ps if issued_ps > end_ps else end_ps


class CoreRun:
    """One run of one core: the `..._ps` of its waits are those of `InputRun`.

    Each of its `queues` has the times of its entries; `issued_ps` are those of the steps that enter no queue.
    """

    def __init__(self, code: CoreCode, stream: StreamState, run: int, begin_ps: int) -> None:
        self._code, self._stream, self._run, self._clock_ps = code, stream, run, begin_ps
        self.begin_ps, machine = begin_ps, code.machine
        self.queues = [_RunningQueue(code, number, depth, begin_ps) for number, depth in machine.queue_depths.items()]
        self.issued_ps: list[int] = []
        self._window = TransferWindow(machine.io_outstanding) if machine.io_outstanding > 1 else None
        self._units = [0] * len(code.semaphores)
        self._position = self._blocked = 0
        self._io_ps = self._starved_ps = self._exchange_ps = self._blocked_ps = 0

    def served(self) -> Generator[None, int, None]:
        """Issue and serve all steps; raises `Deadlock` and `BudgetExceeded`."""
        io, *others = self.queues
        events, limit_ps = self._stream.events, self._stream.limit_ps
        ready_ps = 0
        while ready_ps != _FAR:
            awaited, until = self._issue()
            while awaited.head < until:
                queue, ready_ps = io, io.ready_ps
                for other in others:
                    if other.ready_ps < ready_ps:
                        queue, ready_ps = other, other.ready_ps
                if ready_ps == _FAR:
                    break
                op = queue.ops[queue.head]
                if op == WAIT:
                    self._take(queue, ready_ps)
                elif op == POST:
                    self._post(queue, ready_ps)
                elif queue is not io:
                    queue.serve(ready_ps, ready_ps + op)
                elif op >= 0 and self._window is None:
                    heappush(events, _joining(ready_ps, ready_ps, op))
                    end_ps = yield
                    self._io_ps += end_ps - ready_ps
                    io.serve(ready_ps, end_ps)
                else:
                    yield from self._transfer(io, op, ready_ps)
                if queue.free_ps > limit_ps:
                    step = self._code.step_of(queue.number, queue.head - 1)
                    raise over_budget(step, limit_ps, self._code.source.core)
        if self._position < len(self._code.kinds) or any(each.head < len(each.issued_ps) for each in self.queues):
            raise self._locked()

    def result(self) -> InputRun:
        """Return the record of the run."""
        end_ps = max(self._clock_ps, *(each.free_ps for each in self.queues))
        return InputRun(self.begin_ps, end_ps, self._io_ps, self._starved_ps, self._exchange_ps, self._blocked_ps)

    def _issue(self) -> tuple[_RunningQueue, int]:
        """Run the control unit until it depends on an entry that is not served yet.

        Return the queue of that entry, and how many entries have then left it; more than there are if all is issued.
        """
        kinds, gaps, queues = self._code.kinds, self._code.gaps, self.queues
        awaited, until = queues[0], _FAR
        clock_ps = self._clock_ps
        for position in range(self._position, len(kinds)):
            kind = kinds[position]
            at_ps = clock_ps + gaps[position]
            if kind < FENCE:
                queue = queues[kind]
                leaving = len(queue.issued_ps) - queue.depth
                if leaving >= 0:
                    if leaving >= queue.head:
                        awaited, until = queue, leaving + 1
                        break
                    at_ps = max(at_ps, queue.served_ps[leaving])
                if queue.head == len(queue.issued_ps):
                    queue.ready_ps = at_ps if at_ps > queue.free_ps else queue.free_ps
                queue.issued_ps.append(at_ps)
            else:
                if kind == FENCE:
                    pending = next((each for each in queues if each.head < len(each.issued_ps)), None)
                    if pending is not None:
                        awaited, until = pending, len(pending.issued_ps)
                        break
                    at_ps = max(at_ps, *(each.free_ps for each in queues))
                self.issued_ps.append(at_ps)
            clock_ps = at_ps
            self._position = position + 1
        self._clock_ps = clock_ps
        if clock_ps > self._stream.limit_ps:
            step = self._code.source.steps[self._position - 1]
            raise over_budget(step, self._stream.limit_ps, self._code.source.core)
        return awaited, until

    def _post(self, queue: _RunningQueue, now_ps: int) -> None:
        """Serve the POST at the head of a queue, and the queues that its semaphore blocked, in that order."""
        semaphore, count = queue.units[queue.head]
        self._units[semaphore] += count
        queue.serve(now_ps, now_ps)
        blocked = [each for each in self.queues if each.blocked and each.units[each.head][0] == semaphore]
        for each in sorted(blocked, key=lambda one: one.blocked):
            self._take(each, now_ps)

    def _take(self, queue: _RunningQueue, now_ps: int) -> None:
        """Serve the WAIT at the head of a queue, or block the queue."""
        semaphore, count = queue.units[queue.head]
        if self._units[semaphore] < count:
            if not queue.blocked:
                self._blocked += 1
                queue.blocked = self._blocked
            queue.ready_ps = _FAR
            return
        self._units[semaphore] -= count
        queue.blocked = 0
        queue.serve(now_ps, now_ps)
        if self._window is not None and queue.number is Queue.IO:
            self._window.block(now_ps)

    def _transfer(self, queue: _RunningQueue, op: int, now_ps: int) -> Generator[None, int, None]:
        """Serve a transfer, several of one command, or a message."""
        window, entry = self._window, queue.head
        asked_ps = now_ps if window is None else window.asked_ps(queue.issued_ps[entry])
        if op == RECEIVE:
            now_ps = end_ps = yield from self._message(entry, now_ps)
        elif op == SEND:
            now_ps = yield from self._slot(entry, now_ps)
            end_ps = yield from self._joined(self._code.messages[entry].joins, now_ps, now_ps)
            self._deliver(entry, end_ps)
        else:
            joins = (op,) if op >= 0 else self._code.transfers[entry]
            end_ps = yield from self._joined(joins, asked_ps, now_ps)
        if window is not None:
            window.end(end_ps)
            if op in (RECEIVE, SEND):
                window.block(end_ps)
        self._io_ps += end_ps - now_ps
        queue.serve(now_ps, end_ps)

    def _joined(self, joins: Sequence[int], asked_ps: int, now_ps: int) -> Generator[None, int, int]:
        """Return the end of transfers that are requested at `asked_ps` and move data from `now_ps` at the earliest."""
        if not joins:
            return now_ps
        self._stream.pending[self._code.index] = len(joins)
        for join in joins:
            heappush(self._stream.events, _joining(asked_ps, now_ps, join))
        end_ps = yield
        return end_ps

    def _message(self, entry: int, now_ps: int) -> Generator[None, int, int]:
        """Return when a RECEIVE that reaches the head of its queue at `now_ps` has its message."""
        message = self._code.messages[entry]
        channel = message.channel
        if channel is not None and channel.arrivals:
            arrival_ps = channel.arrivals.popleft()
        else:
            if channel is not None:
                channel.parked = True
            arrival_ps = yield from self._stopped(entry)
        waited_ps = max(0, arrival_ps - now_ps)
        if message.is_foreign:
            self._starved_ps += waited_ps
        else:
            self._exchange_ps += waited_ps
        return now_ps + waited_ps

    def _slot(self, entry: int, now_ps: int) -> Generator[None, int, int]:
        """Return when a SEND that reaches the head of its queue at `now_ps` can begin.

        The receiving group must have ended the run that is its ring's depth earlier.
        """
        ring = self._code.messages[entry].ring
        if ring is None or self._run < ring.depth:
            return now_ps
        awaited = self._run - ring.depth
        if awaited < len(ring.ends_ps):
            free_ps = ring.ends_ps[awaited]
        else:
            ring.waiting.setdefault(awaited, []).append(self._code.index)
            free_ps = yield from self._stopped(entry)
        waited_ps = max(0, free_ps - now_ps)
        self._blocked_ps += waited_ps
        return now_ps + waited_ps

    def _stopped(self, entry: int) -> Generator[None, int, int]:
        """Wait at an entry of the IO queue for another core; return until when."""
        self._stream.stops[self._code.index] = entry
        until_ps = yield
        del self._stream.stops[self._code.index]
        return until_ps

    def _deliver(self, entry: int, now_ps: int) -> None:
        """Put the message of a SEND on its way."""
        message = self._code.messages[entry]
        channel, arrival_ps = message.channel, now_ps + message.delay_ps
        if channel is not None and channel.parked:
            channel.parked = False
            self._stream.ready.append((channel.receiver, arrival_ps))
        elif channel is not None:
            channel.arrivals.append(arrival_ps)

    def _locked(self) -> Deadlock:
        """Return the error for queues that wait for each other."""
        code, steps = self._code, self._code.source.steps
        heads = {
            each.number: code.step_of(each.number, each.head) if each.head < len(each.issued_ps) else None
            for each in self.queues
        }
        stuck = steps[self._position] if self._position < len(steps) else None
        return locked(heads, stuck, lambda number: self._units[code.semaphores[number]], code.source.core)


def _joining(asked_ps: int, now_ps: int, join: int) -> int:
    """Return the event of a transfer that is requested at `asked_ps` and moves data from `now_ps` at the earliest.

    `join` holds its latency and its ticket.
    """
    latency_ps, ticket = join >> TICKET_BITS, join & ((1 << TICKET_BITS) - 1)
    return (max(now_ps, asked_ps + latency_ps) << TICKET_BITS) + ticket
