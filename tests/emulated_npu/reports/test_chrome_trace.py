"""The Chrome trace: the rules of the Trace Event Format, and agreement with the timing."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from timed_programs import compute, compute_apart, convolve, load, machine, operand, sound_programs, steps_of, store

from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.reports.chrome_trace import LayerLabel, chrome_trace
from device_agents.emulated_npu.timing.occupancy import occupancy
from device_agents.emulated_npu.timing.simulation import simulate
from device_agents.emulated_npu.unit_commands import Command, Function, Item, Post, Queue, Space, Wait
from device_agents.emulated_npu.unit_settings import Activation, Settings

IO, CP = Queue.IO, Queue.CP
_LABELS = (
    LayerLabel("conv1", "CONVOLVE", ("conv1", "bn1", "relu1")),
    LayerLabel("add", "BINARY", ("add",)),
    LayerLabel("copied"),
    LayerLabel("pool", "POOL_MAX", ("pool",)),
)
_REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "args"},
}


def _trace(steps: list[IssuedStep], described: Machine | None = None) -> dict[str, Any]:
    described = described or machine()
    return chrome_trace(simulate(steps, described), described, _LABELS)


def _events(trace: dict[str, Any], phase: str, track: str | None = None) -> list[dict[str, Any]]:
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == phase and (track is None or names[event["tid"]] == track)
    ]


def _pipeline() -> list[IssuedStep]:
    items: list[Item] = []
    for _ in range(3):
        items += [load(1000, layer=0), Post(IO, 0), Wait(CP, 0), compute(400, layer=1), Post(CP, 1), Wait(IO, 1)]
        items += [store(300, layer=3)]
    return steps_of(*items)


def _check_rules(trace: dict[str, Any]) -> None:
    """Assert what the Trace Event Format requires of each phase, and of all events."""
    events = json.loads(json.dumps(trace))["traceEvents"]
    open_arrows: dict[int, float] = {}
    for event in events:
        assert _REQUIRED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0, "no slice is empty"
        if event["ph"] == "s":
            assert event["id"] not in open_arrows
            open_arrows[event["id"]] = event["ts"]
        elif event["ph"] == "f":
            assert open_arrows.pop(event["id"]) <= event["ts"]
    assert not open_arrows
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)


def _nested(slices: list[dict[str, Any]]) -> bool:
    """Return whether every two slices of a track are apart or nested, in whole nanoseconds."""
    spans = [(round(each["ts"] * 1000), round((each["ts"] + each["dur"]) * 1000)) for each in slices]
    enclosing: list[int] = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while enclosing and enclosing[-1] <= begin:
            enclosing.pop()
        if enclosing and end > enclosing[-1]:
            return False
        enclosing.append(end)
    return True


@given(
    steps=sound_programs(),
    depth=st.integers(1, 4),
    issue=st.integers(0, 2),
    clock_hz=st.sampled_from((10**9, 3 * 10**9, 700_000_000)),
)
def test_every_trace_keeps_the_rules_of_the_format(
    steps: list[IssuedStep], depth: int, issue: int, clock_hz: int
) -> None:
    """Every trace has required keys, matched arrows, ordered events, nested slices and consistent counters."""
    described = machine(io_queue_depth=depth, cp_queue_depth=depth, issue_cycles=issue, clock_hz=clock_hz)
    trace = _trace(steps, described)
    _check_rules(trace)
    slices = defaultdict(list)
    for event in _events(trace, "X"):
        slices[event["tid"]].append(event)
    assert all(_nested(each) for each in slices.values())
    counters = defaultdict(list)
    for event in _events(trace, "C"):
        counters[event["name"]].append(event)
    for series in counters.values():
        assert all(earlier["ts"] < later["ts"] for earlier, later in pairwise(series))
        assert all(value >= 0 for event in series for value in event["args"].values())
        assert all(value == 0 for value in series[-1]["args"].values())


def test_there_is_a_track_for_every_queue_and_unit() -> None:
    """Every track has a name, and every command is on the tracks of its queue and unit."""
    trace = _trace(steps_of(load(100), convolve((4, 4), 4, 4), compute(50, layer=1), store(10, layer=2)))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["layers", "CU", "IO queue", "CP queue", "MFU", "VFU"]
    operators = {
        track: [event["args"]["op_name"] for event in _events(trace, "X", track)]
        for track in ("IO queue", "MFU", "VFU")
    }
    assert operators == {"IO queue": ["LOAD", "STORE"], "MFU": ["CONVOLVE"], "VFU": ["MAP"]}


def test_nodes_look_like_those_of_onnx_runtime() -> None:
    """Events have the keys, category and name of ONNX Runtime's profiler; arguments are text there."""
    trace = _trace(steps_of(convolve((4, 4), 4, 4)))
    session, node = _events(trace, "X", "layers")
    assert (session["cat"], session["name"]) == ("Session", "model_run")
    assert node.keys() == {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
    assert (node["cat"], node["name"]) == ("Node", "conv1_kernel_time")
    assert node["args"]["op_name"] == "CONVOLVE"
    assert node["args"]["node_index"] == "0"
    assert node["args"]["nodes"] == "conv1, bn1, relu1"
    assert _events(trace, "X", "MFU")[0]["name"] == "conv1_kernel_time"


def test_the_events_of_nodes_sum_to_the_layers() -> None:
    """On the track of layers, the microseconds of each name are its latency, and they sum to the makespan."""
    timing = simulate(_pipeline(), machine())
    trace = chrome_trace(timing, machine(), _LABELS)
    sums: Counter[str] = Counter()
    for event in _events(trace, "X", "layers"):
        if event["cat"] == "Node":
            sums[event["name"]] += event["args"]["duration_ps"]
    expected = {f"{label.name}_kernel_time": ps for label, ps in zip(_LABELS, timing.layers, strict=True) if ps}
    assert sums == expected
    assert sum(sums.values()) == timing.makespan_ps == trace["otherData"]["makespan_ps"]


def test_an_arrow_leads_from_each_post_to_the_wait_that_it_releases() -> None:
    """Each of six waits has an arrow from inside the slice of the command before the POST to inside its own slice."""
    trace = _trace(_pipeline())
    starts = {event["id"]: event for event in _events(trace, "s")}
    ends = {event["id"]: event for event in _events(trace, "f")}
    assert len(starts) == 6
    assert sorted(event["name"] for event in _events(trace, "i")) == ["POST 0"] * 3 + ["POST 1"] * 3
    slices = _events(trace, "X")
    for number, start in starts.items():
        end = ends[number]
        assert (start["tid"], end["tid"]) in {(3, 4), (6, 3)}, "from the IO queue or the VFU"
        for arrow, kind in ((start, ("copied", "conv1", "add", "pool")), (end, ("WAIT",))):
            assert any(
                each["tid"] == arrow["tid"] and each["ts"] <= arrow["ts"] < each["ts"] + each["dur"]
                for each in slices
                if each["name"].startswith(kind)
            )


def test_every_arrow_is_inside_slices() -> None:
    """Queues that never wait have no arrows, and a POST without work before it has none."""
    idle = _trace(steps_of(load(100), Post(IO, 0), compute(5000, layer=1), Wait(CP, 0)))
    assert _events(idle, "s") == [] and [event["name"] for event in _events(idle, "i")] == ["POST 0"]
    early = _trace([IssuedStep(0, Wait(CP, 0), 0), IssuedStep(1, Post(IO, 0), 0)], machine(issue_cycles=500))
    assert _events(early, "s") == [] and [event["name"] for event in _events(early, "X", "CP queue")] == ["WAIT 0"]


def test_a_blocked_queue_shows_its_wait() -> None:
    """The slice of a WAIT lasts from reaching the head of its queue to its release."""
    waits = [each for each in _events(_trace(_pipeline()), "X", "CP queue") if each["name"] == "WAIT 0"]
    assert [(each["ts"], each["dur"]) for each in waits] == [(0, 1), (1.4, 1.3), (3.1, 1.3)]


def test_a_wait_does_not_begin_before_it_is_issued() -> None:
    """An empty queue is not shown as blocked."""
    trace = _trace(
        [IssuedStep(0, load(5000), 0), IssuedStep(1, Post(IO, 0), 0), IssuedStep(2, Wait(CP, 0), 0)],
        machine(issue_cycles=500),
    )
    waits = [(each["ts"], each["dur"]) for each in _events(trace, "X", "CP queue")]
    assert waits == [(1.5, 4.0)]


def test_the_trace_shows_why_the_control_unit_stalls() -> None:
    """With room for one entry the control unit stalls until the second load starts."""
    trace = _trace(steps_of(load(5000), load(5000), load(10)), machine(io_queue_depth=1, issue_cycles=100))
    track = [(each["name"], each["ts"], each["dur"]) for each in _events(trace, "X", "CU")]
    assert track == [("issue", 0, 0.2), ("queue full", 0.2, 4.9)]


def test_bandwidth_times_time_is_the_bytes() -> None:
    """The area under the DDR counter equals the bytes read and written."""
    trace = _trace(_pipeline())
    series = [event for event in _events(trace, "C") if event["name"] == "DDR GB/s"]
    area: Counter[str] = Counter()
    for event, following in pairwise(series):
        for side, rate in event["args"].items():
            area[side] += rate * (following["ts"] - event["ts"]) * 1000
    assert (area["read"], area["written"]) == pytest.approx((3000, 900))


def test_labels_may_be_names_alone() -> None:
    """A program file has only layer names; work of no layer is labelled as such."""
    timing = simulate(steps_of(load(1000, layer=0), load(1000, layer=-1)), machine())
    trace = chrome_trace(timing, machine(), [LayerLabel("first")])
    layers = [(event["name"], event["cat"]) for event in _events(trace, "X", "layers")][1:]
    assert layers == [("first_kernel_time", "Node"), ("no layer_kernel_time", "Control")]


# --- Occupancy --------------------------------------------------------------------------------------------------


def _levels(steps: list[IssuedStep], space: Space = Space.NB) -> list[tuple[int, int]]:
    times, live = occupancy(simulate(steps, machine()).schedule, space)
    return [(ps // 1000, count) for ps, count in zip(times.tolist(), live.tolist(), strict=True)]


def _copy(target: int, source: int, size: int) -> Command:
    where, whence = operand(Space.NB, size, address=target), operand(Space.NB, size, address=source)
    return Command(Function.MAP, where, whence, settings=Settings(activation=Activation.RELU))


def test_bytes_are_live_from_their_first_write_to_their_last_read() -> None:
    """Ten loaded bytes are copied, and the copy is stored: the copy is live from its write."""
    items = (load(10), Post(IO, 0), Wait(CP, 0), _copy(100, 0, 10), Post(CP, 1), Wait(IO, 1), store(10, address=100))
    assert _levels(steps_of(*items)) == [(0, 10), (10, 20), (20, 10), (30, 0)]


def test_an_address_is_free_between_two_uses() -> None:
    """A range is not live between its last read and the next write."""
    items = (load(10), Post(IO, 0), Wait(CP, 0), _copy(100, 0, 10), compute(30, address=100))
    again = (load(30, address=500), load(10), Post(IO, 0), Wait(CP, 0), _copy(100, 0, 10))
    levels = dict(_levels(steps_of(*items, *again)))
    assert levels[20] == 10  # the first tenant is over; what it was copied to is still worked on
    assert levels[40] == 20  # the second is being loaded beside it


def test_parts_written_one_by_one_are_counted_as_they_come() -> None:
    """Two loads write neighbouring halves, which are read as one: each half counts from its load."""
    items = (load(10), load(10, address=10), Post(IO, 0), Wait(CP, 0), compute(20))
    assert _levels(steps_of(*items))[:2] == [(0, 10), (10, 20)]


def test_work_in_place_goes_on_with_what_is_there() -> None:
    """Ten bytes that are loaded, updated twice in place and stored stay ten live bytes."""
    items = (load(10), Post(IO, 0), Wait(CP, 0), compute(10), compute(10), Post(CP, 1), Wait(IO, 1), store(10))
    steps = steps_of(*items)
    times, live = occupancy(simulate(steps, machine(cp_queue_depth=8)).schedule, Space.NB)
    assert set(live[:-1].tolist()) == {10}
    assert (int(times[0]), int(times[-1]), int(live[-1])) == (0, 40_000, 0)


def test_what_is_never_read_is_never_live() -> None:
    """A write without a reader and a read of unwritten bytes do not count."""
    assert _levels(steps_of(load(10))) == _levels(steps_of(store(10))) == []


@given(steps=sound_programs(min_items=4), where=st.data())
def test_live_bytes_stay_within_what_is_addressed(steps: list[IssuedStep], where: st.DataObject) -> None:
    """Live bytes are never negative, never exceed the touched bytes, and end at zero."""
    moved = []
    for step in steps:
        item = step.item
        if isinstance(item, Command):
            size, address = item.target.descriptor.elements, where.draw(st.integers(0, 20))
            make = {Function.LOAD: load, Function.STORE: store, Function.MAP: compute}[item.function]
            item = make(size, address=address)
        moved.append(step._replace(item=item))
    live = occupancy(simulate(moved, machine()).schedule, Space.NB).live_bytes
    touched = {
        byte
        for step in moved
        if isinstance(step.item, Command)
        for view in (step.item.target, *step.item.sources)
        if view.descriptor.space is Space.NB
        for byte in range(view.address, view.address + view.descriptor.elements)
    }
    assert np.all(live >= 0)
    assert np.all(live <= len(touched))
    assert not len(live) or live[-1] == 0


def test_a_queue_of_the_vfu_has_its_track() -> None:
    """Its WAITs lie on the track of the queue, its commands on that of the unit; other machines have no such track."""
    described = machine(vfu_queue_depth=4)
    items = (convolve((2, 2), 4, 4), Post(CP, 4), Wait(Queue.VFU, 4), compute_apart(6, layer=1))
    trace = _trace(steps_of(*items), described)
    _check_rules(trace)
    assert [(event["name"], event["dur"]) for event in _events(trace, "X", "VFU queue")] == [("WAIT 4", 0.004)]
    assert [event["dur"] for event in _events(trace, "X", "VFU")] == [0.006]
    assert [event["args"]["name"] for event in _events(trace, "M") if event["name"] == "thread_name"].count(
        "VFU queue"
    ) == 1
    assert "VFU queue" not in json.dumps(_trace(steps_of(compute(6))))


@given(sound_programs(queues=3))
def test_traces_of_three_queues_keep_the_rules(steps: list[IssuedStep]) -> None:
    """Whatever the queues do, slices of a track nest and arrows have two ends."""
    _check_rules(_trace(steps, machine(vfu_queue_depth=2, issue_cycles=1)))
