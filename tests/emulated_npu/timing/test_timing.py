"""The time of step lists: the rules of the queues, the formula of S2.6, and invariants of every program."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st
from timed_programs import (
    CYCLE_PS,
    compute,
    convolve,
    load,
    machine,
    programs,
    sound_programs,
    steps_of,
    store,
)

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, Deadlock, ExecutionFault
from device_agents.emulated_npu.isa.encoding import encode
from device_agents.emulated_npu.isa.instructions import Opcode, control
from device_agents.emulated_npu.isa.program import Footprint, Program
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.machine import Machine, Memory
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.simulation import Timing, simulate, simulate_program
from device_agents.emulated_npu.unit_commands import Fence, Post, Queue, Wait

IO, CP = Queue.IO, Queue.CP
_LOAD_COMPUTE_STORE = (load(10), Post(IO, 0), Wait(CP, 0), compute(10), Post(CP, 1), Wait(IO, 1), store(10))
_DEPTHS = st.tuples(st.integers(1, 5), st.integers(1, 5))


def _cycles(steps: list[IssuedStep], described: Machine | None = None) -> float:
    return simulate(steps, described or machine()).makespan_ps / CYCLE_PS


def _outcome(steps: list[IssuedStep], described: Machine) -> Timing | None:
    try:
        return simulate(steps, described)
    except Deadlock:
        return None


# --- The rules --------------------------------------------------------------------------------------------------


def test_load_compute_store_in_sequence_is_thirty() -> None:
    """In S2.6's example both the formula and the run take 30, a third of it waiting."""
    steps = steps_of(*_LOAD_COMPUTE_STORE)
    assert formula(steps, machine()) == Formula(io_ps=20_000, cp_ps=10_000, wait_ps=10_000, total_ps=30_000)
    timing = simulate(steps, machine())
    assert (timing.makespan_ps, timing.io_ps, timing.cp_ps, timing.wait_ps) == (30_000, 20_000, 10_000, 10_000)
    assert [(wait.pc, wait.due_pc, wait.ps) for wait in timing.waits] == [(5, 3, 10_000)]


def test_queues_run_in_parallel() -> None:
    """Without synchronisation the makespan is the longer queue."""
    assert _cycles(steps_of(load(10), compute(25), load(10))) == 25


def test_both_units_share_one_queue() -> None:
    """The CP queue serves MFU and VFU in order, and their times are reported separately."""
    timing = simulate(steps_of(convolve((2, 2), 4, 4), compute(6)), machine())
    assert (timing.mfu_ps, timing.vfu_ps, timing.makespan_ps) == (4_000, 6_000, 10_000)


def test_every_instruction_costs_its_issue() -> None:
    """Three CONFIG instructions, the command and HALT take two cycles each; HALT ends after the command."""
    steps = [IssuedStep(3, compute(1), 3), IssuedStep(4, None, 1)]
    timing = simulate(steps, machine(issue_cycles=2))
    assert timing.makespan_ps == 10_000
    assert timing.control_ps == 9_000


def test_an_entry_leaves_its_queue_when_its_service_starts() -> None:
    """With room for one entry, the third load is issued when the second starts, and later steps after it."""
    steps = steps_of(load(10), load(10), load(10), compute(5))
    timing = simulate(steps, machine(io_queue_depth=1))
    assert list(timing.schedule.issued_ps) == [0, 0, 10_000, 10_000]
    assert timing.makespan_ps == 30_000


def test_a_blocked_wait_occupies_its_queue() -> None:
    """A blocked WAIT in a queue of one entry keeps out the command behind it."""
    steps = steps_of(load(10), Post(IO, 0), Wait(CP, 0), compute(1))
    assert simulate(steps, machine(cp_queue_depth=1)).schedule.issued_ps[3] == 10_000


def test_a_fence_waits_for_both_queues() -> None:
    """Steps after a FENCE are issued when both queues have drained."""
    timing = simulate(steps_of(load(10), compute(25), Fence(), load(1)), machine())
    assert timing.schedule.issued_ps[2:] == [25_000, 25_000]
    assert timing.makespan_ps == 26_000


def test_a_post_may_come_after_its_wait_in_program_order() -> None:
    """A later POST satisfies a WAIT as long as the queue has room."""
    steps = steps_of(Wait(CP, 0), compute(5), load(10), Post(IO, 0))
    assert _cycles(steps) == 15
    assert formula(steps, machine()).total_ps == 15_000


def test_a_semaphore_counts() -> None:
    """Three units from two POSTs release a WAIT for three, and the rest serves the next WAIT."""
    steps = steps_of(load(10), Post(IO, 0, 2), load(10), Post(IO, 0, 2), Wait(CP, 0, 3), compute(1), Wait(CP, 0, 1))
    timing = simulate(steps, machine())
    assert timing.schedule.served_ps[4] == 20_000
    assert timing.schedule.released_by[4] == timing.schedule.released_by[6] == 3


def test_a_semaphore_that_both_queues_want_is_served_in_order_of_time() -> None:
    """The queue that reached its WAIT first takes the unit, although it was issued last."""
    steps = steps_of(compute(2), Post(CP, 0), compute(5), Wait(CP, 0), load(4), Wait(IO, 0), load(1), Post(IO, 0))
    timing = simulate(steps, machine(io_queue_depth=8, cp_queue_depth=8))
    assert timing.schedule.released_by[5] == 1
    assert timing.schedule.released_by[3] == 7
    assert timing.schedule.served_ps[3] == 7_000


def test_units_are_taken_in_the_order_of_posting() -> None:
    """A WAIT whose unit was posted long ago depends on that POST, not on a later one."""
    steps = steps_of(load(1), Post(IO, 0), load(1), Post(IO, 0), compute(9), Wait(CP, 0), Wait(CP, 0))
    released_by = simulate(steps, machine(cp_queue_depth=8)).schedule.released_by
    assert (released_by[5], released_by[6]) == (1, 3)


def test_at_the_same_instant_the_io_queue_takes_first() -> None:
    """If two queues reach their WAIT together, IO takes the only unit, and CP the one that IO posts afterwards."""
    items = (Post(CP, 0), compute(4), Wait(CP, 0), compute(1), load(4), Wait(IO, 0), load(10), Post(IO, 0))
    timing = simulate(steps_of(*items), machine(io_queue_depth=8, cp_queue_depth=8))
    assert timing.schedule.served_ps[5] == 4_000
    assert timing.schedule.served_ps[2] == 14_000


def test_entries_after_a_wait_are_issued_as_room_becomes_free() -> None:
    """An entry behind an unreleased WAIT is issued when its place is free, here after ten cycles."""
    items = (compute(10), compute(10), Wait(CP, 0), compute(1), load(50), Post(IO, 0))
    described = machine(cp_queue_depth=2)
    assert simulate(steps_of(*items), described).makespan_ps == 61_000
    assert formula(steps_of(*items), described).total_ps == 61_000


def test_a_program_is_timed_from_its_code() -> None:
    """A loop of three rounds with POST and WAIT is decoded, unrolled and divided among its layers."""
    code = encode(
        [
            control(Opcode.SET, 1, 3),
            control(Opcode.POST, IO, 0, 1),
            control(Opcode.WAIT, CP, 0, 1),
            control(Opcode.ADD_IMMEDIATE, 1, 1, -1),
            control(Opcode.BRANCH_NOT_ZERO, 1, 1),
            control(Opcode.HALT),
        ]
    )
    program = Program("plain", code, ("a", "b"), (0, 0, 1, 1, 1, -1), (), (), Footprint(0, 0, 0, 0, 0))
    timing = simulate_program(program, machine(issue_cycles=2))
    assert timing.makespan_ps == 2_000 * (1 + 3 * 4 + 1)
    assert timing.layers == (2_000 * (2 + 3 + 3), 2_000 * 3)
    assert timing.no_layer_ps == 2_000 * 3
    with pytest.raises(BudgetExceeded):
        simulate(sequence(program.code), machine(issue_cycles=2), cycle_budget=20)


# --- Errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [simulate, formula])
def test_a_deadlock_names_what_stands_at_both_heads(run: object) -> None:
    """Each queue waits for a POST behind the other's WAIT; the error names both heads."""
    steps = steps_of(Wait(IO, 1), Post(IO, 0), Wait(CP, 0), Post(CP, 1))
    with pytest.raises(
        Deadlock,
        match=r"IO queue: instruction 0 waits for semaphore 1.*CP queue: instruction 2 waits for semaphore 0",
    ):
        run(steps, machine())  # type: ignore[operator]


def test_a_wait_that_fills_its_queue_before_its_post_is_issued_is_a_deadlock() -> None:
    """The control unit stalls before the POST; the error says where."""
    steps = steps_of(Wait(CP, 0), compute(1), compute(1), load(1), Post(IO, 0))
    with pytest.raises(Deadlock, match="instruction 2 waits for room"):
        simulate(steps, machine(cp_queue_depth=2))
    with pytest.raises(Deadlock):
        formula(steps, machine(cp_queue_depth=2))
    assert _cycles(steps, machine(cp_queue_depth=3)) == 3


def test_a_run_beyond_its_budget_names_the_instruction() -> None:
    """Thirty cycles are within a budget of thirty and beyond one of twenty-nine."""
    steps = steps_of(*_LOAD_COMPUTE_STORE)
    assert simulate(steps, machine(), cycle_budget=30).makespan_ps == 30_000
    with pytest.raises(BudgetExceeded, match="instruction 6"):
        simulate(steps, machine(), cycle_budget=29)


def test_an_endless_program_ends_at_its_budget() -> None:
    """Endless steps are collected only up to the budget."""

    def endless() -> Iterator[IssuedStep]:
        while True:
            yield IssuedStep(0, compute(1), 1)

    with pytest.raises(BudgetExceeded, match="instruction 0"):
        simulate(endless(), machine(issue_cycles=1), cycle_budget=1000)


def test_an_invalid_command_is_named() -> None:
    """The error for wrong operands names the instruction."""
    wrong = replace(convolve((2, 2), 4, 4), second=None)
    with pytest.raises(ExecutionFault, match="instruction 1: CONVOLVE"):
        simulate(steps_of(load(1), wrong), machine())


# --- What holds for every program -------------------------------------------------------------------------------


@given(steps=sound_programs(min_items=6), depths=_DEPTHS, issue=st.integers(0, 2), data=st.data())
def test_faster_hardware_is_never_slower(
    steps: list[IssuedStep], depths: tuple[int, int], issue: int, data: st.DataObject
) -> None:
    """The same steps take no longer with more bandwidth and a faster clock, by run and by formula."""
    bandwidths = sorted(data.draw(st.tuples(st.floats(1e8, 1e10), st.floats(1e8, 1e10))))
    clocks = sorted(data.draw(st.tuples(st.integers(10**8, 10**10), st.integers(10**8, 10**10))))
    slow = machine(io_queue_depth=depths[0], cp_queue_depth=depths[1], issue_cycles=issue, clock_hz=clocks[0])
    slow = replace(slow, ddr=Memory(1 << 30, bandwidths[0], 3.3, 4))
    fast = replace(slow, ddr=Memory(1 << 30, bandwidths[1], 3.3, 4))
    fastest = replace(fast, clock_hz=clocks[1])
    spans = [simulate(steps, each).makespan_ps for each in (slow, fast, fastest)]
    assert spans == sorted(spans, reverse=True)
    totals = [formula(steps, each).total_ps for each in (slow, fast, fastest)]
    assert totals == sorted(totals, reverse=True)


@given(steps=sound_programs(min_items=2), more=st.integers(1, 4))
def test_deeper_queues_are_never_slower(steps: list[IssuedStep], more: int) -> None:
    """Deeper queues let the control unit run ahead and delay nothing."""
    shallow = machine(io_queue_depth=1, cp_queue_depth=1, issue_cycles=1)
    deep = replace(shallow, io_queue_depth=1 + more, cp_queue_depth=1 + more)
    assert simulate(steps, deep).makespan_ps <= simulate(steps, shallow).makespan_ps


@given(steps=programs(shared_semaphores=True), depths=_DEPTHS)
def test_no_queue_overtakes_itself(steps: list[IssuedStep], depths: tuple[int, int]) -> None:
    """Entries are served in order, one at a time, after their issue; a WAIT not before its POST."""
    timing = _outcome(steps, machine(io_queue_depth=depths[0], cp_queue_depth=depths[1], issue_cycles=1))
    assume(timing is not None)
    assert timing is not None
    schedule = timing.schedule
    for entries in schedule.entries:
        free = 0
        for index in entries:
            assert schedule.served_ps[index] >= max(free, schedule.issued_ps[index])
            free = schedule.finished_ps[index]
            if isinstance(steps[index].item, Wait):
                assert schedule.served_ps[schedule.released_by[index]] <= schedule.served_ps[index]


def test_a_program_without_items_takes_no_time() -> None:
    """HALT alone takes its issue time; an empty program takes none."""
    assert simulate([], machine(issue_cycles=1)).makespan_ps == 0
    assert simulate([IssuedStep(0, None, 1)], machine(issue_cycles=1)).makespan_ps == CYCLE_PS
    assert formula([], machine()) == Formula(0, 0, 0, 0)
