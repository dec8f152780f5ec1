"""One core of many, as a coroutine: its control unit, its two queues and semaphores, by the rules of single_core.py.

A core affects other cores only through its IO queue. So it runs ahead until that queue reaches a command whose end
depends on others, and waits there: for a transfer, which ends when the shared resources say so; in a RECEIVE, for the
message; in a SEND, for a free ring slot. It also waits between two inputs. When the end is known, the other queue
catches up, so entries are still served in order of time. core_queues.py runs a core whose VFU has a queue, too.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappush

from device_agents.emulated_npu.timing.failures import over_budget
from device_agents.emulated_npu.timing.latency_hiding import TransferWindow
from device_agents.emulated_npu.timing.many_cores.core_code import FENCE, POST, TRANSFERS, WAIT, CoreCode
from device_agents.emulated_npu.timing.many_cores.exchange import CoreWaits, exchange, joining, locked_core
from device_agents.emulated_npu.timing.many_cores.stream import EntryTimes, InputRun, StreamState, end_run
from device_agents.emulated_npu.timing.resources import NEVER, TICKET_BITS
from device_agents.emulated_npu.unit_commands import Queue

_FAR = 1 << 80  # later than all times


def core_process(code: CoreCode, stream: StreamState) -> Generator[None, int, None]:
    """Run a core: every `yield` waits for an event of other cores and receives its time."""
    # One long function, because its local variables are the state of the core: with one object for each queue and a
    # function for each part it takes 31 to 35 % longer for an item (medians of 9 runs alternating in one process).
    kinds, gaps, count, limit_ps = code.kinds, code.gaps, len(code.kinds), stream.limit_ps
    io_ops, io_units, cp_ops, cp_units = code.io_ops, code.io_units, code.cp_ops, code.cp_units
    io_depth, cp_depth = code.machine.io_queue_depth, code.machine.cp_queue_depth
    outstanding = code.machine.io_outstanding
    events, index = stream.events, code.index
    for run in range(stream.inputs):
        begin_ps = yield
        clock = io_free = cp_free = begin_ps
        position = io_head = cp_head = io_count = cp_count = io_ps = 0
        io_issued: list[int] = []
        cp_issued: list[int] = []
        issued: list[int] = []  # of steps that enter no queue
        io_served: list[int] = []
        cp_served: list[int] = []
        io_finished: list[int] = []
        waits = CoreWaits()
        window = TransferWindow(outstanding) if outstanding > 1 else None
        units = [0] * len(code.semaphores)
        io_waits = cp_waits = NEVER  # the semaphore that blocks the head of the queue
        while True:
            # The control unit issues until it depends on an entry that is not served yet: the one before a stop.
            io_stop = cp_stop = _FAR
            while position < count:
                kind = kinds[position]
                at = clock + gaps[position]
                if kind == 0:
                    leaving = io_count - io_depth
                    if leaving >= 0:
                        if leaving >= io_head:
                            io_stop = leaving + 1
                            break
                        if io_served[leaving] > at:
                            at = io_served[leaving]
                    io_issued.append(at)
                    io_count += 1
                elif kind == 1:
                    leaving = cp_count - cp_depth
                    if leaving >= 0:
                        if leaving >= cp_head:
                            cp_stop = leaving + 1
                            break
                        if cp_served[leaving] > at:
                            at = cp_served[leaving]
                    cp_issued.append(at)
                    cp_count += 1
                else:
                    if kind == FENCE:
                        if io_head < io_count:
                            io_stop = io_count
                            break
                        if cp_head < cp_count:
                            cp_stop = cp_count
                            break
                        at = max(at, io_free, cp_free)
                    issued.append(at)
                clock = at
                position += 1
            if clock > limit_ps:
                raise over_budget(code.source.steps[position - 1], limit_ps, code.source.core)
            io_ready = cp_ready = _FAR
            if io_head < io_count and io_waits == NEVER:
                io_ready = io_issued[io_head]
                if io_free > io_ready:
                    io_ready = io_free
            if cp_head < cp_count and cp_waits == NEVER:
                cp_ready = cp_issued[cp_head]
                if cp_free > cp_ready:
                    cp_ready = cp_free
            # The queues serve the head that is ready first, until the control unit can issue again.
            while io_head < io_stop and cp_head < cp_stop:
                if cp_ready < io_ready:
                    op, now = cp_ops[cp_head], cp_ready
                    if op >= 0:
                        cp_free = now + op
                        if cp_free > limit_ps:
                            raise over_budget(code.step_of(Queue.CP, cp_head), limit_ps, code.source.core)
                    else:
                        semaphore, needed = cp_units[cp_head]
                        if op == WAIT:
                            if units[semaphore] < needed:
                                cp_waits, cp_ready = semaphore, _FAR
                                continue
                            units[semaphore] -= needed
                        else:
                            units[semaphore] += needed
                            if io_waits == semaphore and units[semaphore] >= io_units[io_head][1]:
                                units[semaphore] -= io_units[io_head][1]
                                io_waits = NEVER
                                io_free = now
                                io_served.append(now)
                                io_finished.append(now)
                                io_head += 1
                                if window is not None:
                                    window.block(now)
                                if io_head < io_count:
                                    io_ready = max(io_issued[io_head], now)
                        cp_free = now
                    cp_served.append(now)
                    cp_head += 1
                    cp_ready = _FAR
                    if cp_head < cp_count:
                        cp_ready = cp_issued[cp_head]
                        if cp_free > cp_ready:
                            cp_ready = cp_free
                    continue
                if io_ready == _FAR:
                    break
                op, now = io_ops[io_head], io_ready
                if op >= 0:
                    asked = now if window is None else window.asked_ps(io_issued[io_head])
                    heappush(events, (now << TICKET_BITS) + op if asked == now else joining(asked, now, op))
                    io_free = yield
                    io_ps += io_free - now
                    if window is not None:
                        window.end(io_free)
                elif op >= POST:
                    semaphore, needed = io_units[io_head]
                    if op == WAIT:
                        if units[semaphore] < needed:
                            io_waits, io_ready = semaphore, _FAR
                            continue
                        units[semaphore] -= needed
                        if window is not None:
                            window.block(now)
                    else:
                        units[semaphore] += needed
                        if cp_waits == semaphore and units[semaphore] >= cp_units[cp_head][1]:
                            units[semaphore] -= cp_units[cp_head][1]
                            cp_waits = NEVER
                            cp_free = now
                            cp_served.append(now)
                            cp_head += 1
                            if cp_head < cp_count:
                                cp_ready = max(cp_issued[cp_head], now)
                    io_free = now
                else:
                    asked = now if window is None else window.asked_ps(io_issued[io_head])
                    now, io_free, busy_ps = yield from exchange(stream, code, io_head, run, (asked, now), waits)
                    if window is not None:
                        window.end(io_free)
                        if op != TRANSFERS:
                            window.block(io_free)
                    io_ps += busy_ps
                if io_free > limit_ps:
                    raise over_budget(code.step_of(Queue.IO, io_head), limit_ps, code.source.core)
                io_served.append(now)
                io_finished.append(io_free)
                io_head += 1
                io_ready = _FAR
                if io_head < io_count:
                    io_ready = io_issued[io_head]
                    if io_free > io_ready:
                        io_ready = io_free
            else:
                continue
            break
        if position < count or io_head < io_count or cp_head < cp_count:
            raise locked_core(code, position, ((io_head, io_count), (cp_head, cp_count)), units)
        if run == stream.kept_run:
            cp_finished = [at + max(op, 0) for at, op in zip(cp_served, cp_ops, strict=True)]
            all_issued, served = (io_issued, cp_issued, issued), (io_served, cp_served)
            stream.kept[index] = EntryTimes(begin_ps, all_issued, served, (io_finished, cp_finished))
        waited = waits.starved_ps, waits.exchange_ps, waits.blocked_ps
        end_run(stream, code, InputRun(begin_ps, max(clock, io_free, cp_free), io_ps, *waited))
    yield  # never resumed after the last run
