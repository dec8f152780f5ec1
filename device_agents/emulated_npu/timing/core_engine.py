"""The engine for many cores over a stream of inputs, event by event.

Each core is a coroutine (core_process.py) that runs until it waits for other cores. The engine's only events are the
data phases of transfers, in one heap ordered by time; a core continues when its last transfer has ended.
"""

from __future__ import annotations

from heapq import heappop, heappush

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.core_code import Translation
from device_agents.emulated_npu.timing.core_process import core_process
from device_agents.emulated_npu.timing.core_stream import EntryTimes, InputRun, StreamState, begin_input
from device_agents.emulated_npu.timing.failures import standstill
from device_agents.emulated_npu.timing.resources import NEVER, TICKET_BITS, SharedResource
from device_agents.emulated_npu.unit_commands import Queue

_TICKETS = (1 << TICKET_BITS) - 1


class StreamEngine:
    """Runs translated cores `inputs` times.

    `runs` holds the runs of each core, `resources` the shared resources as the translation numbers them, `kept` the
    times of run `kept_run` by core.
    """

    def __init__(
        self, translation: Translation, machine: Machine, inputs: int, limit_ps: int, kept_run: int | None = None
    ) -> None:
        self._translation = translation
        self._stream = StreamState(len(translation.codes), len(translation.groups), machine, inputs, limit_ps, kept_run)
        self.resources = [SharedResource() for _ in range(translation.resources)]
        self.runs: list[list[InputRun]] = self._stream.runs
        self.kept: dict[int, EntryTimes] = self._stream.kept

    def run(self) -> None:
        """Run until every core has ended its last input. Raises `Deadlock` and `BudgetExceeded`."""
        resume = []
        for code in self._translation.codes:
            core = core_process(code, self._stream)
            next(core)
            resume.append(core.send)
        for group in self._translation.groups.values():
            begin_input(self._stream, group, 0)
        events, ready, pending = self._stream.events, self._stream.ready, self._stream.pending
        owners, keys, places = self._translation.owners, self._translation.keys, self._translation.places
        used = [self.resources[place] for place in places]
        resources = len(self.resources)
        while True:
            while ready:
                index, time_ps = ready.pop()
                resume[index](time_ps)
            if not events:
                break
            event = heappop(events)
            now_ps, ticket = event >> TICKET_BITS, event & _TICKETS
            resource = used[ticket]
            if ticket >= resources:
                due_ps = resource.begin(now_ps, keys[ticket])
                if due_ps != NEVER:
                    heappush(events, (due_ps << TICKET_BITS) | places[ticket])
            elif resource.due_ps == now_ps:  # else an earlier event has replaced this one
                for ended in resource.ended(now_ps):
                    index = owners[ended]
                    if pending[index] > 1:
                        pending[index] -= 1
                    else:
                        ready.append((index, now_ps))
                if resource.due_ps != NEVER:
                    heappush(events, (resource.due_ps << TICKET_BITS) | ticket)
        if self._stream.stops:
            self._raise_standstill()

    def _raise_standstill(self) -> None:
        codes = self._translation.codes
        raise standstill(
            {
                codes[index].source.core: (codes[index].step_of(Queue.IO, entry), len(self.runs[index]))
                for index, entry in self._stream.stops.items()
            }
        )
