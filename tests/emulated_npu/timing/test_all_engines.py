"""What holds for every program on machines with two to four queues: all engines and the formula agree on the times."""

from dataclasses import replace

import pytest
from core_streams import ExactMachine, RandomStream, streams
from hypothesis import event, given, settings, strategies as st
from step_times import check_alone
from timed_programs import CYCLE_PS, machine, programs, sound_programs, tick_by_tick

from device_agents.emulated_npu.emulator_errors import Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.simulation import Timing, durations_ps, simulate

_DEPTHS = st.integers(1, 5)
_Case = tuple[list[IssuedStep], Machine]


@st.composite
def _machines(draw: st.DrawFn, queues: int, most_outstanding: int = 1) -> Machine:
    """Draw a machine for programs of so many queues, of which the VFU and the last-level cache may have none."""
    apart = {name: draw(st.just(0) | _DEPTHS) for name in ("vfu_queue_depth", "llc_queue_depth")[: queues - 2]}
    outstanding = draw(st.integers(1, most_outstanding))
    return machine(
        io_queue_depth=draw(_DEPTHS),
        cp_queue_depth=draw(_DEPTHS),
        issue_cycles=draw(st.integers(0, 3)),
        io_outstanding=outstanding,
        ddr=Memory(1 << 30, 1e9, draw(st.integers(0, 9)) if most_outstanding > 1 else 0.0, 1),
        **apart,
    )


def _cases(*, shared: bool = False, sound: bool = False, most_outstanding: int = 1) -> st.SearchStrategy[_Case]:
    """Draw programs, of `shared` semaphores as well, or `sound` ones, with a machine."""
    kinds = [
        (queues, programs(shared_semaphores=sharing, min_items=4, queues=queues))
        for queues in (2, 3, 4)
        for sharing in (False, True)[: 1 + shared]
    ]
    if sound:
        kinds = [(queues, sound_programs(queues=queues)) for queues in (2, 3, 4)]
    return st.one_of(*(st.tuples(steps, _machines(queues, most_outstanding)) for queues, steps in kinds))


def _outcome(steps: list[IssuedStep], described: Machine) -> Timing | None:
    try:
        timing = simulate(steps, described)
    except Deadlock:
        timing = None
    event("deadlock" if timing is None else "ends")
    return timing


def _queues_ps(found: Timing | Formula) -> tuple[int, ...]:
    return found.io_ps, found.cp_ps, found.vfu_queue_ps, found.llc_queue_ps


@settings(max_examples=400)
@given(_cases(shared=True))
def test_the_run_equals_a_machine_that_tries_everything_at_every_tick(case: _Case) -> None:
    """Makespans and deadlocks agree, also for semaphores that several queues post and wait for."""
    steps, described = case
    described = replace(described, llc=replace(described.llc, bytes_per_s=1e9))  # whole ticks
    lengths = [ps // CYCLE_PS for ps in durations_ps(steps, CostModel(described))]
    most = sum(lengths) + 5 * len(steps) * described.issue_cycles + 2
    expected = tick_by_tick(steps, described, lengths, most=most)
    timing = _outcome(steps, described)
    assert (timing and timing.makespan_ps) == (None if expected is None else expected * CYCLE_PS)


@settings(max_examples=250)
@given(_cases(most_outstanding=4))
def test_formula_and_run_agree_when_control_is_free(case: _Case) -> None:
    """The formula of S2.6 and the run give the same sums and total, or the same deadlock.

    To hide the latency of transfers makes no program slower.
    """
    steps, described = case[0], replace(case[1], issue_cycles=0)
    timing = _outcome(steps, described)
    if timing is None:
        with pytest.raises(Deadlock):
            formula(steps, described)
        return
    io_ps, cp_ps, vfu_ps, llc_ps = _queues_ps(timing)
    assert formula(steps, described) == Formula(io_ps, cp_ps, timing.wait_ps, timing.makespan_ps, vfu_ps, llc_ps)
    assert timing.makespan_ps <= simulate(steps, replace(described, io_outstanding=1)).makespan_ps


@settings(max_examples=150)
@given(_cases(sound=True, most_outstanding=3))
def test_bounds_and_sums(case: _Case) -> None:
    """The busiest queue <= formula <= makespan <= all queues with control, and the parts sum exactly."""
    timing, static = simulate(*case), formula(*case)
    queues_ps = _queues_ps(timing)
    assert max(queues_ps) <= timing.makespan_ps <= sum(queues_ps) + timing.control_ps
    assert static.total_ps == static.wait_ps + max(_queues_ps(static)) <= timing.makespan_ps
    assert timing.mfu_ps + timing.vfu_ps == timing.cp_ps + timing.vfu_queue_ps
    assert timing.wait_ps == timing.makespan_ps - max(queues_ps) == sum(wait.ps for wait in timing.waits)
    assert sum(timing.layers) + timing.no_layer_ps == timing.makespan_ps


@settings(max_examples=300)
@given(_cases(shared=True, most_outstanding=4))
def test_one_core_of_many_has_the_times_of_the_single_core_engine(case: _Case) -> None:
    """Programs agree step by step, with several transfers in flight, too, and so do deadlocks."""
    steps, described = case
    check_alone(steps, replace(described, llc_queue_depth=0))


@settings(max_examples=150)
@given(st.one_of(*(st.tuples(streams(queues=queues), _machines(queues)) for queues in (2, 3))), st.integers(0, 3))
def test_streams_take_as_long_as_on_an_exact_machine(case: tuple[RandomStream, Machine], latency_ns: int) -> None:
    """For random cores, groups, chips, messages and inputs, every run begins and ends as in exact fractions.

    Ends are rounded up to picoseconds, at most one for each command; the smallest transfer takes 1000.
    """
    stream, described = case
    described = replace(described, cores=stream.layout, ddr=Memory(1 << 30, 1e9, latency_ns, 1))
    timing = simulate_cores(stream.cores, described, inputs=stream.inputs, depths=stream.depths)
    exact = ExactMachine(stream.cores, described, stream.inputs, stream.depths).simulate()
    assert exact is not None
    for core in timing.cores:
        for number, run in enumerate(core.runs):
            begin_ps, end_ps = exact[core.core, number]
            assert abs(run.begin_ps - begin_ps) <= stream.commands
            assert abs(run.end_ps - end_ps) <= stream.commands
