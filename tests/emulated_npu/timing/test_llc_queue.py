"""A queue for the last-level cache: its transfers pass beside those of DDR, and all engines agree on the times."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from timed_programs import (
    cached_load,
    compute,
    load,
    machine,
    steps_of,
)

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, load_preset, parse_machine, preset_text
from device_agents.emulated_npu.timing.formula import formula
from device_agents.emulated_npu.timing.simulation import simulate
from device_agents.emulated_npu.unit_commands import Post, Queue, Wait

IO, CP, _, LLC = Queue
_DEPTHS = st.tuples(*[st.integers(1, 5)] * 4)


def _four_queues(depths: tuple[int, ...] = (4, 4, 4, 4), **changes: int) -> Machine:
    names = ("io_queue_depth", "cp_queue_depth", "vfu_queue_depth", "llc_queue_depth")
    return machine(**dict(zip(names, depths, strict=True)), **changes)


def test_both_memories_work_at_the_same_time() -> None:
    """Nine bytes of DDR pass during eight of the cache, which is four times as fast."""
    timing = simulate(steps_of(load(9), cached_load(8)), _four_queues())
    assert (timing.io_ps, timing.llc_queue_ps, timing.transfer_ps, timing.makespan_ps) == (9_000, 2_000, 9_000, 9_000)
    assert (timing.wait_ps, timing.waiting_queue) == (0, IO)


def test_a_machine_with_one_queue_of_transfers_runs_the_program_in_order() -> None:
    """Items of the LLC queue enter the IO queue, where every POST comes before its WAIT."""
    steps = steps_of(load(9), Post(IO, 6), Wait(LLC, 6), cached_load(8), Post(LLC, 9), Wait(CP, 9), compute(1))
    timing = simulate(steps, machine())
    assert (timing.io_ps, timing.llc_queue_ps, timing.makespan_ps) == (11_000, 0, 12_000)
    assert simulate(steps, _four_queues((4, 4, 0, 4))).makespan_ps == 12_000


@pytest.mark.parametrize("run", [simulate, formula])
def test_the_queue_moves_data_of_the_cache_alone(run: object) -> None:
    """A transfer of DDR in the LLC queue is refused, with the memory and a way out."""
    with pytest.raises(ExecutionFault, match="a command of the LLC queue uses DDR"):
        run(steps_of(replace(load(3), own_queue=True)), _four_queues())  # type: ignore[operator]


def test_the_key_may_be_missing_from_a_machine_file() -> None:
    """Without the key all transfers share a queue and the digest is that of before; with it both change."""
    edge = load_preset("edge")
    apart = parse_machine(f"llc_queue_depth = 16\n{preset_text('edge')}", "edge")
    assert apart.queue_depths == {**edge.queue_depths, LLC: 16}
    assert replace(apart, llc_queue_depth=0).digest == edge.digest != apart.digest
