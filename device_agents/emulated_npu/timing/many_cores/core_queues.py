"""One core of many with any number of queues, as a coroutine: by the rules of single_core.py.

It is what core_process.py is for two queues, and slower: it has an object for each queue.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappush

from device_agents.emulated_npu.timing.failures import over_budget
from device_agents.emulated_npu.timing.latency_hiding import TransferWindow
from device_agents.emulated_npu.timing.many_cores.core_code import FENCE, POST, TRANSFERS, WAIT, CoreCode
from device_agents.emulated_npu.timing.many_cores.exchange import CoreWaits, exchange, joining, locked_core
from device_agents.emulated_npu.timing.many_cores.stream import EntryTimes, InputRun, StreamState, end_run
from device_agents.emulated_npu.timing.resources import NEVER
from device_agents.emulated_npu.unit_commands import Queue


def core_process_of_queues(code: CoreCode, stream: StreamState) -> Generator[None, int, None]:
    """Run a core: every `yield` waits for an event of other cores and receives its time."""
    for run in range(stream.inputs):
        begin_ps = yield
        core = _CoreRun(code, stream, run, begin_ps)
        yield from core.served()
        if run == stream.kept_run:
            stream.kept[code.index] = core.times(begin_ps)
        end_run(stream, code, core.result(begin_ps))
    yield  # never resumed after the last run


class _RunningQueue:
    """A queue in one run: `issued_ps` of all entries so far, of which `head` were served."""

    __slots__ = (
        "blocked",
        "depth",
        "finished_ps",
        "free_ps",
        "head",
        "issued_ps",
        "number",
        "ops",
        "served_ps",
        "units",
    )

    def __init__(self, code: CoreCode, number: Queue, depth: int, begin_ps: int) -> None:
        self.number, self.depth, self.free_ps = number, depth, begin_ps
        self.ops, self.units = code.ops_of(number), code.units_of(number)
        self.head = self.blocked = 0
        self.issued_ps: list[int] = []
        self.served_ps: list[int] = []
        self.finished_ps: list[int] = []

    def ready_ps(self) -> int:
        """Return when the head can be served; NEVER if there is none or a semaphore blocks it."""
        if self.blocked or self.head == len(self.issued_ps):
            return NEVER
        return max(self.issued_ps[self.head], self.free_ps)

    def serve(self, now_ps: int, end_ps: int) -> None:
        """Take the head out of the queue."""
        self.served_ps.append(now_ps)
        self.finished_ps.append(end_ps)
        self.free_ps = end_ps
        self.head += 1


class _CoreRun:
    def __init__(self, code: CoreCode, stream: StreamState, run: int, begin_ps: int) -> None:
        self._code, self._stream, self._run, self._clock_ps = code, stream, run, begin_ps
        machine = code.machine
        self._queues = [_RunningQueue(code, number, depth, begin_ps) for number, depth in machine.queue_depths.items()]
        self._issued_ps: list[int] = []  # of steps that enter no queue
        self._waits = CoreWaits()
        self._window = TransferWindow(machine.io_outstanding) if machine.io_outstanding > 1 else None
        self._units = [0] * len(code.semaphores)
        self._position = self._io_ps = self._blocked = 0

    def served(self) -> Generator[None, int, None]:
        """Issue and serve all steps; raises `Deadlock` and `BudgetExceeded`."""
        while True:
            self._issue()
            ready = [(ready_ps, queue.number) for queue in self._queues if (ready_ps := queue.ready_ps()) != NEVER]
            if not ready:
                break
            now_ps, number = min(ready)
            queue = self._queues[number]
            op = queue.ops[queue.head]
            if op in (WAIT, POST):
                self._synchronise(queue, op, now_ps)
            elif number is Queue.IO:
                yield from self._transfer(queue, op, now_ps)
            else:
                queue.serve(now_ps, now_ps + op)
            self._check(queue)
        if self._position < len(self._code.kinds) or any(each.head < len(each.issued_ps) for each in self._queues):
            heads = [(each.head, len(each.issued_ps)) for each in self._queues]
            raise locked_core(self._code, self._position, heads, self._units)

    def times(self, begin_ps: int) -> EntryTimes:
        """Return the times of all entries."""
        issued = (*(each.issued_ps for each in self._queues), self._issued_ps)
        served = tuple(each.served_ps for each in self._queues)
        return EntryTimes(begin_ps, issued, served, tuple(each.finished_ps for each in self._queues))

    def result(self, begin_ps: int) -> InputRun:
        """Return the record of the run."""
        end_ps = max(self._clock_ps, *(each.free_ps for each in self._queues))
        waits = self._waits
        return InputRun(begin_ps, end_ps, self._io_ps, waits.starved_ps, waits.exchange_ps, waits.blocked_ps)

    def _issue(self) -> None:
        """Run the control unit until it depends on an entry that is not served yet."""
        kinds, gaps = self._code.kinds, self._code.gaps
        while self._position < len(kinds):
            kind = kinds[self._position]
            at_ps = self._clock_ps + gaps[self._position]
            if kind < FENCE:
                queue = self._queues[kind]
                leaving = len(queue.issued_ps) - queue.depth
                if leaving >= 0:
                    if leaving >= queue.head:
                        break
                    at_ps = max(at_ps, queue.served_ps[leaving])
                queue.issued_ps.append(at_ps)
            else:
                if kind == FENCE:
                    if any(each.head < len(each.issued_ps) for each in self._queues):
                        break
                    at_ps = max(at_ps, *(each.free_ps for each in self._queues))
                self._issued_ps.append(at_ps)
            self._clock_ps = at_ps
            self._position += 1
        if self._clock_ps > self._stream.limit_ps:
            step = self._code.source.steps[self._position - 1]
            raise over_budget(step, self._stream.limit_ps, self._code.source.core)

    def _check(self, queue: _RunningQueue) -> None:
        if queue.free_ps > self._stream.limit_ps:
            step = self._code.step_of(queue.number, queue.head - 1)
            raise over_budget(step, self._stream.limit_ps, self._code.source.core)

    def _synchronise(self, queue: _RunningQueue, op: int, now_ps: int) -> None:
        semaphore, count = queue.units[queue.head]
        if op == WAIT:
            self._take(queue, now_ps)
            return
        self._units[semaphore] += count
        queue.serve(now_ps, now_ps)
        blocked = [each for each in self._queues if each.blocked and each.units[each.head][0] == semaphore]
        for each in sorted(blocked, key=lambda one: one.blocked):
            self._take(each, now_ps)

    def _take(self, queue: _RunningQueue, now_ps: int) -> None:
        """Serve the WAIT at the head of a queue, or block the queue."""
        semaphore, count = queue.units[queue.head]
        if self._units[semaphore] < count:
            if not queue.blocked:
                self._blocked += 1
                queue.blocked = self._blocked
            return
        self._units[semaphore] -= count
        queue.blocked = 0
        queue.serve(now_ps, now_ps)
        if self._window is not None and queue.number is Queue.IO:
            self._window.block(now_ps)

    def _transfer(self, queue: _RunningQueue, op: int, now_ps: int) -> Generator[None, int, None]:
        """Serve a transfer or a message."""
        window = self._window
        asked_ps = now_ps if window is None else window.asked_ps(queue.issued_ps[queue.head])
        if op >= 0:
            heappush(self._stream.events, joining(asked_ps, now_ps, op))
            end_ps = yield
            busy_ps = end_ps - now_ps
        else:
            times_ps = asked_ps, now_ps
            now_ps, end_ps, busy_ps = yield from exchange(
                self._stream, self._code, queue.head, self._run, times_ps, self._waits
            )
        if window is not None:
            window.end(end_ps)
            if op < 0 and op != TRANSFERS:
                window.block(end_ps)
        self._io_ps += busy_ps
        queue.serve(now_ps, end_ps)
