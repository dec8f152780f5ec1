"""The division of time among layers and waits, and the counters of every layer."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from timed_programs import compute, convolve, load, machine, mfu, operand, sound_programs, steps_of, store

from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.reports.statistics import LayerRow, layer_rows
from device_agents.emulated_npu.timing.attribution import (
    Activity,
    Segment,
    WaitTime,
    binding_path,
    layer_of,
    layer_times,
)
from device_agents.emulated_npu.timing.simulation import marginal_ps, simulate
from device_agents.emulated_npu.unit_commands import Command, Fence, Function, Item, Post, Queue, Space, Wait

IO, CP = Queue.IO, Queue.CP
_MACHINES = st.builds(
    lambda io, cp, issue: machine(io_queue_depth=io, cp_queue_depth=cp, issue_cycles=issue),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
)


def _pipeline(rounds: int) -> list[IssuedStep]:
    """Return rounds in which layer 0 loads, layer 1 computes and layer 2 stores."""
    items: list[Item] = []
    for _ in range(rounds):
        items += [load(10, layer=0), Post(IO, 0, layer=0), Wait(CP, 0, layer=1), compute(4, layer=1)]
        items += [Post(CP, 1, layer=1), Wait(IO, 1, layer=2), store(3, layer=2)]
    return steps_of(*items)


def test_layers_own_the_path_that_bound_the_run() -> None:
    """In a strict sequence every layer owns the time of its commands."""
    timing = simulate(_pipeline(1), machine())
    assert timing.layers == (10_000, 4_000, 3_000)
    assert timing.no_layer_ps == 0


def test_hidden_work_owns_nothing() -> None:
    """A layer whose commands run beside longer ones of another layer is not on the binding path."""
    timing = simulate(steps_of(load(30, layer=0), compute(10, layer=1)), machine())
    assert timing.layers == (30_000, 0)


def test_issue_time_belongs_to_the_issued_command() -> None:
    """CONFIG and CONTROL before a command count for its layer, HALT for none."""
    steps = [IssuedStep(0, compute(2, layer=1), 3), IssuedStep(1, compute(1, layer=0), 1), IssuedStep(2, None, 8)]
    timing = simulate(steps, machine(issue_cycles=1))
    assert timing.layers == (2_000, 4_000)
    assert timing.no_layer_ps == 8_000


def test_time_before_a_fence_belongs_to_what_it_waits_for() -> None:
    """A FENCE owns only its issue."""
    steps = steps_of(load(10, layer=0), compute(25, layer=1), Fence(layer=2), load(1, layer=3))
    assert simulate(steps, machine()).layers == (0, 25_000, 0, 1_000)
    slow_issue = simulate(steps, machine(issue_cycles=1))
    assert slow_issue.layers == (1_000, 26_000, 0, 2_000)


def test_time_before_a_full_queue_belongs_to_the_commands_that_fill_it() -> None:
    """The delay of a compute that is issued late because loads fill their queue is attributed to these loads."""
    steps = steps_of(*[load(10, layer=0)] * 3, compute(31, layer=1))
    timing = simulate(steps, machine(io_queue_depth=1))
    assert timing.layers == (10_000, 31_000)
    assert timing.waits == (WaitTime(3, 1, 0, 0, 10_000),)


def test_waits_of_a_loop_are_one_entry() -> None:
    """Waits for the same instruction in every round are added up."""
    steps = [IssuedStep(step.pc % 7, step.item, 0) for step in _pipeline(5)]
    timing = simulate(steps, machine())
    assert timing.waiting_queue is IO
    assert timing.waits == (WaitTime(5, 2, 3, 1, 20_000),)


def test_the_end_of_a_run_is_wait_time_too() -> None:
    """If the queue with the larger sum finishes first, the rest is attributed to the commands that still run."""
    steps = steps_of(load(10, layer=0), Post(IO, 0), Wait(CP, 0), compute(4, layer=1))
    assert simulate(steps, machine()).waits == (WaitTime(-1, -1, 3, 1, 4_000),)


@given(steps=sound_programs(), described=_MACHINES)
def test_every_picosecond_has_one_owner(steps: list[IssuedStep], described: Machine) -> None:
    """The binding path covers the run from its end to zero without gap or overlap."""
    timing = simulate(steps, described)
    path = [*binding_path(timing.schedule)]
    assert all(segment.begin_ps < segment.end_ps for segment in path)
    assert all(later.begin_ps == earlier.end_ps for later, earlier in pairwise(path))
    assert not path or (path[0].end_ps, path[-1].begin_ps) == (timing.makespan_ps, 0)
    assert sum(timing.layers) + timing.no_layer_ps == timing.makespan_ps


@given(steps=sound_programs(), described=_MACHINES)
def test_the_path_is_made_of_what_ran(steps: list[IssuedStep], described: Machine) -> None:
    """A segment of a queue lies within the service of one of its commands; the control unit has the rest."""
    schedule = simulate(steps, described).schedule
    for step, activity, begin, end in binding_path(schedule):
        if activity is Activity.CONTROL:
            assert end == schedule.issued_ps[step]
            continue
        command = schedule.steps[step].item
        assert isinstance(command, Command)
        assert command.queue == int(activity)
        assert (begin, end) == (schedule.served_ps[step], schedule.finished_ps[step])


@given(steps=sound_programs(), described=_MACHINES)
def test_waits_sum_up(steps: list[IssuedStep], described: Machine) -> None:
    """The attributed waits are the idle time of the queue with the larger sum, to the picosecond."""
    timing = simulate(steps, described)
    assert all(wait.ps > 0 for wait in timing.waits)
    assert sum(wait.ps for wait in timing.waits) == timing.wait_ps
    assert timing.wait_ps == timing.makespan_ps - max(timing.io_ps, timing.cp_ps)


@given(steps=sound_programs(), described=_MACHINES, layer=st.integers(0, 3))
def test_a_layer_saves_at_most_what_its_commands_took(steps: list[IssuedStep], described: Machine, layer: int) -> None:
    """0 <= marginal latency <= busy time of the layer."""
    timing = simulate(steps, described)
    saved = marginal_ps(steps, described, layer)
    busy = sum(
        ps
        for step, ps in zip(steps, timing.schedule.durations_ps, strict=True)
        if step.item is not None and step.item.layer == layer
    )
    assert 0 <= saved <= busy


def test_the_marginal_latency_of_hidden_work_is_nothing() -> None:
    """Removing a compute beside a longer load has no effect; removing the load saves the difference."""
    steps = steps_of(load(30, layer=0), compute(10, layer=1))
    assert (marginal_ps(steps, machine(), 0), marginal_ps(steps, machine(), 1)) == (20_000, 0)


# --- Counters of layers -----------------------------------------------------------------------------------------


def _rows(
    steps: list[IssuedStep], described: Machine, layers: int, useful_macs: dict[int, int] | None = None
) -> tuple[LayerRow, ...]:
    names = [f"layer{number}" for number in range(layers)]
    return layer_rows(simulate(steps, described), described, names, useful_macs=useful_macs)


def test_a_row_counts_what_its_layer_did() -> None:
    """Busy cycles, multiply-adds, bytes and utilisation of a convolution between a load and a store."""
    described = machine(mfu=mfu(4, 4, startup=2))
    steps = steps_of(
        load(36), Post(IO, 0), Wait(CP, 0), convolve((4, 4), 4, 8, (3, 3)), Post(CP, 1), Wait(IO, 1), store(64)
    )
    row, total = _rows(steps, described, 1, useful_macs={0: 4000})
    assert (row.cycles, row.span_cycles) == (390, 390)
    assert (row.io_busy_cycles, row.mfu_busy_cycles, row.vfu_busy_cycles) == (100, 290, 0)
    assert (row.macs, row.useful_macs) == (16 * 9 * 4 * 8, 4000)
    assert row.mfu_utilisation == pytest.approx(16 * 9 * 32 / (390 * 16))
    assert row.mfu_busy == pytest.approx(290 / 390)
    assert (row.ddr_read_bytes, row.ddr_written_bytes, row.llc_read_bytes) == (36, 64, 0)
    assert row.bound == "compute"
    assert replace(total, layer=0, name="layer0") == row


@pytest.mark.parametrize(
    ("steps", "bound"),
    [
        (steps_of(load(70), Post(IO, 0), Wait(CP, 0), compute(30)), "io"),
        (steps_of(load(30), Post(IO, 0), Wait(CP, 0), compute(70)), "compute"),
        (steps_of(load(50), Post(IO, 0), Wait(CP, 0), compute(50)), "wait"),
        (steps_of(convolve((1, 1), 4, 4)), "fill"),
        ([IssuedStep(0, compute(1), 90)], "wait"),
    ],
)
def test_what_bounds_a_layer(steps: list[IssuedStep], bound: str) -> None:
    """A layer is bound by transfers, arithmetic or start-up, or else by waiting of units and control unit."""
    described = machine(mfu=mfu(4, 4, startup=20), issue_cycles=1)
    assert _rows(steps, described, 1)[0].bound == bound


def test_a_hidden_layer_is_judged_by_its_busy_time() -> None:
    """A layer without cycles of its own still has a row with its bytes."""
    hidden = _rows(steps_of(load(30, layer=0), compute(10, layer=1)), machine(), 2)[1]
    assert (hidden.cycles, hidden.vfu_busy_cycles, hidden.bound) == (0, 10, "compute")


def test_a_layer_without_commands_has_an_empty_row() -> None:
    """Names beyond the layers of the program are listed with zeros."""
    empty = _rows(steps_of(load(3)), machine(), 2)[1]
    assert (empty.cycles, empty.span_cycles, empty.commands, empty.mfu_utilisation) == (0, 0, 0, None)


def test_external_memories_are_counted_apart() -> None:
    """Bytes of DDR and of the last-level cache are separate."""
    back = Command(Function.STORE, operand(Space.LLC, 7), operand(Space.NB, 7), layer=0)
    row = _rows(steps_of(load(5), load(6, space=Space.LLC), back), machine(), 1)[0]
    counts = (row.ddr_read_bytes, row.ddr_written_bytes, row.llc_read_bytes, row.llc_written_bytes)
    assert counts == (5, 0, 6, 7)


@given(steps=sound_programs(), described=_MACHINES)
def test_rows_sum_to_the_total(steps: list[IssuedStep], described: Machine) -> None:
    """Cycles and bytes of the layers, with those of no layer, sum to the network's; shares are at most one."""
    timing = simulate(steps, described)
    *rows, total = layer_rows(timing, described, ["a", "b", "c", "d"])
    assert total.cycles == timing.cycles(timing.makespan_ps)
    assert sum(row.cycles for row in rows) == timing.cycles(sum(timing.layers))
    without = layer_rows(simulate([], described), described, ["a"])[-1]
    assert without.cycles == without.io_busy == 0
    for row in (*rows, total):
        assert max(row.io_busy, row.mfu_busy, row.vfu_busy) <= 1
        assert row.mfu_utilisation is None or row.mfu_utilisation <= 1


def test_layer_times_are_those_of_the_path() -> None:
    """A layer has the time of its segments, and the path of three steps is as expected."""
    timing = simulate(_pipeline(1), machine())
    assert layer_times(timing.schedule)[1] == 4_000
    path = [*binding_path(timing.schedule)]
    steps = timing.schedule.steps
    assert {one.activity for one in path if layer_of(steps[one.step]) == 1} == {Activity.CP}
    assert path[1] == Segment(3, Activity.CP, 10_000, 14_000)
