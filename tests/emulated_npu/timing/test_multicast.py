"""Memories that multicast: bytes that several cores of a group ask for pass once."""

from dataclasses import replace

import pytest
from core_streams import ONE_CHIP
from hypothesis import given, settings, strategies as st
from small_models import imported, model, node, values
from timed_programs import compute, load, machine, steps_of

from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import StreamTiming, simulate_cores
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.unit_commands import Item, Post, Queue, Wait
from harness.npu.split.split_study import layer_ps

_PLAIN = machine(cores=ONE_CHIP)
_MULTICAST = replace(_PLAIN, cores=replace(ONE_CHIP, multicast=True))


def _run(*programs: list[Item], described: Machine = _MULTICAST, groups: int = 1) -> StreamTiming:
    """Return the timing of programs on a core each, dealt out to groups."""
    cores = [CoreSteps(number, number % groups, steps_of(*items)) for number, items in enumerate(programs)]
    return simulate_cores(cores, described, inputs=1, depths=dict.fromkeys(range(groups), 1))


def _ends_ns(timing: StreamTiming) -> list[float]:
    return [core.runs[-1].end_ps / 1000 for core in timing.cores]


def _moved_bytes(timing: StreamTiming) -> int:
    return sum(each.moved_bytes for each in timing.resources if each.resource is Resource.DDR)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_equal_loads_at_the_same_time_pass_once(count: int) -> None:
    """Cores with the same loads take as long as one of them, and the memory moves the bytes once."""
    timing = _run(*[[load(7), load(100, address=64), load(1)]] * count)
    assert _ends_ns(timing) == [108] * count
    assert _moved_bytes(timing) == 108
    (ddr,) = timing.resources
    assert ddr.work_ps == ddr.busy_ps == 108_000


def test_a_late_core_ends_with_the_read_that_is_on_its_way() -> None:
    """A core that asks at 40 for bytes that pass from 0 to 100 has them at 100; at 100 it needs a read of its own."""
    timing = _run([load(100)], [compute(40), Post(Queue.CP, 1), Wait(Queue.IO, 1), load(100)])
    assert _ends_ns(timing) == [100, 100]
    assert _moved_bytes(timing) == 100
    timing = _run([load(100)], [compute(100), Post(Queue.CP, 1), Wait(Queue.IO, 1), load(100)])
    assert _ends_ns(timing) == [100, 200]
    assert _moved_bytes(timing) == 200


def test_cores_of_other_groups_and_other_bytes_have_their_own_reads() -> None:
    """The same address in the memory of another group, and overlapping bytes that are not the same, pass again."""
    assert _ends_ns(_run([load(100)], [load(100)], groups=2)) == [200, 200]
    assert _ends_ns(_run([load(100)], [load(100, address=1)])) == [200, 200]
    assert _ends_ns(_run([load(100)], [load(100)], described=_PLAIN)) == [200, 200]


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5))
@settings(max_examples=100)
def test_loads_end_no_later_for_multicast(sizes: list[list[int]]) -> None:
    """The last of cores that only load ends no later with multicast; the bytes lie between once and once for each.

    The memory has no latency: cores that wait for it together could end up with more to do at the end.
    """
    programs: list[list[Item]] = [[load(size, address=100 * size) for size in each] for each in sizes]
    own, shared = (_run(*programs, described=each) for each in (_PLAIN, _MULTICAST))
    rounding_ns = len(sizes) * max(map(len, sizes)) / 1000
    assert max(_ends_ns(shared)) <= max(_ends_ns(own)) + rounding_ns
    assert max(map(sum, sizes)) - 1 <= _moved_bytes(shared) <= _moved_bytes(own) == sum(map(sum, sizes))
    for ddr in shared.resources:
        assert abs(ddr.work_ps - ddr.busy_ps) <= 2 * sum(map(len, sizes))


def _edge(multicast: bool) -> Machine:
    edge = find_machine("edge")
    return replace(edge, cores=replace(edge.cores, multicast=multicast))


def test_a_split_by_rows_fetches_its_weights_once() -> None:
    """By hand: 1 x 1 of 1,024 by 1,024 channels are 4 MiB of weights, 246 us at 17.07 GB/s, on 4 cores as on one.

    Without multicast the four cores take four times that; the prediction knows both. The memory has no latency here,
    because the latency of a load for all cores hides behind no other.
    """
    x = {"x": values((1, 1024, 4, 4))}
    graph = imported(model([node("Conv", "x w", "y")], x, {"w": values((1024, 1024, 1, 1), 1)}), x, 1e-3)
    for multicast, times in ((True, 1), (False, 4)):
        edge = _edge(multicast)
        edge = replace(edge, ddr=replace(edge.ddr, latency_ns=0.0))
        (choice,) = choose_splits(graph, [edge] * 4)
        candidate = choice.of_kind("rows")
        assert candidate is not None
        weights_ps = times * (4 << 20) / edge.ddr.bytes_per_s * 1e12
        ran = layer_ps(choice.layer, candidate.split, graph, edge, 4)
        assert weights_ps < ran < 1.15 * weights_ps
        assert abs(candidate.predicted_ps / ran - 1) < 0.01
