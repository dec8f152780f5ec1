"""The machines of a sweep, and what they make of a network."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.npu_errors import errors_of_compiler, errors_of_forced_choices, errors_of_user, shortened
from harness.cli.npu_options import choose_machine
from harness.cli.output import note
from harness.errors import InputError, UsageError

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.options import Options
    from device_agents.emulated_npu.machine import Machine
    from device_agents.emulated_npu.sweep.axis import Axis
    from device_agents.emulated_npu.sweep.parameters import Value
    from harness.cli.npu_source import NetworkModel

MOST_POINTS = 256
"""Machines of one sweep: each takes a compilation."""

MOST_LINES = 12
"""Lines of one plot."""


@dataclass(frozen=True)
class Point:
    """One machine of a sweep: what was changed and, where it can run the network, its time.

    `mfu_utilisation` is None without matrix products. Where the machine cannot, `reason` says why and the rest is None.
    """

    machine: str
    settings: Mapping[str, Value]
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
    """A network on the grid of machines and values. Points: machine by machine, the last parameter changes fastest.

    `one_buffer`: machines whose nb_bytes and sb_bytes are one and were set together.
    """

    network: str
    machines: tuple[str, ...]
    axes: tuple[Axis, ...]
    one_buffer: tuple[str, ...]
    points: tuple[Point, ...]
    import_s: float
    took_s: float


@dataclass(frozen=True)
class Candidate:
    """A machine to try; `reason` is there in place of a machine whose values contradict each other."""

    base: Machine
    settings: Mapping[str, Value]
    machine: Machine | None
    reason: str = ""
    next_step: str = ""


def read_machines(presets: Sequence[str], files: Sequence[Path]) -> list[Machine]:
    """The machines to start from, edge where none is named; raises UsageError for one given twice."""
    found = [choose_machine(name, None) for name in presets]
    found += [choose_machine(None, file) for file in files]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Machine {shortened(name)} is given twice", next_step="Leave one out, or rename its file")
    return found or [choose_machine(None, None)]


def read_axes(settings: Sequence[str]) -> tuple[Axis, ...]:
    """The parameters of --set with their values; raises UsageError."""
    from device_agents.emulated_npu.emulator_errors import InvalidMachine
    from device_agents.emulated_npu.sweep.axis import InvalidSweep, parse_axis

    axes: list[Axis] = []
    for text in settings:
        try:
            axis = parse_axis(text, MOST_POINTS)
        except (InvalidSweep, InvalidMachine) as error:
            what, why = f"--set: {shortened(error.what)}", shortened(error.why)
            raise UsageError(what, why=why, next_step=error.next_step) from error
        if axis.key.startswith("cores."):
            why = "A sweep is of networks on one core, which has neither other cores nor links"
            step = "Compare numbers of cores by `harness npu run --groups`"
            raise UsageError(f"--set {axis.key} changes nothing", why=why, next_step=step)
        if any(axis.key == other.key for other in axes):
            raise UsageError(f"--set {axis.key} is given twice", next_step="Separate its values by commas")
        axes.append(axis)
    return tuple(axes)


def grid(machines: Sequence[Machine], axes: Sequence[Axis]) -> list[Candidate]:
    """All machines, checked before any of them is compiled for.

    Raises UsageError for one alone and for more than `MOST_POINTS`, InputError for a value that no machine can have.
    """
    sizes = [len(axis.values) for axis in axes]
    count = len(machines) * math.prod(sizes)
    if count < 2:
        step = "Give --set KEY=VALUES with several values, or --preset several times"
        raise UsageError("The sweep is of one machine alone", why="Nothing varies", next_step=step)
    if count > MOST_POINTS:
        product = " x ".join(map(str, [len(machines), *sizes] if len(machines) > 1 else sizes))
        step = "Leave values out or take a larger step"
        raise UsageError(f"{product} = {count:,} machines are more than {MOST_POINTS}", next_step=step)
    with errors_of_user():
        return [
            _candidate(base, dict(zip((axis.key for axis in axes), values, strict=True)))
            for base in machines
            for values in itertools.product(*(axis.values for axis in axes))
        ]


def check_drawable(machines: Sequence[Machine], axes: Sequence[Axis]) -> None:
    """Raises UsageError for more lines than a plot has room for."""
    sizes = [len(axis.values) for axis in axes]
    lines = len(machines) * math.prod(sizes) // next((size for size in sizes if size > 1), len(machines))
    if lines > MOST_LINES:
        step = "Give the parameter with the most values first, which is the horizontal axis, or leave --plot out"
        raise UsageError(f"--plot would have {lines} lines, more than {MOST_LINES}", next_step=step)


def _candidate(base: Machine, settings: Mapping[str, Value]) -> Candidate:
    from device_agents.emulated_npu.sweep.parameters import ContradictoryMachine, changed

    try:
        return Candidate(base, settings, changed(base, settings))
    except ContradictoryMachine as error:
        return Candidate(base, settings, None, *_reason(error.what, error.why, error.next_step))


def with_one_buffer(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Names of the machines of which setting one of nb_bytes and sb_bytes has set both."""
    from device_agents.emulated_npu.sweep.parameters import with_tied

    tied = (each.base.name for each in candidates if len(with_tied(each.base, each.settings)) > len(each.settings))
    return tuple(dict.fromkeys(tied))


def measure(
    source: NetworkModel, candidates: Sequence[Candidate], choices: Options, cycle_budget: int | None
) -> tuple[Point, ...]:
    """Compiles and times the network for one machine after the other; tells on a terminal how far that is.

    Raises InputError where none of them can run it.
    """
    points = []
    for number, candidate in enumerate(candidates, 1):
        points.append(_point(source, candidate, choices, cycle_budget))
        if sys.stderr.isatty():
            note(f"{number} of {len(candidates)} machines done")
    if all(point.cycles is None for point in points):
        what = f"No machine of the sweep can run {shortened(source.name)}"
        raise InputError(what, why=f"The first: {points[0].reason}", next_step=points[0].next_step)
    return tuple(points)


def _point(source: NetworkModel, candidate: Candidate, choices: Options, cycle_budget: int | None) -> Point:
    """One machine, compiled for and timed; what it lacks is a result, anything else an error."""
    from device_agents.emulated_npu.compiler.odd_dft.obstacles import NoDft
    from device_agents.emulated_npu.compiler.pipeline import compile_model
    from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit
    from device_agents.emulated_npu.inference import time_program
    from harness.cli.npu_report import Run

    name, settings, machine = candidate.base.name, candidate.settings, candidate.machine
    if machine is None:
        reason, step = candidate.reason, candidate.next_step
        return Point(name, settings, candidate.base.clock_hz, reason=reason, next_step=step)
    start = time.perf_counter()
    with errors_of_compiler():
        try:
            with errors_of_forced_choices(choices):
                compiled = compile_model(source.content, machine, choices)
            compile_s = time.perf_counter() - start
            timed = time_program(compiled.program, machine, cycle_budget=cycle_budget)
        except (BudgetExceeded, DoesNotFit, NoDft) as error:
            reason, step = _reason(error.what, error.why, error.next_step)
            return Point(name, settings, machine.clock_hz, reason=reason, next_step=step)
    total = Run(source.name, timed, 0.0).rows[-1]
    return Point(
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


def _reason(what: str, why: str, next_step: str) -> tuple[str, str]:
    return shortened(". ".join(part for part in (what, why) if part)), next_step
