"""Profiles of runtimes: disturbed samples, counters, names of nodes."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st
from onnx import helper

from device_agents.backends import Refused
from device_agents.backends.onnxruntime.node_times import WARMUP_RUNS, read_profile, stands_for
from device_agents.backends.openvino.openvino_backend import Counters
from device_agents.backends.runtime_profile import makespan_s, truth_of, undisturbed_mean
from device_agents.messages import Sample, TrueLayer


def test_disturbed_samples_do_not_count() -> None:
    """By hand: of 10 x 100, 10 x 102 and 15 x 4000 us, as on a core that others use, the mean is 101 us."""
    assert undisturbed_mean([100.0] * 10 + [102.0] * 10 + [4000.0] * 15, 1.0) == 101.0


def test_whole_units_average_out() -> None:
    """Times near the resolution are within its slack: 2, 3, 3 and 3 us are 2.75 us."""
    assert undisturbed_mean([2.0, 3.0, 3.0, 3.0], 1.0) == 2.75


@given(st.lists(st.floats(90, 110), min_size=1))
def test_quiet_samples_all_count(samples: list[float]) -> None:
    """Without disturbance it is the mean of all samples."""
    assert undisturbed_mean(samples, 1.0) == pytest.approx(sum(samples) / len(samples))


def test_layers_add_up_to_the_run_without_profiler() -> None:
    """Layers keep the profile's proportions and add up to the run; the overhead is unknown."""
    truth = truth_of([TrueLayer("a", ("n0",), 3.0), TrueLayer("b", (), 1.0)], 2.0)
    assert truth.overhead is None
    assert [layer.latency_s for layer in truth.layers] == [1.5, 0.5]
    assert sum(layer.latency_s for layer in truth.layers) == pytest.approx(truth.makespan_s)
    with pytest.raises(Refused, match="no time"):
        truth_of([TrueLayer("a", (), 0.0)], 2.0)


def test_cpu_time_is_used_if_reported() -> None:
    """The median over runs, of wall time only where the pool has several threads."""
    assert makespan_s([Sample(9, 1), Sample(9, 3), Sample(9, 2)]) == pytest.approx(2e-9)
    assert makespan_s([Sample(9, None)]) == pytest.approx(9e-9)


@dataclass(frozen=True)
class _Counter:
    node_name: str
    real_time: timedelta


@given(st.lists(st.integers(0, 500), min_size=3, max_size=40))
def test_single_runs_follow_from_means(taken_us: list[int]) -> None:
    """Differences of rounded means add up to the total, to within one microsecond a run."""
    done: list[int] = [taken_us[0]]
    rest = iter(taken_us[1:])

    def read() -> list[_Counter]:
        return [_Counter("a", timedelta(microseconds=sum(done) // len(done))), _Counter("idle", timedelta())]

    counters = Counters(lambda: done.append(next(rest)), read, 1)
    for _ in taken_us[1:]:
        counters.run()
    found = counters.per_run_us()
    assert "idle" not in found
    if "a" in found:
        assert len(found["a"]) == len(taken_us) - 1
        assert sum(found["a"]) == pytest.approx(sum(taken_us[1:]), abs=len(taken_us))


def _events(*nodes: tuple[str, int, list[int]]) -> bytes:
    events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_run", "dur": 1, "args": {}}]
    for name, index, times in nodes:
        events += [
            {"cat": "Node", "name": f"{name}_kernel_time", "dur": time, "args": {"node_index": str(index)}}
            for time in times
        ]
        events.append({"cat": "Node", "name": f"{name}_fence_before", "dur": 99, "args": {"node_index": str(index)}})
    return json.dumps(events).encode()


def test_profile_is_read_run_by_run() -> None:
    """Warm-up runs are left out, and the times of a node that a loop executes twice add up."""
    warm = [7] * WARMUP_RUNS
    content = _events(("a", 3, [*warm, 1, 2]), ("", 5, [*warm, *warm, 1, 2, 3, 4]))
    assert read_profile(content, 2) == [("a", [1.0, 2.0]), ("", [3.0, 7.0])]


@pytest.mark.parametrize("times", [[], [1, 2, 3]])
def test_profiles_of_other_runs_are_refused(times: list[int]) -> None:
    """A number of executions that does not fit the runs raises ValueError and is not averaged."""
    content = _events(("a", 0, [1] * (2 + WARMUP_RUNS)), ("b", 1, times))
    if times:
        with pytest.raises(ValueError, match="executed 3 times in 4 runs"):
            read_profile(content, 2)
    else:
        assert [name for name, _ in read_profile(content, 2)] == ["a"]


def _model(*nodes: tuple[str, str, str]) -> bytes:
    return _operators(*(("Op", *node) for node in nodes))


def _operators(*nodes: tuple[str, str, str, str]) -> bytes:
    protos = [helper.make_node(op, reads.split(), writes.split(), name) for op, name, reads, writes in nodes]
    return helper.make_model(helper.make_graph(protos, "g", [], [])).SerializeToString()


def test_executed_nodes_are_found_by_results_and_names() -> None:
    """Nodes are matched by kept and renamed results and by names; a reorder belongs to its first reader."""
    sent = _model(("n0", "x w", "t0"), ("n1", "t0", "t1"), ("n2", "t1", "t2"), ("n3", "t2", "t3"))
    executed = _model(
        ("r", "x", "reorder"),
        ("t0_nchwc", "reorder w", "t0_blocked"),
        ("n1/fused", "t0_blocked", "other"),
        ("r", "other", "plain"),
        ("anything", "plain", "t3"),
        ("r", "t3", "late"),
    )
    names = ["r", "t0_nchwc", "n1/fused", "r", "anything", "r", "unheard"]
    assert stands_for(sent, executed, names) == [("n0",), ("n0",), ("n1",), ("n3",), ("n3",), (), ()]


def test_a_reorder_that_writes_a_kept_result_belongs_to_its_reader() -> None:
    """The runtime names a reorder's result like the tensor that it converts; a Transpose of the model stays itself."""
    sent = _operators(
        ("Mul", "n0", "x w", "t0"),
        ("Add", "n1", "t0 w", "t1"),
        ("Transpose", "n2", "t1", "t2"),
        ("Mul", "n3", "t2", "t3"),
    )
    executed = _operators(
        ("Conv", "t0_nchwc", "x w", "t0_blocked"),
        ("ReorderOutput", "r0", "t0_blocked", "t0"),
        ("Add", "n1", "t0 w", "t1"),
        ("Transpose", "n2", "t1", "t2"),
        ("Conv", "t3_nchwc", "t2", "t3_blocked"),
        ("ReorderOutput", "r1", "t3_blocked", "t3"),
    )
    names = ["t0_nchwc", "r0", "n1", "n2", "t3_nchwc", "r1"]
    assert stands_for(sent, executed, names) == [("n0",), ("n1",), ("n1",), ("n2",), ("n3",), ("n3",)]
