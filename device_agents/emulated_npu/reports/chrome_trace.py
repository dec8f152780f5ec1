"""A timed run as Chrome trace: the Trace Event Format in JSON, which Perfetto opens.

The track `layers` shows the binding path, so its events sum to the makespan. Events have the names of ONNX Runtime's
profiler (`<node>_kernel_time`, `op_name` in the arguments). Only those of `layers` have its category `Node`, so tools
that sum nodes count nothing twice. A POST is an instant. Arrows lead from the command before a POST to the WAIT that
took its unit, if that had to wait. Times are microseconds in steps of a nanosecond, Perfetto's resolution; `args` holds
the exact picoseconds. What begins and ends in one nanosecond has no slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.attribution import binding_path, layer_of
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.occupancy import occupancy
from device_agents.emulated_npu.timing.simulation import Timing
from device_agents.emulated_npu.timing.single_core import NOTHING
from device_agents.emulated_npu.unit_commands import Command, Fence, Post, Queue, Space, Wait

Event = dict[str, Any]

_PID = 1
_LAYERS, _CU, _IO, _CP, _MFU, _VFU, _VFU_QUEUE, _LLC_QUEUE = range(1, 9)
_TRACKS = {_LAYERS: "layers", _CU: "CU", _IO: "IO queue", _CP: "CP queue", _MFU: "MFU", _VFU: "VFU"}
_OWN_TRACKS = {_VFU_QUEUE: "VFU queue", _LLC_QUEUE: "LLC queue"}
_QUEUE_TRACK = {Queue.IO: _IO, Queue.CP: _CP, Queue.VFU: _VFU_QUEUE, Queue.LLC: _LLC_QUEUE}
_ORDER_AT_A_TIME = {"M": 0, "X": 1, "i": 2, "s": 3, "f": 4, "C": 5}
_NS = 1000


@dataclass(frozen=True)
class LayerLabel:
    """The label of a hardware layer: its name, its operator, and its ONNX nodes."""

    name: str
    operator: str = ""
    nodes: tuple[str, ...] = ()


def chrome_trace(
    timing: Timing, machine: Machine, labels: Sequence[LayerLabel], *, costs: CostModel | None = None
) -> dict[str, Any]:
    """Return the run as an object of the Trace Event Format, for `json.dump`; events are in order of time."""
    costs = costs or CostModel(machine)
    found = [
        *_layer_events(timing, labels),
        *_control_events(timing),
        *_command_events(timing, labels, costs),
        *_synchronisation_events(timing, costs),
        *_bandwidth_counters(timing, machine, costs),
        *_occupancy_counters(timing),
    ]
    events = [event for event in found if event["ph"] != "X" or event["dur"] > 0]
    # An arrow binds to the slice that is open at its place in the file, so slices come first. A longer slice comes
    # before those that it encloses.
    events.sort(key=lambda event: (event["ts"], _ORDER_AT_A_TIME[event["ph"]], -event.get("dur", 0)))
    return {
        "traceEvents": [*_metadata(machine), *events],
        "displayTimeUnit": "ns",
        "otherData": {"machine": machine.name, "clock_hz": machine.clock_hz, "makespan_ps": timing.makespan_ps},
    }


def _us(ps: int) -> float:
    """Return whole nanoseconds in microseconds; Perfetto multiplies them by 1,000, rounds down, and gets them back."""
    ns = ps // 1000
    us = ns / 1000
    return us if int(us * 1000) == ns else math.nextafter(us, math.inf)


def _event(phase: str, track: int, name: str, ts: float, **more: Any) -> Event:
    return {"ph": phase, "name": name, "pid": _PID, "tid": track, "ts": ts, **more}


def _slice(track: int, name: str, category: str, span_ps: tuple[int, int], args: Event) -> Event:
    begin, end = span_ps
    # Both ends are rounded down, so that adjoining slices neither overlap nor leave a gap.
    duration = _us((end // 1000 - begin // 1000) * 1000)
    args = {**args, "start_ps": begin, "duration_ps": end - begin}
    return _event("X", track, name, _us(begin), cat=category, dur=duration, args=args)


def _metadata(machine: Machine) -> Iterator[Event]:
    yield _event("M", _LAYERS, "process_name", 0, args={"name": f"emulated NPU {machine.name}"})
    present = {_QUEUE_TRACK[queue] for queue in machine.queue_depths}
    own = {track: name for track, name in _OWN_TRACKS.items() if track in present}
    for track, name in (_TRACKS | own).items():
        yield _event("M", track, "thread_name", 0, args={"name": name})
        yield _event("M", track, "thread_sort_index", 0, args={"sort_index": track})


def _label(labels: Sequence[LayerLabel], layer: int) -> LayerLabel:
    return labels[layer] if 0 <= layer < len(labels) else LayerLabel("no layer")


def _node_args(label: LayerLabel, layer: int, operator: str) -> Event:
    """Return the arguments that ONNX Runtime's profiler gives a node, if they exist here; all are text there."""
    args = {"op_name": operator, "provider": "EmulatedNpu", "node_index": str(layer), "layer": label.name}
    return args if not label.nodes else {**args, "nodes": ", ".join(label.nodes)}


def _layer_events(timing: Timing, labels: Sequence[LayerLabel]) -> Iterator[Event]:
    yield _slice(_LAYERS, "model_run", "Session", (0, timing.makespan_ps), {})
    steps, path = timing.schedule.steps, [*binding_path(timing.schedule)][::-1]
    for layer, group in groupby(path, lambda segment: layer_of(steps[segment.step])):
        first, *others = group
        span_ps = first.begin_ps, others[-1].end_ps if others else first.end_ps
        label, category = _label(labels, layer), "Control" if layer == NOTHING else "Node"
        yield _slice(_LAYERS, f"{label.name}_kernel_time", category, span_ps, _node_args(label, layer, label.operator))


def _control_events(timing: Timing) -> Iterator[Event]:
    """Yield when the control unit works, and when and why it stalls."""
    schedule = timing.schedule
    begin = until = 0
    for index, step in enumerate(schedule.steps):
        issued = schedule.issued_ps[index]
        cause = schedule.issue_cause[index]
        if cause == NOTHING:
            until = issued
            continue
        if begin < until:
            yield _slice(_CU, "issue", "CU", (begin, until), {})
        why = "FENCE" if isinstance(step.item, Fence) else "queue full"
        due = schedule.steps[cause].pc
        yield _slice(_CU, why, "CU", (until, issued), {"pc": step.pc, "due_pc": due})
        begin = until = issued
    if begin < until:
        yield _slice(_CU, "issue", "CU", (begin, until), {})


def _command_track(command: Command, costs: CostModel) -> int:
    if command.function.is_transfer:
        return _QUEUE_TRACK[costs.machine.queue_of(command.queue)]
    return _MFU if costs.cost(command).on_mfu else _VFU


def _command_events(timing: Timing, labels: Sequence[LayerLabel], costs: CostModel) -> Iterator[Event]:
    schedule = timing.schedule
    for index, step in enumerate(schedule.steps):
        command = step.item
        if not isinstance(command, Command):
            continue
        track = _command_track(command, costs)
        label, cost = _label(labels, command.layer), costs.cost(command)
        args: Event = {**_node_args(label, command.layer, command.function.name), "pc": step.pc}
        for space, read, written in cost.traffic:
            args[f"{space.name}_read_bytes"], args[f"{space.name}_written_bytes"] = read, written
        if cost.macs:
            args["macs"] = cost.macs
        span = schedule.served_ps[index], schedule.finished_ps[index]
        yield _slice(track, f"{label.name}_kernel_time", f"Node,{(_TRACKS | _OWN_TRACKS)[track]}", span, args)


def _synchronisation_events(timing: Timing, costs: CostModel) -> Iterator[Event]:
    """Yield every WAIT from reaching the head of its queue, every POST, and arrows to the WAITs that had to wait."""
    schedule, steps = timing.schedule, timing.schedule.steps
    sources = _arrow_sources(timing, costs)
    for queue, entries in zip(Queue, schedule.entries, strict=False):
        track, free = _QUEUE_TRACK[queue], 0
        for index in entries:
            item, served = steps[index].item, schedule.served_ps[index]
            if isinstance(item, Post):
                args = {"pc": steps[index].pc, "semaphore": item.semaphore, "count": item.count, "start_ps": served}
                yield _event("i", track, f"POST {item.semaphore}", _us(served), cat="sync", s="t", args=args)
            if isinstance(item, Wait):
                at_head = max(free, schedule.issued_ps[index])
                args = {"pc": steps[index].pc, "semaphore": item.semaphore, "count": item.count}
                yield _slice(track, f"WAIT {item.semaphore}", "sync", (at_head, served), args)
                source = sources.get(schedule.released_by[index])
                if source is not None and _us(at_head) < _us(served):
                    yield _arrow("s", *source, index, item.semaphore)
                    yield _arrow("f", track, served, index, item.semaphore)
            free = schedule.finished_ps[index]


def _arrow_sources(timing: Timing, costs: CostModel) -> dict[int, tuple[int, int]]:
    """Return track and end of the last command that has a slice before each POST, on its queue."""
    schedule, sources = timing.schedule, {}
    for entries in schedule.entries:
        last: tuple[int, int] | None = None
        for index in entries:
            item, end = schedule.steps[index].item, schedule.finished_ps[index]
            if isinstance(item, Post) and last is not None:
                sources[index] = last
            if isinstance(item, Command) and _us(schedule.served_ps[index]) < _us(end):
                last = _command_track(item, costs), end
    return sources


def _arrow(phase: str, track: int, end_ps: int, number: int, semaphore: int) -> Event:
    """Return one end of an arrow, in the last nanosecond of a slice that ends at a time: at its end it is closed."""
    event = _event(phase, track, f"semaphore {semaphore}", _us(end_ps - _NS), cat="sync", id=number)
    return {**event, "bp": "e"} if phase == "f" else event


def _bandwidth_counters(timing: Timing, machine: Machine, costs: CostModel) -> Iterator[Event]:
    """Yield the payload in GB/s while a command runs, latency included."""
    schedule = timing.schedule
    for space in [Space.DDR] + [Space.LLC] * (machine.llc.bytes > 0):
        rates: dict[float, tuple[float, float]] = {0.0: (0.0, 0.0)}
        for index in (*schedule.entries[Queue.IO], *schedule.entries[Queue.LLC]):
            command = schedule.steps[index].item
            begin, end = schedule.served_ps[index], schedule.finished_ps[index]
            if not isinstance(command, Command) or _us(begin) == _us(end):
                continue
            moved = [(read, written) for where, read, written in costs.cost(command).traffic if where is space]
            for read, written in moved:
                rates[_us(begin)] = (read / (end - begin) * 1000, written / (end - begin) * 1000)
                rates[_us(end)] = (0.0, 0.0)
        for ts, (read_rate, write_rate) in rates.items():
            args = {"read": round(read_rate, 6), "written": round(write_rate, 6)}
            yield _event("C", _LAYERS, f"{space.name} GB/s", ts, args=args)


def _occupancy_counters(timing: Timing) -> Iterator[Event]:
    for space in (Space.NB, Space.SB, Space.HALO):
        times, live = occupancy(timing.schedule, space)
        if not len(times):
            continue
        # Within one nanosecond the last value counts.
        values = {0.0: 0} | {_us(ps): count for ps, count in zip(times.tolist(), live.tolist(), strict=True)}
        for ts, count in values.items():
            yield _event("C", _LAYERS, f"{space.name} live bytes", ts, args={"bytes": count})
