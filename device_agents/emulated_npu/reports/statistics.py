"""Counters and bottleneck of every hardware layer of a timed run; each is one row of the CSV.

There are two kinds of time. `cycles` is the layer's latency in its network: its share of the makespan by the binding
path (attribution.py), without work that other layers hide, so the rows sum to the makespan. Busy cycles are the time
that its commands occupied the units, hidden or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.attribution import Activity, binding_path, layer_of
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.simulation import Timing
from device_agents.emulated_npu.timing.single_core import NOTHING
from device_agents.emulated_npu.unit_commands import Command, Space

Bound = Literal["io", "compute", "fill", "wait"]

_BOUND_SHARE = 0.6
_READ = {Space.DDR: "ddr_read_bytes", Space.LLC: "llc_read_bytes"}
_WRITTEN = {Space.DDR: "ddr_written_bytes", Space.LLC: "llc_written_bytes"}
_PATH = {
    Activity.IO: "path_io",
    Activity.CP: "path_cp",
    Activity.VFU: "path_cp",
    Activity.LLC: "path_io",
    Activity.CONTROL: "path_control",
}
_COUNTED = ("macs", "commands", *_READ.values(), *_WRITTEN.values())


@dataclass(frozen=True)
class LayerRow:
    """One hardware layer; the last row, `total`, is the network, with index -1.

    - `cycles`: share of the makespan. `span_cycles`: from the start of its first command to the end of its last.
    - `mfu_utilisation`: multiply-adds divided by the capacity of the array in `cycles`, or in its busy cycles if these
      are more because part of them is hidden. None without a CONVOLVE.
    - `io_busy`, `mfu_busy`, `vfu_busy`: busy cycles of the units divided by `span_cycles`.
    - `macs` counts all multiply-adds, `useful_macs` without repeated ones (None: unknown).
    - Bytes are payload, without the rounding to bursts.
    - `bound`: the activity that takes at least 60 % of `cycles`. "io" and "compute" (the units of CP) are such, and
      "fill" replaces "compute" if start-up, fill and drain take more than streaming. Else it is "wait": the control
      unit takes the time, or the units wait for each other. For a fully hidden layer, busy cycles count instead.
    """

    layer: int
    name: str
    cycles: float
    span_cycles: float
    io_busy_cycles: float
    mfu_busy_cycles: float
    vfu_busy_cycles: float
    macs: int
    useful_macs: int | None
    mfu_utilisation: float | None
    io_busy: float
    mfu_busy: float
    vfu_busy: float
    ddr_read_bytes: int
    ddr_written_bytes: int
    llc_read_bytes: int
    llc_written_bytes: int
    commands: int
    bound: Bound


@dataclass
class _LayerSums:
    """The span of one layer's commands, and totals of them and of its part of the binding path, in ps and bytes."""

    begin_ps: int = 1 << 62
    end_ps: int = 0
    totals: Counter[str] = field(default_factory=Counter)


def layer_rows(
    timing: Timing,
    machine: Machine,
    names: Sequence[str],
    *,
    useful_macs: Mapping[int, int] | None = None,
    costs: CostModel | None = None,
) -> tuple[LayerRow, ...]:
    """Return a row for every layer of `names`, and `total` last, which includes the time of no layer.

    `useful_macs`: multiply-adds by layer index, without repeated ones.
    """
    sums = _sums(timing, costs or CostModel(machine))
    total = _LayerSums(totals=sum((each.totals for each in sums.values()), Counter()))
    useful = useful_macs or {}
    rows = [
        _row(timing, machine, index, name, sums.get(index, _LayerSums()), useful.get(index))
        for index, name in enumerate(names)
    ]
    whole = sum(useful.values()) if useful else None
    return (*rows, _row(timing, machine, NOTHING, "total", total, whole))


def _sums(timing: Timing, costs: CostModel) -> dict[int, _LayerSums]:
    schedule = timing.schedule
    sums: defaultdict[int, _LayerSums] = defaultdict(_LayerSums)
    for index, step in enumerate(schedule.steps):
        command = step.item
        if not isinstance(command, Command):
            continue
        mine, cost = sums[command.layer], costs.cost(command)
        begin_ps, end_ps = schedule.served_ps[index], schedule.finished_ps[index]
        mine.begin_ps, mine.end_ps = min(mine.begin_ps, begin_ps), max(mine.end_ps, end_ps)
        unit = "io" if command.function.is_transfer else "mfu" if cost.on_mfu else "vfu"
        mine.totals[unit] += end_ps - begin_ps
        mine.totals["fill"] += cost.fill_ps
        mine.totals["macs"] += cost.macs
        mine.totals["commands"] += 1
        for space, read, written in cost.traffic:
            mine.totals[_READ[space]] += read
            mine.totals[_WRITTEN[space]] += written
    for segment in binding_path(schedule):
        step = schedule.steps[segment.step]
        totals = sums[layer_of(step)].totals
        totals[_PATH[segment.activity]] += segment.end_ps - segment.begin_ps
        if segment.activity in (Activity.CP, Activity.VFU) and isinstance(step.item, Command):
            totals["path_fill"] += costs.cost(step.item).fill_ps
    return dict(sums)


def _row(timing: Timing, machine: Machine, layer: int, name: str, sums: _LayerSums, useful: int | None) -> LayerRow:
    totals = sums.totals
    path_ps = totals["path_io"] + totals["path_cp"] + totals["path_control"]
    span_ps = timing.makespan_ps if layer == NOTHING else max(0, sums.end_ps - sums.begin_ps)
    mfu_cycles = timing.cycles(max(path_ps, totals["mfu"]))
    possible = mfu_cycles * machine.mfu.multipliers
    return LayerRow(
        layer=layer,
        name=name,
        cycles=timing.cycles(path_ps),
        span_cycles=timing.cycles(span_ps),
        io_busy_cycles=timing.cycles(totals["io"]),
        mfu_busy_cycles=timing.cycles(totals["mfu"]),
        vfu_busy_cycles=timing.cycles(totals["vfu"]),
        useful_macs=useful,
        mfu_utilisation=totals["macs"] / possible if totals["mfu"] and possible else None,
        io_busy=totals["io"] / span_ps if span_ps else 0.0,
        mfu_busy=totals["mfu"] / span_ps if span_ps else 0.0,
        vfu_busy=totals["vfu"] / span_ps if span_ps else 0.0,
        bound=_bound(totals),
        **{name: totals[name] for name in _COUNTED},
    )


def _bound(totals: Counter[str]) -> Bound:
    io_ps, cp_ps, fill_ps = totals["path_io"], totals["path_cp"], totals["path_fill"]
    whole = io_ps + cp_ps + totals["path_control"]
    if not whole:
        io_ps, cp_ps, fill_ps = totals["io"], totals["mfu"] + totals["vfu"], totals["fill"]
        whole = io_ps + cp_ps
    if io_ps and io_ps >= _BOUND_SHARE * whole:
        return "io"
    if cp_ps and cp_ps >= _BOUND_SHARE * whole:
        return "fill" if 2 * fill_ps > cp_ps else "compute"
    return "wait"
