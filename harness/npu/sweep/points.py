"""The time of a network on every machine of a sweep."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.odd_dft.choice import NoDft
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import area_mm2
from device_agents.emulated_npu.reports.accounting import run_energy
from harness.errors import InputError
from harness.measure.progress import DONE, Observer, begin, ignore, steps_of
from harness.npu.compiling_effort import compiling_effort
from harness.npu.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import Options
from harness.npu.run.core_run import run_rows
from harness.npu.sweep.grid import MachineGrid, SweepAxis, SweepMachine
from harness.npu.sweep.machine_parameters import ParameterValue
from harness.parallel import results
from harness.text import sentences

Cost = Literal["area", "energy"]
"""The cost of a machine in addition to its time: mm2, or the energy of a run."""

_NEXT = "Use --jobs 1, which names the limit"
SLOWER = 0.005
"""A larger machine is slower than a smaller one if it takes this fraction more."""

# More of each takes no time from a program that was compiled for less.
_MORE_IS_BETTER = (
    *("nb_bytes", "sb_bytes", "llc.bytes", "ddr.bytes", "llc.bytes_per_s", "ddr.bytes_per_s", "clock_hz"),
    *("mfu.rows", "mfu.columns", "vfu.lanes", "io_queue_depth", "cp_queue_depth", "vfu_queue_depth", "llc_queue_depth"),
)


@dataclass(frozen=True)
class SlowerThan:
    """A smaller machine that is faster, although it differs only in `key`.

    `cycles` and `seconds` are those of the smaller machine's program on the larger machine. If that is faster than the
    larger machine's own program, the compiler is to blame, else the machine.
    """

    key: str
    value: ParameterValue
    slower_by: float
    cycles: float
    seconds: float
    because: Literal["compiler", "machine"]


@dataclass(frozen=True)
class SweepPoint:
    """One machine of a sweep: its changed parameters, and its time if it can run the network.

    `area_mm2` is None for a machine that cannot be. `energy_uj` is that of the run. `mfu_utilisation` is None without
    matrix products. If the machine cannot run the network, `reason` says why and the results are None.
    """

    machine: str
    settings: Mapping[str, ParameterValue]
    clock_hz: int
    area_mm2: float | None = None
    energy_uj: float | None = None
    cycles: float | None = None
    seconds: float | None = None
    mfu_utilisation: float | None = None
    bound: str | None = None
    compile_s: float | None = None
    timing_s: float | None = None
    reason: str = ""
    next_step: str = ""
    slower_than: SlowerThan | None = None


@dataclass(frozen=True)
class Sweep:
    """A network on a grid of machines and values, machine by machine; the last parameter changes fastest.

    `one_buffer` names the machines with one buffer, whose nb_bytes and sb_bytes were set together; `tied` names,
    for each parameter that changed with a set one, the machines.
    """

    network: str
    machines: tuple[str, ...]
    axes: tuple[SweepAxis, ...]
    one_buffer: tuple[str, ...]
    tied: Mapping[str, tuple[str, ...]]
    points: tuple[SweepPoint, ...]
    import_s: float
    took_s: float
    cost: Cost = "area"


def run_sweep(
    load: Callable[[], NetworkModel],
    grid: MachineGrid,
    options: Options,
    cycle_budget: int | None,
    observe: Observer = ignore,
    jobs: int = 1,
    cost: Cost = "area",
) -> Sweep:
    """Load a network and time it on every machine of a grid in `jobs` processes.

    Raises InputError if none of them can run it.
    """
    with errors_of_user():
        options.check()
    start = time.perf_counter()
    begin(observe, "importing")
    model = load()
    import_s = time.perf_counter() - start
    points = _measure(_Work(model, grid.candidates, options, cycle_budget), jobs, observe)
    observe(DONE)
    return Sweep(
        network=model.name,
        machines=tuple(each.name for each in grid.machines),
        axes=grid.axes,
        one_buffer=grid.one_buffer,
        tied=grid.tied,
        points=points,
        import_s=import_s,
        took_s=time.perf_counter() - start,
        cost=cost,
    )


@dataclass(frozen=True)
class _Work:
    """What all machines of a sweep have in common.

    The compiler is loaded after the network: the time is predicted from the network by itself.
    """

    model: NetworkModel
    candidates: Sequence[SweepMachine]
    options: Options
    cycle_budget: int | None

    def point(self, number: int) -> SweepPoint:
        """Return the time of the network on one machine, or why the machine cannot run it."""

        candidate = self.candidates[number]
        name, settings, machine = candidate.base.name, candidate.settings, candidate.machine
        if machine is None:
            reason, step = candidate.reason, candidate.next_step
            return SweepPoint(name, settings, candidate.base.clock_hz, reason=reason, next_step=step)
        area = area_mm2(machine)
        start = time.perf_counter()
        with errors_of_compiler():
            try:
                with errors_of_forced_choices(self.options):
                    compiled = compile_model(self.model.content, machine, self.options)
                compile_s = time.perf_counter() - start
                timed = time_program(compiled.program, machine, cycle_budget=self.cycle_budget)
            except (BudgetExceeded, DoesNotFit, NoDft) as error:
                reason, step = sentences(error.what, error.why), error.next_step
                return SweepPoint(name, settings, machine.clock_hz, area, reason=reason, next_step=step)
        total = run_rows(timed)[-1]
        energy = run_energy(timed.steps, timed.costs, timed.timing.makespan_ps)
        return SweepPoint(
            machine=name,
            settings=settings,
            clock_hz=machine.clock_hz,
            area_mm2=area,
            energy_uj=energy.total,
            cycles=timed.cycles,
            seconds=timed.timing.makespan_ps / PS_PER_S,
            mfu_utilisation=total.mfu_utilisation if total.mfu_busy else None,
            bound=total.bound,
            compile_s=compile_s,
            timing_s=time.perf_counter() - start - compile_s,
        )

    @cached_property
    def layers(self) -> tuple[HardwareLayer, ...]:
        """The layers of the network; raises InputError for one that cannot be compiled."""
        with errors_of_user():
            return import_model(self.model.content).layers

    def sizes(self, numbers: Iterable[int]) -> list[float]:
        """Return about how long machines take."""
        machines = (self.candidates[number].machine for number in numbers)
        return [0.0 if one is None else compiling_effort(self.layers, one) for one in machines]

    def of_smaller(self, smaller: int, larger: int) -> tuple[float, float] | None:
        """Return cycles and seconds of the program for one machine on another one, None if it cannot run there."""
        small, large = self.candidates[smaller].machine, self.candidates[larger].machine
        if small is None or large is None:
            return None
        with errors_of_compiler():
            compiled = compile_model(self.model.content, small, self.options)
            try:
                timed = time_program(compiled.program, large, cycle_budget=self.cycle_budget)
            except (BudgetExceeded, DoesNotFit):
                return None
        return timed.cycles, timed.timing.makespan_ps / PS_PER_S


def _measure(work: _Work, jobs: int, observe: Observer) -> tuple[SweepPoint, ...]:
    """Compile and time the network for all machines; raises InputError if none of them can run it."""
    points: list[SweepPoint] = []
    count = len(work.candidates)
    sizes = work.sizes(range(count))
    step = steps_of(observe, "trying machines", sizes, effort=sum(sizes))
    for point in results(work.point, count, jobs, next_step=_NEXT):
        points.append(point)
        step(len(points), count)
    if all(point.cycles is None for point in points):
        what = f"No machine of the sweep can run {work.model.name}"
        raise InputError(what, why=f"The first: {points[0].reason}", next_step=points[0].next_step)
    pairs = [pair for larger in range(len(points)) if (pair := _faster_smaller(points, larger))]

    def again(number: int) -> tuple[float, float] | None:
        smaller, larger, _ = pairs[number]
        return work.of_smaller(smaller, larger)

    sizes = work.sizes(pair[0] for pair in pairs)
    step = steps_of(observe, "trying programs of smaller machines", sizes, effort=sum(sizes))
    done = enumerate(zip(pairs, results(again, len(pairs), jobs, next_step=_NEXT), strict=True), start=1)
    for number, ((smaller, larger, key), found) in done:
        step(number, len(pairs))
        if found is not None:
            points[larger] = _compared(points[smaller], points[larger], key, found)
    return tuple(points)


def _faster_smaller(points: Sequence[SweepPoint], larger: int) -> tuple[int, int, str] | None:
    """Return the fastest machine that has less of one parameter, `larger` and the parameter, if it is slower."""
    point, found, least = points[larger], None, 0.0
    if point.seconds is None:
        return None
    least = point.seconds / (1 + SLOWER)
    for at, other in enumerate(points):
        if other.machine != point.machine or other.seconds is None or other.seconds >= least:
            continue
        differing = [key for key, value in point.settings.items() if other.settings[key] != value]
        if len(differing) != 1 or differing[0] not in _MORE_IS_BETTER:
            continue
        (key,) = differing
        if float(other.settings[key]) < float(point.settings[key]):
            found, least = (at, larger, key), other.seconds
    return found


def _compared(smaller: SweepPoint, larger: SweepPoint, key: str, rerun: tuple[float, float]) -> SweepPoint:
    cycles, seconds = rerun
    own_s, other_s = larger.seconds or 0.0, smaller.seconds or 0.0
    because: Literal["compiler", "machine"] = "compiler" if seconds < own_s else "machine"
    slower = SlowerThan(key, smaller.settings[key], own_s / other_s - 1, cycles, seconds, because)
    return replace(larger, slower_than=slower)


def pareto(points: Sequence[SweepPoint], cost: Cost = "area") -> tuple[int, ...]:
    """Return the points than which none costs as little and is as fast, and better in one, ascending by cost.

    If all machines cost the same there is no choice, and the result is empty.
    """
    costs = [each.area_mm2 if cost == "area" else each.energy_uj for each in points]
    seconds = [each.seconds for each in points]
    known = [(paid, took, at) for at, (paid, took) in enumerate(zip(costs, seconds, strict=True)) if paid and took]
    if len({paid for paid, _, _ in known}) < 2:
        return ()
    return tuple(
        at
        for paid, took, at in sorted(known)
        if not any(
            paid_2 <= paid and took_2 <= took and (paid_2, took_2) != (paid, took) for paid_2, took_2, _ in known
        )
    )
