"""A VFU with a queue of its own: it works while the MFU does, and all engines and the formula agree on the times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_streams import ExactMachine, RandomStream, streams
from hypothesis import event, given, settings
from hypothesis import strategies as st
from step_times import step_times
from timed_programs import (
    CYCLE_PS,
    compute,
    compute_apart,
    convolve,
    load,
    machine,
    operand,
    programs,
    sound_programs,
    steps_of,
    tick_by_tick,
)

from device_agents.emulated_npu.emulator_errors import Deadlock, ExecutionFault
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine, Memory, load_preset, parse_machine, preset_names, preset_text
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.simulation import Timing, durations_ps, simulate
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Post, Queue, Space, Wait

IO, CP, VFU, _ = Queue
_DEPTHS = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
_ALONE = {0: 1}


def _depthwise() -> Command:
    """Return a depthwise convolution of 2 x 2 pixels with four channels."""
    views = (operand(Space.NB, 1, 2, 2, 4, 1), operand(Space.NB, 1, 2, 2, 4, 1), operand(Space.NB, 1, 1, 1, 4, 1))
    return Command(Function.DEPTHWISE, *views)


def _three_queues(depths: tuple[int, int, int] = (4, 4, 4), issue_cycles: int = 0, latency_ns: float = 0.0) -> Machine:
    io_depth, cp_depth, vfu_depth = depths
    return machine(
        io_queue_depth=io_depth,
        cp_queue_depth=cp_depth,
        vfu_queue_depth=vfu_depth,
        issue_cycles=issue_cycles,
        ddr=Memory(1 << 30, 1e9, latency_ns, 1),
    )


def _outcome(steps: list[IssuedStep], described: Machine) -> Timing | None:
    try:
        return simulate(steps, described)
    except Deadlock:
        return None


def test_both_units_work_at_the_same_time() -> None:
    """Four cycles of the MFU pass during six of the VFU, and the queue with the largest sum is the one that waits."""
    timing = simulate(steps_of(convolve((2, 2), 4, 4), compute_apart(6)), _three_queues())
    assert (timing.mfu_ps, timing.vfu_ps, timing.cp_ps, timing.vfu_queue_ps) == (4_000, 6_000, 4_000, 6_000)
    assert (timing.makespan_ps, timing.wait_ps, timing.waiting_queue) == (6_000, 0, VFU)


def test_a_tile_passes_from_one_unit_to_the_other() -> None:
    """Two tiles of four cycles on the MFU, then six on the VFU, take 4 + 2 x 6 cycles; the VFU waits for the first."""
    tile = (convolve((2, 2), 4, 4), Post(CP, 4), Wait(VFU, 4), compute_apart(6))
    timing = simulate(steps_of(*tile, *tile), _three_queues())
    assert timing.makespan_ps == 16_000
    assert [(wait.pc, wait.due_pc, wait.ps) for wait in timing.waits] == [(2, 0, 4_000)]
    assert formula(steps_of(*tile, *tile), _three_queues()) == Formula(0, 8_000, 4_000, 16_000, 12_000)


def test_a_machine_with_one_compute_queue_runs_the_program_in_order() -> None:
    """Items of the VFU queue enter the CP queue, where every POST comes before its WAIT."""
    tile = (convolve((2, 2), 4, 4), Post(CP, 4), Wait(VFU, 4), compute_apart(6))
    timing = simulate(steps_of(*tile, *tile), machine())
    assert (timing.makespan_ps, timing.cp_ps, timing.vfu_queue_ps) == (20_000, 20_000, 0)


@pytest.mark.parametrize("depths", [(4, 4, 1), (4, 4, 4)])
def test_a_program_for_one_compute_queue_takes_as_long_with_two(depths: tuple[int, int, int]) -> None:
    """Commands without the flag share the CP queue on every machine."""
    steps = steps_of(load(3), Post(IO, 0), Wait(CP, 0), convolve((2, 2), 4, 4), compute(6))
    assert simulate(steps, _three_queues(depths)).makespan_ps == simulate(steps, machine()).makespan_ps == 13_000


@pytest.mark.parametrize("run", [simulate, formula])
def test_a_unit_takes_its_commands_from_one_queue(run: object) -> None:
    """Commands of the VFU in both queues are refused where these are two queues, with a name for each."""
    steps = steps_of(compute(6), compute_apart(6))
    with pytest.raises(ExecutionFault, match="the VFU has commands in the CP queue and in the VFU queue"):
        run(steps, _three_queues())  # type: ignore[operator]
    run(steps, machine())  # type: ignore[operator]


def test_the_matrix_unit_takes_depthwise_from_its_own_queue() -> None:
    """Where the MFU computes depthwise convolutions, one in the VFU queue beside a product is refused by all cores."""
    described = _three_queues()
    both = replace(described, mfu=replace(described.mfu, depthwise="mfu"))
    depthwise = replace(_depthwise(), own_queue=True)
    steps = steps_of(convolve((2, 2), 4, 4), depthwise)
    assert simulate(steps, described).vfu_queue_ps > 0
    with pytest.raises(ExecutionFault, match="instruction 1: the MFU has commands in the CP queue and in the VFU"):
        simulate(steps, both)
    with pytest.raises(ExecutionFault, match="core 0: instruction 1: the MFU"):
        simulate_cores([CoreSteps(0, 0, steps)], both, inputs=1, depths=_ALONE)


@settings(max_examples=300, deadline=None)
@given(programs(min_items=4, queues=3), st.booleans(), _DEPTHS, st.integers(0, 2))
def test_the_run_equals_a_machine_that_tries_everything_at_every_tick(
    steps: list[IssuedStep], one_queue: bool, depths: tuple[int, int, int], issue: int
) -> None:
    """Makespans and deadlocks agree, with a queue for the VFU and without."""
    described = replace(_three_queues(depths, issue), vfu_queue_depth=0 if one_queue else depths[2])
    lengths = [ps // CYCLE_PS for ps in durations_ps(steps, CostModel(described))]
    expected = tick_by_tick(steps, described, lengths, most=sum(lengths) + 5 * len(steps) * issue + 2)
    timing = _outcome(steps, described)
    event("deadlock" if timing is None else "ends")
    assert (timing and timing.makespan_ps) == (None if expected is None else expected * CYCLE_PS)


@settings(max_examples=300, deadline=None)
@given(programs(shared_semaphores=True, min_items=4, queues=3), _DEPTHS)
def test_three_queues_may_share_a_semaphore(steps: list[IssuedStep], depths: tuple[int, int, int]) -> None:
    """The queue that waits longest takes first, as on the machine that tries everything."""
    described = _three_queues(depths, issue_cycles=1)
    lengths = [ps // CYCLE_PS for ps in durations_ps(steps, CostModel(described))]
    expected = tick_by_tick(steps, described, lengths, most=sum(lengths) + 5 * len(steps) + 2)
    timing = _outcome(steps, described)
    assert (timing and timing.makespan_ps) == (None if expected is None else expected * CYCLE_PS)


@settings(max_examples=200, deadline=None)
@given(programs(min_items=4, queues=3), _DEPTHS)
def test_formula_and_run_agree_when_control_is_free(steps: list[IssuedStep], depths: tuple[int, int, int]) -> None:
    """The formula and the run give the same sums and total, or the same deadlock."""
    described = _three_queues(depths)
    timing = _outcome(steps, described)
    if timing is None:
        with pytest.raises(Deadlock):
            formula(steps, described)
        return
    expected = Formula(timing.io_ps, timing.cp_ps, timing.wait_ps, timing.makespan_ps, timing.vfu_queue_ps)
    assert formula(steps, described) == expected


@given(sound_programs(queues=3), _DEPTHS, st.integers(0, 3))
def test_bounds_and_sums(steps: list[IssuedStep], depths: tuple[int, int, int], issue: int) -> None:
    """The busiest queue bounds the makespan from below, all queues with control from above; parts sum exactly."""
    timing = simulate(steps, _three_queues(depths, issue))
    queues_ps = timing.io_ps, timing.cp_ps, timing.vfu_queue_ps
    assert max(queues_ps) <= timing.makespan_ps <= sum(queues_ps) + timing.control_ps
    assert timing.wait_ps == timing.makespan_ps - max(queues_ps) == sum(wait.ps for wait in timing.waits)
    assert sum(timing.layers) + timing.no_layer_ps == timing.makespan_ps


@given(st.one_of(programs(queues=3), programs(shared_semaphores=True, queues=3)), _DEPTHS, st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_one_core_of_many_has_the_times_of_the_single_core_engine(
    steps: list[IssuedStep], depths: tuple[int, int, int], latency_ns: int
) -> None:
    """Random programs agree step by step, with several transfers in flight, too, and so do deadlocks."""
    cores = [CoreSteps(0, 0, steps)]
    for outstanding in (1, 3):
        described = replace(_three_queues(depths, 1, latency_ns), io_outstanding=outstanding)
        timing = _outcome(steps, described)
        if timing is None:
            with pytest.raises(Deadlock, match="core 0"):
                simulate_cores(cores, described, inputs=1, depths=_ALONE)
            continue
        assert simulate_cores(cores, described, inputs=1, depths=_ALONE).makespan_ps == timing.makespan_ps
        (times,) = step_times(cores, described, inputs=1, depths=_ALONE, run=0)
        assert list(times.issued_ps) == list(timing.schedule.issued_ps)
        for entries in timing.schedule.entries:
            for entry in entries:
                assert times.served_ps[entry] == timing.schedule.served_ps[entry]
                assert times.finished_ps[entry] == timing.schedule.finished_ps[entry]


@given(streams(queues=3), _DEPTHS, st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_streams_take_as_long_as_on_an_exact_machine(
    stream: RandomStream, depths: tuple[int, int, int], issue_cycles: int, latency_ns: int
) -> None:
    """For random cores, groups, chips, messages and inputs, every run begins and ends as in exact fractions."""
    described = replace(_three_queues(depths, issue_cycles, latency_ns), cores=stream.layout)
    timing = simulate_cores(stream.cores, described, inputs=stream.inputs, depths=stream.depths)
    exact = ExactMachine(stream.cores, described, stream.inputs, stream.depths).simulate()
    assert exact is not None
    for core in timing.cores:
        for number, run in enumerate(core.runs):
            begin_ps, end_ps = exact[core.core, number]
            assert abs(run.begin_ps - begin_ps) <= stream.commands
            assert abs(run.end_ps - end_ps) <= stream.commands


def test_a_fence_waits_for_all_queues() -> None:
    """What follows a FENCE is issued when the VFU has ended, too."""
    timing = simulate(steps_of(load(3), compute_apart(9), Fence(), load(1)), _three_queues())
    assert timing.schedule.issued_ps[3] == 9_000


def test_the_key_may_be_missing_from_a_machine_file() -> None:
    """Without the key the units share a queue and the digest is that of before; with it both change."""
    edge = load_preset("edge")
    apart = parse_machine(f"vfu_queue_depth = 16\n{preset_text('edge')}", "edge")
    assert edge.queue_depths == {IO: edge.io_queue_depth, CP: edge.cp_queue_depth}
    assert apart.queue_depths == {**edge.queue_depths, VFU: 16}
    assert replace(apart, vfu_queue_depth=0).digest == edge.digest != apart.digest
    assert not any(load_preset(name).vfu_queue_depth for name in preset_names())
