"""How well a stream of inputs flows through groups of cores: latency, throughput, load, and what bounds it (S5.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.timing.resources import Resource
from device_agents.emulated_npu.timing.stream_timing import CoreTiming, StreamTiming

BoundBy = Literal["io", "mfu", "vfu", "waiting", "sharing"]

_SATURATED_SHARE = 0.9
_BUSY_SHARE = 0.6


@dataclass(frozen=True)
class GroupLoad:
    """One group, per input in the steady state.

    `load`: share of the interval between inputs that its busiest queue works, of all its cores; transfers count with
    what they last in the contention of the stream. `own_ps`: from the beginning of an input to its end without what
    its cores wait for others' messages and ring slots, of the slowest core. `by`: what works longest there: io, mfu
    or vfu; "waiting" where that is less than 60 % of the interval: its queues wait for each other, or for others.
    """

    group: int
    cores: int
    load: float
    own_ps: float
    by: BoundBy


@dataclass(frozen=True)
class ResourceLoad:
    """One shared resource: the share of the interval that the data phases of an input take, and the bytes it moves."""

    chip: int
    resource: Resource
    utilisation: float
    moved_bytes: float

    def __str__(self) -> str:
        return f"{self.resource.name} of chip {self.chip}"


@dataclass(frozen=True)
class PipelineReport:
    """A stream of inputs in the steady state.

    - `latency_ps`: of one input that has the machine to itself. `interval_ps`: from the end of one input to the
      next in the steady state, the mean over the later half of those that end before the last one begins.
    - `speedup`: of the throughput, over one core that takes `single_core_ps` for each input; `efficiency`: by core.
    - `imbalance`: the largest load of a group over the mean; 1 is balanced.
    - `bound_by`: "sharing" where the most used resource is so for 90 % of the interval; else what the group with the
      longest own time, `slowest`, is bound by. `bound` says it in words.
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
    """Reports a stream of several inputs; `alone` is the same with one, `single_core_ps` the time of one core."""
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
    """The later half of the inputs that ended while others still began; of a stream too short for that, of all.

    Behind them the pipeline drains: the groups in front have left what they share to those behind.
    """
    full = sum(end <= stream.starts_ps[-1] for end in stream.ends_ps)
    count = full if full > 1 else stream.inputs
    return range(count // 2, count)


def _group_load(number: int, cores: Sequence[CoreTiming], window: range, interval_ps: float) -> GroupLoad:
    busy_ps = {
        core.core: (_mean(run.io_ps for run in core.runs[window.start : window.stop]), core.mfu_ps + core.vfu_ps)
        for core in cores
    }
    own_ps = max(
        max(
            _mean(
                run.end_ps - run.begin_ps - run.starved_ps - run.blocked_ps
                for run in core.runs[window.start : window.stop]
            ),
            *busy_ps[core.core],
        )
        for core in cores
    )
    busiest = max(cores, key=lambda core: max(busy_ps[core.core]))
    io_ps, cp_ps = busy_ps[busiest.core]
    by: BoundBy = "io" if io_ps >= cp_ps else "mfu" if busiest.mfu_ps >= busiest.vfu_ps else "vfu"
    load = max(io_ps, cp_ps) / interval_ps
    return GroupLoad(number, len(cores), load, own_ps, by if load >= _BUSY_SHARE else "waiting")


def _mean(values: Iterable[int]) -> float:
    found = list(values)
    return sum(found) / len(found)
