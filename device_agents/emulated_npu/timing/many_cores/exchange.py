"""What a core of many does besides serving its own queues: transfers on shared resources, messages, ring slots."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from heapq import heappush

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.timing.failures import locked
from device_agents.emulated_npu.timing.many_cores.core_code import RECEIVE, SEND, TRANSFERS, CoreCode, MessageTransfer
from device_agents.emulated_npu.timing.many_cores.stream import StreamState
from device_agents.emulated_npu.timing.resources import TICKET_BITS
from device_agents.emulated_npu.unit_commands import Queue


@dataclass(slots=True)
class CoreWaits:
    """How long the IO queue of a core has waited in a run, by cause (`InputRun`)."""

    starved_ps: int = 0
    exchange_ps: int = 0
    blocked_ps: int = 0


def locked_core(code: CoreCode, position: int, entries: Sequence[tuple[int, int]], units: Sequence[int]) -> Deadlock:
    """Return the error for a core whose queues wait for each other; `entries` are head and number of each queue."""
    heads = {
        queue: code.step_of(queue, head) if head < count else None
        for queue, (head, count) in zip(Queue, entries, strict=False)
    }
    steps = code.source.steps
    stuck = steps[position] if position < len(steps) else None
    return locked(heads, stuck, lambda number: units[code.semaphores[number]], code.source.core)


def joining(asked_ps: int, now_ps: int, join: int) -> int:
    """Return the event of a transfer that is requested at `asked_ps` and moves data from `now_ps` at the earliest.

    `join` holds its latency and its ticket.
    """
    latency_ps, ticket = join >> TICKET_BITS, join & ((1 << TICKET_BITS) - 1)
    return (max(now_ps, asked_ps + latency_ps) << TICKET_BITS) + ticket


def exchange(
    stream: StreamState, code: CoreCode, entry: int, run: int, times_ps: tuple[int, int], waits: CoreWaits
) -> Generator[None, int, tuple[int, int, int]]:
    """Serve a RECEIVE, a SEND or a command with several transfers; return its start, its end and the transfer time.

    `times_ps`: when its transfers are requested, if it waits for no other core, and when it reaches the head.
    """
    op, (asked_ps, now_ps) = code.io_ops[entry], times_ps
    if op == RECEIVE:
        now_ps = yield from _message(stream, code, entry, now_ps, waits)
        return now_ps, now_ps, 0
    joins = code.transfers[entry] if op == TRANSFERS else code.messages[entry].joins
    if op == SEND:
        asked_ps = now_ps = yield from _slot(stream, code, entry, run, now_ps, waits)
    end_ps = now_ps
    if joins:
        stream.pending[code.index] = len(joins)
        for join in joins:
            heappush(stream.events, joining(asked_ps, now_ps, join))
        end_ps = yield
    if op == SEND:
        _deliver(stream, code.messages[entry], end_ps)
    return now_ps, end_ps, end_ps - now_ps


def _message(
    stream: StreamState, code: CoreCode, entry: int, now_ps: int, waits: CoreWaits
) -> Generator[None, int, int]:
    """Return when a RECEIVE that reaches the head of its queue at `now_ps` has its message."""
    channel = code.messages[entry].channel
    if channel is not None and channel.arrivals:
        arrival_ps = channel.arrivals.popleft()
    else:
        if channel is not None:
            channel.parked = True
        stream.stops[code.index] = entry
        arrival_ps = yield
        del stream.stops[code.index]
    if arrival_ps <= now_ps:
        return now_ps
    if code.messages[entry].is_foreign:
        waits.starved_ps += arrival_ps - now_ps
    else:
        waits.exchange_ps += arrival_ps - now_ps
    return arrival_ps


def _slot(
    stream: StreamState, code: CoreCode, entry: int, run: int, now_ps: int, waits: CoreWaits
) -> Generator[None, int, int]:
    """Return when a SEND that reaches the head of its queue at `now_ps` can begin.

    The receiving group must have ended the run that is its ring's depth earlier.
    """
    ring = code.messages[entry].ring
    if ring is None or run < ring.depth:
        return now_ps
    awaited = run - ring.depth
    if awaited < len(ring.ends_ps):
        free_ps = ring.ends_ps[awaited]
    else:
        ring.waiting.setdefault(awaited, []).append(code.index)
        stream.stops[code.index] = entry
        free_ps = yield
        del stream.stops[code.index]
    if free_ps <= now_ps:
        return now_ps
    waits.blocked_ps += free_ps - now_ps
    return free_ps


def _deliver(stream: StreamState, message: MessageTransfer, now_ps: int) -> None:
    """Put a message on its way."""
    channel = message.channel
    if channel is None:
        return
    if channel.parked:
        channel.parked = False
        stream.ready.append((channel.receiver, now_ps + message.delay_ps))
    else:
        channel.arrivals.append(now_ps + message.delay_ps)
