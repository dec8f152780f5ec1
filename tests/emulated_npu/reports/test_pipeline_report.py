"""The report of a pipeline of groups: latency, throughput, load, and bottleneck (S5.7)."""

from dataclasses import replace

import pytest
from core_streams import FOUR_CORES, ONE_CHIP, receive, send
from timed_programs import compute, convolve, load, machine, steps_of

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.reports.pipeline_report import PipelineReport, pipeline_report
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import Item, Post, Queue, Wait

_INPUTS = 8


def _report(
    *programs: list[Item], described: Machine | None = None, single_core_ps: int = 100_000, inputs: int = _INPUTS
) -> PipelineReport:
    """Return the report of programs, each on a core and group of its own, with rings of two slots."""
    cores = [CoreSteps(number, number, steps_of(*items)) for number, items in enumerate(programs)]
    depths, on = {core.group: 2 for core in cores}, described or machine(cores=ONE_CHIP)
    stream, alone = (simulate_cores(cores, on, inputs=count, depths=depths) for count in (inputs, 1))
    return pipeline_report(stream, alone, single_core_ps)


def _stage(peer: int, *commands: Item) -> list[Item]:
    """Return a RECEIVE from `peer`, then other items."""
    return [receive(peer), Post(Queue.IO, 0), Wait(Queue.CP, 0), *commands]


def _then_send(peer: int) -> list[Item]:
    return [Post(Queue.CP, 1), Wait(Queue.IO, 1), send(1, peer)]


def test_a_pipeline_by_hand() -> None:
    """40 ns of computing, 1 of sending, 3 of link latency and 80 of computing: 124 for one input, then one every 80."""
    report = _report([compute(40), *_then_send(1)], _stage(0, compute(80)))
    assert (report.latency_ps, report.interval_ps) == (124_000, 80_000)
    assert report.inputs_per_s == pytest.approx(12.5e6)
    assert report.speedup == pytest.approx(100 / 80)
    assert report.efficiency == pytest.approx(100 / 80 / 2)
    assert [group.load for group in report.groups] == pytest.approx([0.5, 1.0])
    assert report.imbalance == pytest.approx(1.0 / 0.75)
    assert (report.slowest.group, report.bound_by, report.bound) == (1, "vfu", "group 1 by vfu, 100% busy")


def test_the_share_of_a_resource_is_that_of_an_input() -> None:
    """Of every 80 ns the DDR works 1 ns for the byte that is sent, and the link half of that."""
    report = _report([compute(40), *_then_send(1)], _stage(0, compute(80)))
    shares = {each.resource: (each.utilisation, each.moved_bytes) for each in report.resources}
    assert shares == {Resource.DDR: (pytest.approx(1 / 80), 1), Resource.LINK: (pytest.approx(0.5 / 80), 1)}


def test_a_shared_memory_bounds_cores_that_load() -> None:
    """Three cores that each load for 50 ns keep the DDR busy for all of 150 ns; the bound is sharing."""
    report = _report([load(50)], [load(50)], [load(50)])
    assert (report.interval_ps, report.bound_by, report.bound) == (150_000, "sharing", "DDR of chip 0 at 100%")
    assert report.imbalance == pytest.approx(1.0)


def test_latency_does_not_count_as_sharing() -> None:
    """A core that waits for the latency of its loads is bound by IO; the DDR is busy a tenth of the time."""
    plain = machine(cores=ONE_CHIP)
    report = _report([load(1), load(1)], described=replace(plain, ddr=replace(plain.ddr, latency_ns=9.0)))
    assert (report.bound_by, report.interval_ps) == ("io", 20_000)
    assert report.resources[0].utilisation == pytest.approx(0.1)


def test_the_matrix_unit_is_distinguished_from_the_vector_unit() -> None:
    """A group with 20 cycles of products and 10 of vectors is bound by the matrix unit."""
    assert _report([convolve((4, 5), 4, 4), compute(10)]).bound_by == "mfu"


def test_queues_that_take_turns_are_bound_by_waiting() -> None:
    """If a group loads, then computes, equally long and never at once, each works half of the interval."""
    report = _report([load(50), Post(Queue.IO, 0), Wait(Queue.CP, 0), compute(50)])
    assert (report.bound_by, report.bound) == ("waiting", "group 0 by waiting, 50% busy")


def test_a_group_that_only_waits_for_others_is_not_the_slowest() -> None:
    """The runs of the last group are longest because it waits for the first, but its own time is short."""
    report = _report([compute(90), *_then_send(1)], _stage(0, compute(1)))
    assert report.slowest.group == 0
    assert report.groups[1].own_ps == pytest.approx(1_000)


def test_a_single_input_is_a_pipeline_of_one() -> None:
    """With a single input the interval is the latency."""
    report = _report([compute(40), *_then_send(1)], _stage(0, compute(80)), inputs=1)
    assert report.interval_ps == report.latency_ps == 124_000


def test_nothing_to_do_is_balanced() -> None:
    """Idle cores have no load, and nothing is divided by zero."""
    report = _report([], [], described=machine(cores=FOUR_CORES))
    assert (report.imbalance, report.bound_by, report.resources) == (1.0, "waiting", ())
