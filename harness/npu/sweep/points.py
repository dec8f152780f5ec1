"""The time of a network on every machine of a sweep."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.odd_dft.obstacles import NoDft
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit
from device_agents.emulated_npu.inference import time_program
from harness.errors import InputError
from harness.npu.core_run import run_rows
from harness.npu.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user
from harness.npu.loading import NetworkModel, load_model
from harness.npu.npu_options import Options
from harness.npu.sweep.axis import SweepAxis
from harness.npu.sweep.grid import Grid, SweepMachine, in_one_line
from harness.npu.sweep.machine_parameters import ParameterValue
from harness.npu.value_check import Note


@dataclass(frozen=True)
class SweepPoint:
    """One machine of a sweep: its changed parameters, and its time if it can run the network.

    `mfu_utilisation` is None without matrix products. If the machine cannot run the network, `reason` says why and the
    results are None.
    """

    machine: str
    settings: Mapping[str, ParameterValue]
    clock_hz: int
    cycles: float | None = None
    seconds: float | None = None
    mfu_utilisation: float | None = None
    bound: str | None = None
    compile_s: float | None = None
    timing_s: float | None = None
    reason: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class Sweep:
    """A network on a grid of machines and values, machine by machine; the last parameter changes fastest.

    `one_buffer` names the machines with one buffer, whose nb_bytes and sb_bytes were set together.
    """

    network: str
    machines: tuple[str, ...]
    axes: tuple[SweepAxis, ...]
    one_buffer: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    import_s: float
    took_s: float


def run_sweep(
    reference: str, grid: Grid, options: Options, dims: Mapping[str, int], cycle_budget: int | None, progress: Note
) -> Sweep:
    """Time a network on every machine of a grid; raises InputError if none of them can run it."""
    with errors_of_user():
        options.check()
    start = time.perf_counter()
    model = load_model(reference, dims)
    import_s = time.perf_counter() - start
    points = _measure(model, grid.candidates, options, cycle_budget, progress)
    return Sweep(
        network=model.name,
        machines=tuple(each.name for each in grid.machines),
        axes=grid.axes,
        one_buffer=grid.one_buffer,
        points=points,
        import_s=import_s,
        took_s=time.perf_counter() - start,
    )


def _measure(
    model: NetworkModel, candidates: Sequence[SweepMachine], options: Options, cycle_budget: int | None, progress: Note
) -> tuple[SweepPoint, ...]:
    """Compile and time the network for one machine after the other, and note the progress.

    Raises InputError if none of them can run it.
    """
    points = []
    for number, candidate in enumerate(candidates, 1):
        points.append(_point(model, candidate, options, cycle_budget))
        progress(f"{number} of {len(candidates)} machines done")
    if all(point.cycles is None for point in points):
        what = f"No machine of the sweep can run {model.name}"
        raise InputError(what, why=f"The first: {points[0].reason}", next_step=points[0].next_step)
    return tuple(points)


def _point(model: NetworkModel, candidate: SweepMachine, options: Options, cycle_budget: int | None) -> SweepPoint:
    """Return the time of the network on one machine, or why the machine cannot run it."""
    name, settings, machine = candidate.base.name, candidate.settings, candidate.machine
    if machine is None:
        reason, step = candidate.reason, candidate.next_step
        return SweepPoint(name, settings, candidate.base.clock_hz, reason=reason, next_step=step)
    start = time.perf_counter()
    with errors_of_compiler():
        try:
            with errors_of_forced_choices(options):
                compiled = compile_model(model.content, machine, options)
            compile_s = time.perf_counter() - start
            timed = time_program(compiled.program, machine, cycle_budget=cycle_budget)
        except (BudgetExceeded, DoesNotFit, NoDft) as error:
            return SweepPoint(name, settings, machine.clock_hz, reason=in_one_line(error), next_step=error.next_step)
    total = run_rows(timed)[-1]
    return SweepPoint(
        machine=name,
        settings=settings,
        clock_hz=machine.clock_hz,
        cycles=timed.cycles,
        seconds=timed.timing.makespan_ps / 1e12,
        mfu_utilisation=total.mfu_utilisation if total.mfu_busy else None,
        bound=total.bound,
        compile_s=compile_s,
        timing_s=time.perf_counter() - start - compile_s,
    )
