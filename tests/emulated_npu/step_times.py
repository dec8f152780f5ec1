"""The times of every step in a stream of inputs, as `Schedule` has them for a single run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.many_cores.core_code import FENCE, CoreSteps, Translation
from device_agents.emulated_npu.timing.many_cores.core_process import CoreRun, StreamState
from device_agents.emulated_npu.timing.many_cores.stream_timing import NO_LIMIT_PS, run_engine, simulate_cores
from device_agents.emulated_npu.timing.simulation import simulate


@dataclass(frozen=True)
class StepTimes:
    """One run of one core, by step, in picoseconds since the stream began; as in `Schedule` for a single run.

    For a step that enters no queue `served_ps` and `finished_ps` are its issue time.
    """

    core: int
    begin_ps: int
    steps: Sequence[IssuedStep]
    issued_ps: Sequence[int]
    served_ps: Sequence[int]
    finished_ps: Sequence[int]


def step_times(
    cores: Sequence[CoreSteps], machine: Machine, inputs: int, depths: Mapping[int, int], run: int
) -> tuple[StepTimes, ...]:
    """Return the times of all steps for input `run` of a stream, by core."""
    translation = Translation(cores, machine, CostModel(machine), depths)
    stream = StreamState(translation, inputs, NO_LIMIT_PS, kept_run=run)
    run_engine(translation, stream)
    return tuple(_by_step(code.source, code.kinds, stream.kept[index]) for index, code in enumerate(translation.codes))


def _by_step(source: CoreSteps, kinds: Sequence[int], run: CoreRun) -> StepTimes:
    issued, served, finished = ([0] * len(kinds) for _ in range(3))
    entries = [iter(zip(each.issued_ps, each.served_ps, each.finished_ps, strict=True)) for each in run.queues]
    others = iter(run.issued_ps)
    for position, kind in enumerate(kinds):
        times = next(entries[kind]) if kind < FENCE else (next(others),) * 3
        issued[position], served[position], finished[position] = times
    return StepTimes(source.core, run.begin_ps, source.steps, issued, served, finished)


def check_alone(steps: Sequence[IssuedStep], machine: Machine) -> None:
    """Assert that one core of many with one input has the step times and the makespan of the single-core engine."""
    cores, depths = [CoreSteps(0, 0, steps)], {0: 1}
    try:
        expected = simulate(steps, machine).schedule
    except Deadlock:
        with pytest.raises(Deadlock, match="core 0"):
            simulate_cores(cores, machine, inputs=1, depths=depths)
        return
    assert simulate_cores(cores, machine, inputs=1, depths=depths).makespan_ps == expected.makespan_ps
    (times,) = step_times(cores, machine, inputs=1, depths=depths, run=0)
    assert list(times.issued_ps) == list(expected.issued_ps)
    for entry in (entry for entries in expected.entries for entry in entries):
        assert times.served_ps[entry] == expected.served_ps[entry]
        assert times.finished_ps[entry] == expected.finished_ps[entry]
