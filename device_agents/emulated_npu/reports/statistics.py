"""Counters and bottleneck of every hardware layer of a timed run; each is one row of the CSV.

There are two kinds of time. `cycles` is the layer's latency in its network: its share of the makespan by the binding
path (attribution.py), without work that other layers hide, so the rows sum to the makespan. Busy cycles are the time
that its commands occupied the units, hidden or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.attribution import Activity, binding_path, layer_of
from device_agents.emulated_npu.timing.cost import CommandCost, CostModel
from device_agents.emulated_npu.timing.simulation import Timing
from device_agents.emulated_npu.timing.single_core import NOTHING
from device_agents.emulated_npu.unit_commands import Command, Function, Queue, Space

Bound = Literal["io", "compute", "fill", "wait"]

_BOUND_SHARE = 0.6


@dataclass(frozen=True)
class LayerRow:
    """One hardware layer; the last row, `total`, is the network, with index -1.

    - `cycles`: share of the makespan. `span_cycles`: from the start of its first command to the end of its last.
    - `mfu_utilisation`: multiply-adds divided by the capacity of the array in `cycles`, or in its busy cycles if these
      are more because part of them is hidden. None without a CONVOLVE.
    - `io_busy`, `mfu_busy`, `vfu_busy`: busy cycles of the units divided by `span_cycles`.
    - `macs` counts all multiply-adds, `useful_macs` without repeated ones (None: unknown).
    - Bytes are payload, without the rounding to bursts.
    - `bound`: the activity that takes at least 60 % of `cycles`: "io"; "compute" for the units of CP, or "fill" if
      start-up, fill and drain take more than streaming; else "wait", because the control unit takes the time or the
      units wait for each other. For a fully hidden layer, busy cycles count instead.
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
    """The totals of one layer's commands, in picoseconds and bytes."""

    begin_ps: int = 1 << 62
    end_ps: int = 0
    io_ps: int = 0
    mfu_ps: int = 0
    vfu_ps: int = 0
    fill_ps: int = 0
    macs: int = 0
    commands: int = 0
    bytes: dict[tuple[Space, str], int] = field(default_factory=dict)
    path_io_ps: int = 0
    path_cp_ps: int = 0
    path_fill_ps: int = 0
    path_control_ps: int = 0

    def add(self, command: Command, cost: CommandCost, begin_ps: int, end_ps: int) -> None:
        self.begin_ps, self.end_ps = min(self.begin_ps, begin_ps), max(self.end_ps, end_ps)
        duration = end_ps - begin_ps
        if command.queue is Queue.IO:
            self.io_ps += duration
        elif command.function is Function.CONVOLVE:
            self.mfu_ps += duration
        else:
            self.vfu_ps += duration
        self.fill_ps += cost.fill_ps
        self.macs += cost.macs
        self.commands += 1
        for space, read, written in cost.traffic:
            self.bytes[space, "read"] = self.bytes.get((space, "read"), 0) + read
            self.bytes[space, "written"] = self.bytes.get((space, "written"), 0) + written

    def merge(self, other: _LayerSums) -> None:
        for each in fields(self):
            name = each.name
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "bytes":
                self.bytes = {key: mine.get(key, 0) + theirs.get(key, 0) for key in {*mine, *theirs}}
            elif name == "begin_ps":
                self.begin_ps = min(mine, theirs)
            elif name == "end_ps":
                self.end_ps = max(mine, theirs)
            else:
                setattr(self, name, mine + theirs)


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
    total = _LayerSums()
    for each in sums.values():
        total.merge(each)
    useful = useful_macs or {}
    rows = [
        _row(timing, machine, index, name, sums.get(index, _LayerSums()), useful.get(index))
        for index, name in enumerate(names)
    ]
    whole = sum(useful.values()) if useful else None
    return (*rows, _row(timing, machine, NOTHING, "total", total, whole))


def _sums(timing: Timing, costs: CostModel) -> dict[int, _LayerSums]:
    schedule = timing.schedule
    sums: dict[int, _LayerSums] = {}
    for index, step in enumerate(schedule.steps):
        if isinstance(step.item, Command):
            mine = sums.setdefault(step.item.layer, _LayerSums())
            mine.add(step.item, costs.cost(step.item), schedule.served_ps[index], schedule.finished_ps[index])
    for segment in binding_path(schedule):
        step = schedule.steps[segment.step]
        mine = sums.setdefault(layer_of(step), _LayerSums())
        if segment.activity is Activity.CONTROL:
            mine.path_control_ps += segment.end_ps - segment.begin_ps
        elif segment.activity is Activity.IO:
            mine.path_io_ps += segment.end_ps - segment.begin_ps
        else:
            mine.path_cp_ps += segment.end_ps - segment.begin_ps
            if isinstance(step.item, Command):
                mine.path_fill_ps += costs.cost(step.item).fill_ps
    return sums


def _row(timing: Timing, machine: Machine, layer: int, name: str, sums: _LayerSums, useful: int | None) -> LayerRow:
    path_ps = sums.path_io_ps + sums.path_cp_ps + sums.path_control_ps
    span_ps = timing.makespan_ps if layer == NOTHING else max(0, sums.end_ps - sums.begin_ps)
    mfu_cycles = timing.cycles(max(path_ps, sums.mfu_ps))
    possible = mfu_cycles * machine.mfu.rows * machine.mfu.columns
    return LayerRow(
        layer=layer,
        name=name,
        cycles=timing.cycles(path_ps),
        span_cycles=timing.cycles(span_ps),
        io_busy_cycles=timing.cycles(sums.io_ps),
        mfu_busy_cycles=timing.cycles(sums.mfu_ps),
        vfu_busy_cycles=timing.cycles(sums.vfu_ps),
        macs=sums.macs,
        useful_macs=useful,
        mfu_utilisation=sums.macs / possible if sums.mfu_ps and possible else None,
        io_busy=sums.io_ps / span_ps if span_ps else 0.0,
        mfu_busy=sums.mfu_ps / span_ps if span_ps else 0.0,
        vfu_busy=sums.vfu_ps / span_ps if span_ps else 0.0,
        ddr_read_bytes=sums.bytes.get((Space.DDR, "read"), 0),
        ddr_written_bytes=sums.bytes.get((Space.DDR, "written"), 0),
        llc_read_bytes=sums.bytes.get((Space.LLC, "read"), 0),
        llc_written_bytes=sums.bytes.get((Space.LLC, "written"), 0),
        commands=sums.commands,
        bound=_bound(sums),
    )


def _bound(sums: _LayerSums) -> Bound:
    io_ps, cp_ps, fill_ps = sums.path_io_ps, sums.path_cp_ps, sums.path_fill_ps
    whole = io_ps + cp_ps + sums.path_control_ps
    if not whole:
        io_ps, cp_ps, fill_ps = sums.io_ps, sums.mfu_ps + sums.vfu_ps, sums.fill_ps
        whole = io_ps + cp_ps
    if io_ps and io_ps >= _BOUND_SHARE * whole:
        return "io"
    if cp_ps and cp_ps >= _BOUND_SHARE * whole:
        return "fill" if 2 * fill_ps > cp_ps else "compute"
    return "wait"
