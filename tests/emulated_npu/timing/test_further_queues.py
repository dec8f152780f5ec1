"""Queues of the VFU and of the last-level cache: both units, and both memories, work at the same time."""

from dataclasses import replace

import pytest
from timed_programs import (
    cached_load,
    compute,
    compute_apart,
    convolve,
    load,
    machine,
    operand,
    steps_of,
)

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, load_preset, parse_machine, preset_names, preset_text
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.simulation import simulate
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Post, Queue, Space, Wait

IO, CP, VFU, LLC = Queue
_ALONE = {0: 1}


def _depthwise() -> Command:
    """Return a depthwise convolution of 2 x 2 pixels with four channels."""
    views = (operand(Space.NB, 1, 2, 2, 4, 1), operand(Space.NB, 1, 2, 2, 4, 1), operand(Space.NB, 1, 1, 1, 4, 1))
    return Command(Function.DEPTHWISE, *views)


def _with_queues(*depths: int) -> Machine:
    """Return a machine with queues of these depths: IO, CP, that of the VFU, and that of the last-level cache."""
    names = ("io_queue_depth", "cp_queue_depth", "vfu_queue_depth", "llc_queue_depth")
    return machine(**dict(zip(names, depths, strict=False)))


def _three_queues() -> Machine:
    return _with_queues(4, 4, 4)


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
    assert simulate(steps, _with_queues(*depths)).makespan_ps == simulate(steps, machine()).makespan_ps == 13_000


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


def test_a_fence_waits_for_all_queues() -> None:
    """What follows a FENCE is issued when the VFU has ended, too."""
    timing = simulate(steps_of(load(3), compute_apart(9), Fence(), load(1)), _three_queues())
    assert timing.schedule.issued_ps[3] == 9_000


def test_a_machine_has_the_queues_of_its_file() -> None:
    """Without their keys the units share a queue, and so do all transfers; no preset has them."""
    edge = load_preset("edge")
    apart = parse_machine(f"vfu_queue_depth = 16\nllc_queue_depth = 8\n{preset_text('edge')}", "edge")
    assert edge.queue_depths == {IO: edge.io_queue_depth, CP: edge.cp_queue_depth}
    assert apart.queue_depths == {**edge.queue_depths, VFU: 16, LLC: 8}
    assert not any(load_preset(name).vfu_queue_depth for name in preset_names())


def test_both_memories_work_at_the_same_time() -> None:
    """Nine bytes of DDR pass during eight of the cache, which is four times as fast."""
    timing = simulate(steps_of(load(9), cached_load(8)), _with_queues(4, 4, 4, 4))
    assert (timing.io_ps, timing.llc_queue_ps, timing.transfer_ps, timing.makespan_ps) == (9_000, 2_000, 9_000, 9_000)
    assert (timing.wait_ps, timing.waiting_queue) == (0, IO)


def test_a_machine_with_one_queue_of_transfers_runs_the_program_in_order() -> None:
    """Items of the LLC queue enter the IO queue, where every POST comes before its WAIT."""
    steps = steps_of(load(9), Post(IO, 6), Wait(LLC, 6), cached_load(8), Post(LLC, 9), Wait(CP, 9), compute(1))
    timing = simulate(steps, machine())
    assert (timing.io_ps, timing.llc_queue_ps, timing.makespan_ps) == (11_000, 0, 12_000)
    assert simulate(steps, _with_queues(4, 4, 0, 4)).makespan_ps == 12_000


@pytest.mark.parametrize("run", [simulate, formula])
def test_the_queue_moves_data_of_the_cache_alone(run: object) -> None:
    """A transfer of DDR in the LLC queue is refused, with the memory and a way out."""
    with pytest.raises(ExecutionFault, match="a command of the LLC queue uses DDR"):
        run(steps_of(replace(load(3), own_queue=True)), _with_queues(4, 4, 4, 4))  # type: ignore[operator]
