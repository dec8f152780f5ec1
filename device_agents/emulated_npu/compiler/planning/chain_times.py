"""The predicted time of a chain, from the commands of passes that stand for all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.regions import size_of
from device_agents.emulated_npu.compiler.planning.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.chain_commands import ChainWriter, ComputeStep, Externals
from device_agents.emulated_npu.compiler.planning.tiling import Geometry, Tile
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.unit_commands import Function, Queue

_LEAVING = (Function.STORE, Function.SEND)


@dataclass(frozen=True)
class QueueTimes:
    """Time of a chain on each queue; of that on the IO queue, `fill_ps` before and `drain_ps` after all computation."""

    io_ps: int
    cp_ps: int
    fill_ps: int
    drain_ps: int

    @property
    def together_ps(self) -> int:
        """Time of the chain alone: the loads of the first pass, then the busier queue, then the last store."""
        return self.fill_ps + max(self.cp_ps, self.io_ps - self.fill_ps - self.drain_ps) + self.drain_ps

    def beside_ps(self, hidden: float) -> int:
        """Time of the chain where its neighbours hide a share of what happens before and after its busier queue."""
        return round(self.together_ps - hidden * (self.together_ps - max(self.io_ps, self.cp_ps)))


@dataclass(frozen=True)
class TimedPlan:
    """A plan of a chain with its predicted times.

    `doubtful` plans divide a chain that fits in one pass, and are not faster beyond doubt.
    """

    plan: ChainPlan
    times: QueueTimes
    doubtful: bool = False


def in_sequence(times: Sequence[QueueTimes]) -> QueueTimes:
    """Return the times of chains of which each loads while the one before it computes."""
    io_ps, cp_ps = sum(each.io_ps for each in times), sum(each.cp_ps for each in times)
    return QueueTimes(io_ps, cp_ps, times[0].fill_ps, times[-1].drain_ps)


class ChainTimes:
    """Predicts the times of chains on a machine."""

    def __init__(self, values: Mapping[str, Value], machine: Machine, externals: Externals) -> None:
        self._values, self._machine, self._externals = values, machine, externals
        self._costs = CostModel(machine)
        self._computing: dict[object, tuple[int, int, int]] = {}
        self._known: dict[int, TimedPlan] = {}

    def timed(self, plan: ChainPlan) -> TimedPlan:
        """Return a plan with its predicted times, which are computed once for each plan."""
        if id(plan) not in self._known:
            self._known[id(plan)] = TimedPlan(plan, self._queue_times(plan))
        return self._known[id(plan)]

    def _queue_times(self, plan: ChainPlan) -> QueueTimes:
        writer = ChainWriter(plan, self._values, self._machine, self._externals)
        io_ps = cp_ps = fill_ps = drain_ps = 0
        for tile, count in _representatives(plan.geometry):
            filling = not any(tile)
            pass_ps = stored_ps = 0
            for step in writer.steps(tile):
                if isinstance(step, ComputeStep):
                    io, cp, lead = self._computing_ps(plan, writer, step)
                    fill_ps += lead if filling else 0
                    filling = False
                else:
                    duration = self._costs.duration_ps(step)
                    io, cp = (duration, 0) if step.queue is Queue.IO else (0, duration)
                    if step.function in _LEAVING:
                        stored_ps = max(stored_ps, pass_ps) + duration
                    fill_ps += io if filling else 0
                pass_ps += cp
                io_ps += io * count
                cp_ps += cp * count
            drain_ps = max(0, stored_ps - pass_ps)
        if not plan.loads_ahead:
            fill_ps = io_ps - drain_ps
        return QueueTimes(io_ps, cp_ps, fill_ps, drain_ps)

    def _computing_ps(self, plan: ChainPlan, writer: ChainWriter, step: ComputeStep) -> tuple[int, int, int]:
        """Return the time on both queues, and of the loads that the first computation needs.

        It depends only on shapes, so that equal steps share it.
        """
        layer = step.layer
        weights = plan.weights.get(layer.index)
        sizes = tuple(map(size_of, step.region))
        key = (layer.index, layer.output.start, sizes, weights and (weights.resident, weights.loads))
        known = self._computing.get(key)
        if known is None:
            io_ps = cp_ps = lead_ps = 0
            for command in writer.compute(step):
                if command.queue is Queue.IO:
                    io_ps += self._costs.duration_ps(command)
                else:
                    lead_ps = lead_ps or io_ps
                    cp_ps += self._costs.duration_ps(command)
            known = self._computing[key] = (io_ps, cp_ps, lead_ps)
        return known


def _representatives(geometry: Geometry) -> Iterator[tuple[Tile, int]]:
    """Yield passes that differ from each other, with the number of equal passes; the first pass comes first."""
    columns = []
    for place, count in enumerate(geometry.counts):
        groups: dict[object, list[int]] = {}
        sizes = [track.sizes for tracks in geometry.tracks.values() if (track := tracks[place]) is not None]
        for tile, shape in enumerate(zip(*sizes, strict=True) if sizes else itertools.repeat((), count)):
            groups.setdefault((tile == 0, shape), []).append(tile)
        columns.append([(tiles[0], len(tiles)) for tiles in groups.values()])
    for combination in itertools.product(*columns):
        yield tuple(first for first, _ in combination), math.prod(number for _, number in combination)
