"""The engine for many cores over a stream of inputs, event by event.

Each core is a coroutine (core_process.py) that runs until it waits for other cores. The engine's only events are
the data phases of transfers, in one heap ordered by time; a core continues when its last transfer has ended.
"""

from __future__ import annotations

from heapq import heappop, heappush

from device_agents.emulated_npu.timing.failures import standstill
from device_agents.emulated_npu.timing.many_cores.core_code import Translation
from device_agents.emulated_npu.timing.many_cores.core_process import core_process
from device_agents.emulated_npu.timing.many_cores.multicast import Multicast
from device_agents.emulated_npu.timing.many_cores.stream import StreamState, begin_input
from device_agents.emulated_npu.timing.resources import NEVER, TICKET_BITS, SharedResource
from device_agents.emulated_npu.unit_commands import Queue

_TICKETS = (1 << TICKET_BITS) - 1


def run_engine(translation: Translation, stream: StreamState) -> list[SharedResource]:
    """Run until every core has ended its last input; return the resources, as the translation numbers them.

    Raises `Deadlock` and `BudgetExceeded`.
    """
    resume = []
    for code in translation.codes:
        core = core_process(code, stream)
        next(core)
        resume.append(core.send)
    for group in translation.groups.values():
        begin_input(stream, group, 0)
    events, ready, pending = stream.events, stream.ready, stream.pending
    owners, keys, places = translation.owners, translation.keys, translation.places
    resources = [SharedResource() for _ in range(translation.resources)]
    used = [resources[place] for place in places]
    multicast = Multicast(translation.reads)
    while True:
        while ready:
            index, time_ps = ready.pop()
            resume[index](time_ps)
        if not events:
            break
        event = heappop(events)
        now_ps, ticket = event >> TICKET_BITS, event & _TICKETS
        resource = used[ticket]
        if ticket >= len(resources):
            if ticket in translation.reads and multicast.joins(ticket, resource):
                continue
            due_ps = resource.begin(now_ps, keys[ticket])
            if due_ps != NEVER:
                heappush(events, (due_ps << TICKET_BITS) | places[ticket])
        elif resource.due_ps == now_ps:  # else an earlier event has replaced this one
            tickets = resource.ended(now_ps)
            if translation.reads:
                tickets = [each for ended in tickets for each in multicast.ended(ended)]
            for ended in tickets:
                index = owners[ended]
                if pending[index] > 1:
                    pending[index] -= 1
                else:
                    ready.append((index, now_ps))
            if resource.due_ps != NEVER:
                heappush(events, (resource.due_ps << TICKET_BITS) | ticket)
    if stream.stops:
        stopped = {}
        for index, entry in stream.stops.items():
            code = translation.codes[index]
            stopped[code.source.core] = code.step_of(Queue.IO, entry), len(stream.runs[index])
        raise standstill(stopped)
    return resources
