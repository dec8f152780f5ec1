"""Cores that share a memory or a link: equal parts, no lost work, and no effect on users of other resources."""

from dataclasses import replace
from heapq import heappop, heappush

import pytest
from core_streams import FOUR_CORES, ONE_CHIP, RandomStream, forward, notify, receive, send, streams
from hypothesis import given, settings, strategies as st
from timed_programs import compute, load, machine, operand, steps_of, store

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.machine.parts import Cores, Interconnect
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.transfer_cost import Demand, demands_across
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import StreamTiming, simulate_cores
from device_agents.emulated_npu.timing.resources import NEVER, Resource, SharedResource, transfer_key
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Post, Queue, Space, Wait

_SHARED = machine(cores=ONE_CHIP)
_LATE = Memory(1 << 30, 1e9, 5.0, 1)  # a DDR that answers after 5 ns


def _run(*programs: list[Item], described: Machine = _SHARED, inputs: int = 1) -> StreamTiming:
    """Return the timing of programs, each on a core and group of its own."""
    cores = [CoreSteps(number, number, steps_of(*items)) for number, items in enumerate(programs)]
    return simulate_cores(cores, described, inputs=inputs, depths={core.group: 2 for core in cores})


def _ends_ps(timing: StreamTiming) -> list[int]:
    return [core.runs[-1].end_ps for core in timing.cores]


def _work_ps(timing: StreamTiming) -> dict[tuple[int, Resource], tuple[int, int]]:
    return {(each.chip, each.resource): (each.work_ps, each.moved_bytes) for each in timing.resources}


# --- A resource by itself ---------------------------------------------------------------------------------------


def _served(transfers: list[tuple[int, int]]) -> list[int]:
    """Return when each transfer of a start and a work ends on one resource, asked only when one is due."""
    resource, ends_ps = SharedResource(), [0] * len(transfers)
    events = [(begin_ps, 1, ticket) for ticket, (begin_ps, _) in enumerate(transfers)]
    events.sort()
    while events:
        now_ps, is_begin, ticket = heappop(events)
        if is_begin:
            due_ps = resource.begin(now_ps, transfer_key(transfers[ticket][1], ticket))
        elif resource.due_ps != now_ps:
            continue
        else:
            for ended in resource.ended(now_ps):
                ends_ps[ended] = now_ps
            due_ps = resource.due_ps
        if due_ps != NEVER:
            heappush(events, (due_ps, 0, 0))
    return ends_ps


def test_equal_parts_by_hand() -> None:
    """A work of 100 begins at 0, one of 30 at 40: from then on each gets half; they end at 130 and 100."""
    assert _served([(0, 100), (40, 30)]) == [130, 100]


def test_equal_works_end_together() -> None:
    """Three works of 60 end together at 180; a later one of 10 has the resource to itself."""
    assert _served([(0, 60), (0, 60), (0, 60), (180, 10)]) == [180, 180, 180, 190]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 300)), min_size=1, max_size=12))
@settings(max_examples=100)
def test_no_work_is_lost_and_none_waits(transfers: list[tuple[int, int]]) -> None:
    """All work ends when one server in order of arrival would end, and no transfer ends earlier than alone.

    Rounding up may lose one picosecond per transfer.
    """
    ends_ps = _served(transfers)
    free_ps = 0
    for begin_ps, work_ps in sorted(transfers):
        free_ps = max(free_ps, begin_ps) + work_ps
    assert free_ps <= max(ends_ps) <= free_ps + len(transfers)
    for (begin_ps, work_ps), end_ps in zip(transfers, ends_ps, strict=True):
        assert begin_ps + work_ps <= end_ps <= begin_ps + sum(work for _, work in transfers) + len(transfers)


# --- Cores that share -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8])
def test_cores_that_only_load_take_as_many_times_as_long(count: int) -> None:
    """n cores with the same loads take exactly n times as long as one, because the DDR is the bottleneck."""
    items: list[Item] = [load(7), load(100), load(1)]
    assert _ends_ps(_run(*[items] * count)) == [count * 108_000] * count


def test_users_of_different_memories_do_not_slow_each_other() -> None:
    """A core on DDR and one on LLC end as each alone: 100 bytes at 1 and at 4 bytes/ns."""
    assert _ends_ps(_run([load(100)], [load(100, space=Space.LLC)])) == [100_000, 25_000]


def test_cores_of_different_chips_do_not_share_memory() -> None:
    """Cores 0 and 1 share the DDR of their chip, core 2 has that of another chip."""
    timing = _run([load(100)], [load(100)], [load(100)], described=machine(cores=FOUR_CORES))
    assert _ends_ps(timing) == [200_000, 200_000, 100_000]


def test_latency_takes_no_bandwidth() -> None:
    """A load that starts 10 ns later waits out its latency of 5 ns while the other load moves data."""
    later: list[Item] = [compute(10), Post(Queue.CP, 1), Wait(Queue.IO, 1), load(10)]
    assert _ends_ps(_run([load(10)], later, described=replace(_SHARED, ddr=_LATE))) == [15_000, 25_000]


def test_a_command_ends_with_its_slowest_transfer() -> None:
    """From DDR to LLC 40 bytes take 40 ns of DDR and 10 of LLC; a second reader of the DDR makes it 80."""
    both = Command(Function.LOAD, operand(Space.LLC, 40), operand(Space.DDR, 40))
    assert _ends_ps(_run([both])) == [40_000]
    assert _ends_ps(_run([both], [load(40)])) == [80_000, 80_000]


def test_computing_does_not_slow_other_cores() -> None:
    """Cores that only compute take as long as one."""
    assert _ends_ps(_run(*[[compute(50)]] * 4)) == [50_000] * 4


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5),
    st.sampled_from([1.25, 1.5, 2.0, 3.7]),
    st.integers(0, 9),
)
@settings(max_examples=75)
def test_a_faster_memory_makes_no_load_slower(sizes: list[list[int]], times: float, latency_ns: int) -> None:
    """Programs that only load from one memory end no later with more bandwidth, within a picosecond of rounding."""
    slow = replace(_SHARED, ddr=Memory(1 << 30, 1e9, latency_ns, 1))
    fast = replace(_SHARED, ddr=Memory(1 << 30, times * 1e9, latency_ns, 1))
    programs: list[list[Item]] = [[load(size) for size in each] for each in sizes]
    before, after = (_run(*programs, described=each) for each in (slow, fast))
    assert after.makespan_ps <= before.makespan_ps + sum(map(len, sizes))


@given(streams())
def test_busy_time_equals_the_demanded_work(stream: RandomStream) -> None:
    """Busy time equals the demanded work, within a picosecond per transfer."""
    described = machine(cores=stream.layout)
    timing = simulate_cores(stream.cores, described, inputs=stream.inputs, depths=stream.depths)
    most_ps = 5 * stream.commands
    for resource in timing.resources:
        assert resource.work_ps <= resource.busy_ps <= min(resource.work_ps + most_ps, timing.makespan_ps)
    costs, written = CostModel(described), sum(each.moved_bytes for each in timing.resources)
    commands = [step.item for each in stream.cores for step in each.steps if isinstance(step.item, Command)]
    alone_ps = sum(costs.duration_ps(each) for each in commands if each.queue is Queue.CP)
    assert sum(core.mfu_ps + core.vfu_ps for core in timing.cores) == alone_ps
    within = [each for each in commands if stream.layout is ONE_CHIP]
    if within:
        asked = sum(demand.moved_bytes for each in within for demand in costs.demands(each))
        assert written == stream.inputs * asked


# --- What commands ask for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Space.DDR, Space.LLC])
@pytest.mark.parametrize("make", [lambda space: load(50, space=space), lambda space: send(50, 1, space)])
def test_demands_alone_take_the_duration(space: Space, make: object) -> None:
    """The largest latency plus work of a command is its duration."""
    assert callable(make)
    costs, command = CostModel(replace(_SHARED, ddr=_LATE)), make(space)
    assert costs.duration_ps(command) == max(each.latency_ps + each.work_ps for each in costs.demands(command))


def test_demands_of_a_send() -> None:
    """50 bytes take 25 ns of the link at 2 bytes/ns and 50 ns of DDR after its latency; no payload takes nothing."""
    costs = CostModel(replace(_SHARED, ddr=_LATE))
    link, ddr = Demand(Resource.LINK, 0, 25_000, 50), Demand(Resource.DDR, 5_000, 50_000, 50)
    assert set(costs.demands(send(50, 1))) == {link, ddr}
    assert set(costs.demands(forward(50, 1, Space.LLC))) == {link, ddr, Demand(Resource.LLC, 0, 12_500, 50)}
    assert costs.demands(notify(1)) == costs.demands(receive(1)) == ()


def test_demands_of_a_send_to_another_chip() -> None:
    """It demands link, chip link and the memory it reads here; link and the memory it writes there."""
    described = machine(cores=FOUR_CORES)
    own, other = demands_across(described, forward(50, 2, Space.DDR))
    link, ddr = Demand(Resource.LINK, 0, 25_000, 50), Demand(Resource.DDR, 0, 50_000, 50)
    assert set(own) == {ddr, link, Demand(Resource.CHIP_LINK, 0, 100_000, 50)}
    assert set(other) == {ddr, link}


def test_a_send_is_charged_to_both_chips() -> None:
    """Core 0 of chip 0 sends 50 bytes from NB to core 2 of chip 1, which stores 10 bytes meanwhile."""
    described = machine(cores=FOUR_CORES)
    cores = [CoreSteps(0, 0, steps_of(send(50, 2))), CoreSteps(2, 1, steps_of(store(10), receive(0)))]
    timing = simulate_cores(cores, described, inputs=2, depths={0: 1, 1: 1})
    assert _work_ps(timing) == {
        (0, Resource.LINK): (50_000, 100),
        (0, Resource.CHIP_LINK): (200_000, 100),
        (1, Resource.DDR): (120_000, 120),
        (1, Resource.LINK): (50_000, 100),
    }


def test_a_machine_without_a_link_cannot_send() -> None:
    """The error names core, instruction and the missing link."""
    described = machine(cores=Cores(2, 1, Interconnect(0.0, 0.0), Interconnect(0.0, 0.0)))
    with pytest.raises(ExecutionFault, match="core 0: instruction 1: a command sends over a link"):
        _run([load(1), send(5, 1)], [receive(0)], described=described)
