"""The flow of a stream of inputs through core groups: latency, throughput, load, and the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.timing.many_cores.stream_timing import CoreTiming, StreamTiming
from device_agents.emulated_npu.timing.resources import Resource

BoundBy = Literal["io", "mfu", "vfu", "waiting", "sharing"]

_SATURATED_SHARE = 0.9
_BUSY_SHARE = 0.6


@dataclass(frozen=True)
class GroupLoad:
    """One group, per input in the steady state.

    - `load`: busy share of the busiest queue of its cores, relative to the interval between inputs; transfers count
      with their duration under contention.
    - `own_ps`: time from the start of an input to its end, without waiting for messages and ring slots of other groups;
      of the slowest core.
    - `by`: the unit that works longest there (io, mfu or vfu); "waiting" if it is busy for less than 60 % of the
      interval, so that its queues mostly wait for each other or for other groups.
    """

    group: int
    cores: int
    load: float
    own_ps: float
    by: BoundBy


@dataclass(frozen=True)
class ResourceLoad:
    """One shared resource: the share of the interval that the data phases of an input take, and its bytes per input."""

    chip: int
    resource: Resource
    utilisation: float
    moved_bytes: float

    def __str__(self) -> str:
        return f"{self.resource.name} of chip {self.chip}"


@dataclass(frozen=True)
class PipelineReport:
    """A stream of inputs in the steady state.

    - `latency_ps`: of one input that has the machine to itself.
    - `interval_ps`: from the end of one input to the next in the steady state; the mean over the later half of the
      inputs that end before the last one begins.
    - `speedup`: throughput relative to one core that takes `single_core_ps` per input; `efficiency`: speedup per core.
    - `imbalance`: the largest load of a group divided by the mean; 1 is balanced.
    - `bound_by`: "sharing" if the most used resource is busy for 90 % of the interval; else the `by` of `slowest`, the
      group with the longest own time. `bound` is the same as text.
    """

    inputs: int
    cores: int
    latency_ps: int
    interval_ps: float
    inputs_per_s: float
    speedup: float
    efficiency: float
    groups: tuple[GroupLoad, ...]
    slowest: GroupLoad
    imbalance: float
    resources: tuple[ResourceLoad, ...]
    bound_by: BoundBy
    bound: str


def pipeline_report(stream: StreamTiming, alone: StreamTiming, single_core_ps: int) -> PipelineReport:
    """Return the report of a stream; `alone` is the stream with one input, `single_core_ps` the time of one core."""
    window = _steady(stream)
    before_ps = stream.ends_ps[window.start - 1] if window.start else stream.starts_ps[0]
    interval_ps = max(1, stream.ends_ps[window[-1]] - before_ps) / len(window)
    by_group: dict[int, list[CoreTiming]] = {}
    for core in stream.cores:
        by_group.setdefault(core.group, []).append(core)
    groups = tuple(_group_load(number, cores, window, interval_ps) for number, cores in sorted(by_group.items()))
    slowest = max(groups, key=lambda group: group.own_ps)
    loads = [group.load for group in groups]
    resources = tuple(
        ResourceLoad(
            each.chip, each.resource, each.work_ps / stream.inputs / interval_ps, each.moved_bytes / stream.inputs
        )
        for each in stream.resources
    )
    busiest = max(resources, key=lambda each: each.utilisation, default=None)
    if busiest is not None and busiest.utilisation >= _SATURATED_SHARE:
        bound_by: BoundBy = "sharing"
        bound = f"{busiest} at {busiest.utilisation:.0%}"
    else:
        bound_by = slowest.by
        bound = f"group {slowest.group} by {slowest.by}, {slowest.load:.0%} busy"
    speedup = single_core_ps / interval_ps
    return PipelineReport(
        inputs=stream.inputs,
        cores=len(stream.cores),
        latency_ps=alone.ends_ps[0] - alone.starts_ps[0],
        interval_ps=interval_ps,
        inputs_per_s=PS_PER_S / interval_ps,
        speedup=speedup,
        efficiency=speedup / len(stream.cores),
        groups=groups,
        slowest=slowest,
        imbalance=max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0,
        resources=resources,
        bound_by=bound_by,
        bound=bound,
    )


def _steady(stream: StreamTiming) -> range:
    """Return the later half of the inputs that ended before the last one began; in a short stream, of all inputs.

    After them the pipeline drains: the first groups are idle and leave shared resources to the last ones.
    """
    full = sum(end <= stream.starts_ps[-1] for end in stream.ends_ps)
    count = full if full > 1 else stream.inputs
    return range(count // 2, count)


def _group_load(number: int, cores: Sequence[CoreTiming], window: range, interval_ps: float) -> GroupLoad:
    busy_ps: dict[int, tuple[float, int]] = {}
    own_ps = 0.0
    for core in cores:
        runs = core.runs[window.start : window.stop]
        busy_ps[core.core] = fmean(run.io_ps for run in runs), core.compute_ps
        alone_ps = fmean(run.end_ps - run.begin_ps - run.starved_ps - run.blocked_ps for run in runs)
        own_ps = max(own_ps, alone_ps, *busy_ps[core.core])
    busiest = max(cores, key=lambda core: max(busy_ps[core.core]))
    io_ps, cp_ps = busy_ps[busiest.core]
    by: BoundBy = "io" if io_ps >= cp_ps else "mfu" if busiest.mfu_ps >= busiest.vfu_ps else "vfu"
    load = max(io_ps, cp_ps) / interval_ps
    return GroupLoad(number, len(cores), load, own_ps, by if load >= _BUSY_SHARE else "waiting")
