"""Time of many cores: one core alone equals `schedule`, groups form a pipeline, SEND and RECEIVE join cores."""

import pytest
from core_streams import FOUR_CORES, ONE_CHIP, notify, receive, send
from hypothesis import strategies as st
from networks_on_npu import builtin_model, with_varied_weights
from step_times import check_alone, step_times
from timed_programs import compute, load, machine, steps_of, store

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import BudgetExceeded, Deadlock
from device_agents.emulated_npu.isa.sequencer import IssuedStep, sequence
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.machine.parts import Cores
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.core_process import InputRun
from device_agents.emulated_npu.timing.many_cores.stream_timing import StreamTiming, simulate_cores
from device_agents.emulated_npu.unit_commands import Fence, Item, Post, Queue, Wait

_DEPTHS = st.tuples(st.integers(1, 5), st.integers(1, 5))
_ALONE = {0: 1}


@pytest.mark.parametrize("queue", [Queue.IO, Queue.CP])
def test_what_is_issued_late_is_served_late(queue: Queue) -> None:
    """A command issued long after the WAIT before it was released is served at its issue."""
    other = Queue(1 - queue)
    items = (Wait(queue, 0), load(5) if other is Queue.IO else compute(5), Post(other, 0), compute(1), load(1))
    steps = [IssuedStep(pc, item, 10 * (pc > 2)) for pc, item in enumerate(items)]
    check_alone(steps, machine(issue_cycles=1))


@pytest.mark.parametrize("name", ["dscnn", pytest.param("squeezenet", marks=pytest.mark.long)])
def test_a_network_alone_has_the_times_of_the_single_core_engine(name: str) -> None:
    """The program of a whole network has the same times."""
    compiled = compile_model(with_varied_weights(builtin_model(name))[0], find_machine("edge"))
    check_alone(list(sequence(compiled.program.code)), compiled.machine)


# --- Messages ---------------------------------------------------------------------------------------------------


def _run(*programs: list[Item], layout: Cores = FOUR_CORES, inputs: int = 1, depth: int = 2) -> StreamTiming:
    """Return the timing of programs, each on a core and group of its own."""
    cores = [CoreSteps(number, number, steps_of(*items)) for number, items in enumerate(programs)]
    return simulate_cores(cores, machine(cores=layout), inputs=inputs, depths={each.group: depth for each in cores})


def test_a_message_arrives_a_link_latency_after_its_payload() -> None:
    """10 bytes take 10 ns of DDR (5 of the link) and 3 of link latency: the load after RECEIVE ends at 14."""
    sender, receiver = _run([send(10, 1)], [receive(0), load(1)]).cores
    assert (sender.runs[0].end_ps, sender.runs[0].io_ps) == (10_000, 10_000)
    assert receiver.runs[0] == InputRun(0, 14_000, 1_000, 13_000, 0, 0)


def test_a_message_to_another_chip_passes_three_links() -> None:
    """10 bytes take 20 ns of the chip link; the message reaches core 2 after another 3 + 7 + 3 ns."""
    timing = _run([send(10, 2)], [], [receive(0)])
    assert [core.runs[0].end_ps for core in timing.cores] == [20_000, 0, 33_000]


def test_a_message_without_payload_takes_only_the_latency() -> None:
    """A notice within a group takes only the link latency and occupies neither queue."""
    items = {0: steps_of(store(10), notify(1), store(5)), 1: steps_of(receive(0), load(5))}
    cores = [CoreSteps(core, 7, steps) for core, steps in items.items()]
    timing = simulate_cores(cores, machine(cores=ONE_CHIP), inputs=1, depths={7: 1})
    # Stored at 10, heard of at 13. The store of 5 has moved 3 by then and shares with the load: 13 + 2 x 2 = 17. The
    # load has moved 2 by then: 17 + 3 = 20.
    assert [core.runs[0].end_ps for core in timing.cores] == [17_000, 20_000]
    assert timing.cores[1].runs[0].exchange_ps == 13_000


def test_messages_are_taken_in_the_order_of_sending() -> None:
    """The second RECEIVE gets the second message, even if it was sent long before."""
    timing = _run([send(1, 1), send(30, 1)], [receive(0), compute(1), receive(0), load(1)])
    assert timing.cores[1].runs[0].end_ps == 35_000


def test_a_message_waits_for_its_input() -> None:
    """A message left over in a run is not taken in the next: there, too, the first message is the one of 10 bytes."""
    alone = _run([send(10, 1), notify(1)], [receive(0)], inputs=2, depth=2)
    assert [run.end_ps for run in alone.cores[1].runs] == [13_000, 23_000]


def test_the_ring_has_as_many_slots_as_its_depth() -> None:
    """Before a slow group, a SEND waits for the end of the last input with one slot, of the one before with two."""
    fast: list[Item] = [send(10, 1)]
    slow: list[Item] = [receive(0), Post(Queue.IO, 0), Wait(Queue.CP, 0), compute(100)]
    ends_ps = {
        depth: [run.end_ps for run in _run(fast, slow, inputs=3, depth=depth).cores[0].runs] for depth in (1, 2, 3)
    }
    # Input 0 is with the slow group at 13, which ends it at 113: with one slot input 1 is sent from then to 123 and
    # ended at 226, with two input 2 is sent from 113 on.
    assert ends_ps == {1: [10_000, 123_000, 236_000], 2: [10_000, 20_000, 123_000], 3: [10_000, 20_000, 30_000]}
    blocked = _run(fast, slow, inputs=3, depth=1).cores[0].runs
    assert [run.blocked_ps for run in blocked] == [0, 103_000, 103_000]


def test_a_group_takes_the_next_input_together() -> None:
    """Cores of 5 and 20 ns begin every 20 in one group; in groups of their own, every 5 and every 20."""
    steps = [steps_of(compute(5)), steps_of(compute(20))]
    for groups, begins_ps in (((0, 0), (40_000, 40_000)), ((0, 1), (10_000, 40_000))):
        cores = [CoreSteps(core, group, steps[core]) for core, group in enumerate(groups)]
        timing = simulate_cores(cores, machine(cores=ONE_CHIP), inputs=3, depths=dict.fromkeys(groups, 1))
        assert tuple(core.runs[2].begin_ps for core in timing.cores) == begins_ps


def test_groups_that_do_not_depend_on_each_other_keep_together() -> None:
    """Two groups have at most six inputs under way: a fast one begins its seventh when the slow one ends its first."""
    steps = [steps_of(compute(1)), steps_of(compute(100))]
    cores = [CoreSteps(core, core, steps[core]) for core in range(2)]
    timing = simulate_cores(cores, machine(cores=ONE_CHIP), inputs=9, depths={0: 1, 1: 1})
    begins_ps = [run.begin_ps for run in timing.cores[0].runs]
    assert begins_ps == [*(1_000 * number for number in range(6)), 100_000, 200_000, 300_000]
    assert [run.end_ps for run in timing.cores[1].runs] == [100_000 * number for number in range(1, 10)]


def test_semaphores_start_afresh_with_every_input() -> None:
    """A unit left over does not satisfy the next input's WAIT."""
    items: list[Item] = [Wait(Queue.CP, 0), compute(1), load(10), Post(Queue.IO, 0, 2)]
    assert [run.end_ps for run in _run(items, inputs=3).cores[0].runs] == [11_000, 22_000, 33_000]


def test_an_input_lasts_from_the_first_group_to_the_last_core() -> None:
    """Inputs begin with the group that receives nothing, at 0, 10 and 20, and end with the other's runs."""
    timing = _run([send(10, 1)], [receive(0), load(1)], inputs=3, depth=3)
    assert timing.starts_ps == tuple(run.begin_ps for run in timing.cores[0].runs)
    assert timing.ends_ps == tuple(run.end_ps for run in timing.cores[1].runs)
    assert (timing.inputs, timing.makespan_ps) == (3, timing.ends_ps[2])


def test_the_steps_of_one_input() -> None:
    """Issue, service and end of the second input's steps are those of the first, one input later."""
    cores = [CoreSteps(0, 0, steps_of(load(5), compute(3), Fence(), load(2)))]
    first, second = (step_times(cores, machine(), inputs=2, depths={0: 1}, run=run)[0] for run in (0, 1))
    assert (first.begin_ps, list(first.served_ps)) == (0, [0, 0, 5_000, 5_000])
    assert (second.begin_ps, list(second.finished_ps)) == (7_000, [12_000, 10_000, 12_000, 14_000])


# --- Errors -----------------------------------------------------------------------------------------------------


def test_a_receive_without_a_send_is_a_deadlock() -> None:
    """The error names every waiting core, its instruction, and the awaited message."""
    with pytest.raises(Deadlock, match=r"core 1: instruction 2 waits for a message of core 0 for input 0"):
        _run([send(1, 1)], [receive(0), load(1), receive(0)], inputs=2)


def test_cores_that_wait_for_each_other_are_a_deadlock() -> None:
    """Each receives before it sends; both are named."""
    with pytest.raises(Deadlock, match=r"core [01]: instruction 0 .*; core [01]: instruction 0 "):
        _run([receive(1), send(1, 1)], [receive(0), send(1, 0)])


def test_a_core_that_locks_itself_is_named() -> None:
    """The error describes its heads as for a single core."""
    with pytest.raises(Deadlock, match=r"core 1: IO queue: instruction 0 waits for semaphore 3 to be 1, it is 0"):
        _run([load(1)], [Wait(Queue.IO, 3), load(1)])


def test_the_budget_covers_the_whole_stream() -> None:
    """Three inputs of 10 ns exceed 25; the error names core and instruction."""
    cores = [CoreSteps(0, 0, steps_of(compute(4), load(10)))]
    with pytest.raises(BudgetExceeded, match="core 0: instruction 1 ends beyond the budget of 25000 ps"):
        simulate_cores(cores, machine(), inputs=3, depths={0: 1}, limit_ps=25_000)
    assert simulate_cores(cores, machine(), inputs=3, depths={0: 1}, limit_ps=30_000).makespan_ps == 30_000
