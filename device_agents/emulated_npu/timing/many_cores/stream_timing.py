"""The time of a stream of inputs on many cores: groups in a pipeline, shared memories and links.

- Each core follows the rules of single_core.py; one core with one input and no peers has the same times. Registers and
  semaphores start afresh with every input.
- DDR, LLC, link and chip link of a chip serve all current transfers at the same rate (resources.py). The latency of a
  transfer comes first and takes no bandwidth. A command ends with the last of its transfers. On chips that multicast,
  a LOAD of bytes that are on their way to another core of its group ends with that read.
- SEND occupies its IO queue until its payload has passed the link and the memories it is read from and written to;
  between chips, the links of both chips and the sender's chip link. Its message arrives after the latency of the links.
  A SEND without payload takes no time.
- RECEIVE stays at the head of its IO queue until the next message of its peer, for the same input, has arrived.
- All transfers of a core are in its IO queue, even on a machine with a queue for the last-level cache.
- A core begins input i when all cores of its group have ended input i - 1, and all groups have ended the input that is
  2 x groups + 2 earlier: no group runs far ahead of groups that do not depend on it.
- A SEND with payload for input i to another group begins when that group has ended input i - depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.failures import standstill
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps, Multicast, Translation
from device_agents.emulated_npu.timing.many_cores.core_process import InputRun, StreamState, begin_input, core_process
from device_agents.emulated_npu.timing.resources import NEVER, TICKET_BITS, Resource, SharedResource
from device_agents.emulated_npu.unit_commands import Command, Function, Queue

NO_LIMIT_PS = 1 << 62
_TICKETS = (1 << TICKET_BITS) - 1


@dataclass(frozen=True)
class CoreTiming:
    """One core: the busy time per input of its units, and of its VFU queue if it has one, and its runs by input."""

    core: int
    group: int
    mfu_ps: int
    vfu_ps: int
    runs: tuple[InputRun, ...]
    vfu_queue_ps: int = 0

    @property
    def compute_ps(self) -> int:
        """Busy time per input of the busier compute queue."""
        return max(self.mfu_ps + self.vfu_ps - self.vfu_queue_ps, self.vfu_queue_ps)


@dataclass(frozen=True)
class ResourceTiming:
    """The load of all inputs together on one resource of a chip.

    `work_ps`: the sum of the data phases without sharing. `busy_ps`: time with at least one user; it differs from
    `work_ps` by at most a picosecond per transfer, because ends are whole picoseconds.
    """

    chip: int
    resource: Resource
    work_ps: int
    busy_ps: int
    moved_bytes: int


@dataclass(frozen=True)
class StreamTiming:
    """A stream of inputs. `resources`: the used ones, by chip.

    `starts_ps` holds, by input, when the first core of a group that receives nothing from other groups began it (of any
    group, if all receive); `ends_ps` when the last core had ended it.
    """

    cores: tuple[CoreTiming, ...]
    resources: tuple[ResourceTiming, ...]
    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return len(self.ends_ps)

    @property
    def makespan_ps(self) -> int:
        """When the last input had ended."""
        return self.ends_ps[-1]


def simulate_cores(
    cores: Sequence[CoreSteps],
    machine: Machine,
    *,
    inputs: int,
    depths: Mapping[int, int],
    limit_ps: int = NO_LIMIT_PS,
    costs: CostModel | None = None,
) -> StreamTiming:
    """Run the programs of all cores once per input. `depths`: ring slots by group.

    Raises `Deadlock`, `BudgetExceeded` for an instruction that ends after `limit_ps`, and `ExecutionFault` for an
    invalid command. All name core and instruction.
    """
    shared = machine.sharing_caches
    translation = Translation(cores, shared, costs or CostModel(machine), depths)
    state = StreamState(translation, inputs, limit_ps)
    used = run_engine(translation, state)
    timings = tuple(
        CoreTiming(code.source.core, code.source.group, code.mfu_ps, code.vfu_ps, tuple(runs), code.vfu_queue_ps)
        for code, runs in zip(translation.codes, state.runs, strict=True)
    )
    resources = tuple(
        ResourceTiming(
            place // len(Resource),
            Resource(place % len(Resource)),
            use.work_ps * inputs - used[place].saved_ps,
            used[place].busy_ps,
            use.moved_bytes * inputs - used[place].saved_bytes,
        )
        for place, use in enumerate(translation.uses)
        if use.work_ps
    )
    first = _first_groups(cores)
    return StreamTiming(
        cores=timings,
        resources=resources,
        starts_ps=tuple(
            min(each.runs[number].begin_ps for each in timings if each.group in first) for number in range(inputs)
        ),
        ends_ps=tuple(max(each.runs[number].end_ps for each in timings) for number in range(inputs)),
    )


def _first_groups(cores: Sequence[CoreSteps]) -> set[int]:
    """Return the groups that work and receive nothing from another group; all groups if there is none."""
    group_of = {each.core: each.group for each in cores}
    working = {each.group for each in cores if any(isinstance(step.item, Command) for step in each.steps)}
    receiving = {
        each.group
        for each in cores
        for _, item, _ in each.steps
        if type(item) is Command and item.function is Function.RECEIVE and group_of[item.peer] != each.group
    }
    return (working - receiving) or set(group_of.values())


def run_engine(translation: Translation, stream: StreamState) -> list[SharedResource]:
    """Run until every core has ended its last input; return the resources, as the translation numbers them.

    Each core is a coroutine (core_process.py) that runs until it waits for other cores. The only events are the data
    phases of transfers, in one heap ordered by time; a core continues when its last transfer has ended.
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
