"""The time of a stream of inputs on many cores: groups in a pipeline, shared memories and links (S2.6, S5.7).

- One core's control unit, queues and semaphores are those of schedule.py: with one core, one input and no peers the
  times are its times. Registers and semaphores start afresh with every input.
- DDR, LLC and link of a chip, and its way out, serve all who transfer at a time at the same rate (resources.py). The
  latency of a transfer comes before that and takes no bandwidth. A command ends when the last of its transfers does.
- SEND occupies its IO queue until its payload has passed the link, and the memory that it is read from and written
  to; between chips the links of both, and the sender's way out. Its message arrives the latency of the links later.
  A SEND that moves nothing takes no time.
- RECEIVE stands at the head of its IO queue until the next message of its peer, for the same input, has arrived.
- A core begins the next input when all cores of its group have ended the last, and all groups the one that is two
  for each group and two more before: nobody runs far ahead of others that do not depend on it.
- A SEND with payload of input i to another group begins when that has ended input i - depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.core_code import CoreSteps, Translation
from device_agents.emulated_npu.timing.core_engine import StreamEngine
from device_agents.emulated_npu.timing.core_stream import CoreRun, EntryTimes
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import Command, Function

__all__ = [
    "CoreRun",
    "CoreSteps",
    "CoreTiming",
    "ResourceTiming",
    "StepTimes",
    "StreamTiming",
    "simulate_cores",
    "step_times",
]

NO_LIMIT_PS = 1 << 62
_NO_RUN = -1


@dataclass(frozen=True)
class CoreTiming:
    """One core: what its units work for each input, and its runs, by input."""

    core: int
    group: int
    mfu_ps: int
    vfu_ps: int
    runs: tuple[CoreRun, ...]


@dataclass(frozen=True)
class ResourceTiming:
    """What all inputs together asked of one resource of a chip.

    `work_ps`: the sum of the data phases, each alone. `busy_ps`: time in which somebody used it; the same up to a
    picosecond for each transfer, since ends are whole ones.
    """

    chip: int
    resource: Resource
    work_ps: int
    busy_ps: int
    moved_bytes: int


@dataclass(frozen=True)
class StreamTiming:
    """A stream of inputs. `resources`: those that are used at all, by chip.

    `starts_ps`, `ends_ps`: of each input: when the first core of a group that receives nothing of other groups began
    it (of any group, if all do), and when the last core of all had ended it.
    """

    cores: tuple[CoreTiming, ...]
    resources: tuple[ResourceTiming, ...]
    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """How many there were."""
        return len(self.ends_ps)

    @property
    def makespan_ps(self) -> int:
        """When the last had ended."""
        return self.ends_ps[-1]


@dataclass(frozen=True)
class StepTimes:
    """One run of one core, by step, in picoseconds since the stream began; as `Schedule` has them for a single run.

    `served_ps` and `finished_ps` are those of issue for what enters no queue.
    """

    core: int
    begin_ps: int
    steps: Sequence[IssuedStep]
    issued_ps: Sequence[int]
    served_ps: Sequence[int]
    finished_ps: Sequence[int]


def simulate_cores(
    cores: Sequence[CoreSteps],
    machine: Machine,
    *,
    inputs: int,
    depths: Mapping[int, int],
    limit_ps: int = NO_LIMIT_PS,
    costs: CostModel | None = None,
) -> StreamTiming:
    """Runs the programs of all cores once for each input. `depths`: slots of the ring of each group.

    Raises `Deadlock`, `BudgetExceeded` for what ends after `limit_ps`, and `ExecutionFault` for a stream without
    cores or inputs, a core that the machine has not or that is there twice, a peer that runs nothing, a group
    without depth, and a command that cannot be; all name core and instruction where there is one.
    """
    translation = _translated(cores, machine, inputs, depths, costs)
    engine = StreamEngine(translation, machine, inputs, limit_ps, _NO_RUN)
    engine.run()
    timings = tuple(
        CoreTiming(code.source.core, code.source.group, code.mfu_ps, code.vfu_ps, tuple(runs))
        for code, runs in zip(translation.codes, engine.runs, strict=True)
    )
    resources = tuple(
        ResourceTiming(
            place // len(Resource),
            Resource(place % len(Resource)),
            use.work_ps * inputs,
            engine.resources[place].busy_ps,
            use.moved_bytes * inputs,
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


def step_times(
    cores: Sequence[CoreSteps],
    machine: Machine,
    *,
    inputs: int,
    depths: Mapping[int, int],
    run: int,
    costs: CostModel | None = None,
) -> tuple[StepTimes, ...]:
    """Times of every step of input `run` within a stream of so many inputs, by core; raises as `simulate_cores`."""
    translation = _translated(cores, machine, inputs, depths, costs)
    if not 0 <= run < inputs:
        raise ExecutionFault(f"there is no input {run}", f"the stream has {inputs}", "Name one from 0 on")
    engine = StreamEngine(translation, machine, inputs, NO_LIMIT_PS, run)
    engine.run()
    return tuple(_by_step(code.source, code.kinds, engine.kept[index]) for index, code in enumerate(translation.codes))


def _translated(
    cores: Sequence[CoreSteps], machine: Machine, inputs: int, depths: Mapping[int, int], costs: CostModel | None
) -> Translation:
    if not cores or inputs < 1:
        what = f"{len(cores)} cores run {inputs} inputs"
        raise ExecutionFault(what, "there is nothing to time", "Give at least one of each")
    return Translation(cores, machine, costs or CostModel(machine), depths)


def _by_step(source: CoreSteps, kinds: Sequence[int], times: EntryTimes) -> StepTimes:
    issued, served, finished = ([0] * len(kinds) for _ in range(3))
    passed = [0] * 4
    for position, kind in enumerate(kinds):
        place = min(kind, 2)
        entry = passed[place]
        passed[place] += 1
        issued[position] = times.issued_ps[place][entry]
        if place < 2:
            served[position], finished[position] = times.served_ps[place][entry], times.finished_ps[place][entry]
        else:
            served[position] = finished[position] = issued[position]
    return StepTimes(source.core, times.begin_ps, source.steps, issued, served, finished)


def _first_groups(cores: Sequence[CoreSteps]) -> set[int]:
    """Groups that work and receive nothing of another group; all, where there is none."""
    group_of = {each.core: each.group for each in cores}
    working = {each.group for each in cores if any(isinstance(step.item, Command) for step in each.steps)}
    receiving = {
        each.group
        for each in cores
        for _, item, _ in each.steps
        if type(item) is Command and item.function is Function.RECEIVE and group_of[item.peer] != each.group
    }
    return (working - receiving) or set(group_of.values())
