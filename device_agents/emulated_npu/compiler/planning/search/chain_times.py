"""The predicted time of a chain, from the commands of representative passes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.regions import is_windowed, read_interval, size_of
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.chains.chain_commands import ChainWriter, ComputeStep, MoveStep
from device_agents.emulated_npu.compiler.planning.chains.externals import Externals
from device_agents.emulated_npu.compiler.planning.chains.tiling import Tile
from device_agents.emulated_npu.compiler.planning.search.known_estimates import KnownEstimates
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import costs_of
from device_agents.emulated_npu.unit_commands import Command, Function, Queue

_LEAVING = (Function.STORE, Function.SEND)
_Times = dict[Queue, int]
_NO_TIMES = dict.fromkeys(Queue, 0)


class QueueTimes(NamedTuple):
    """Time of a chain on each queue; of that on the IO queue, `fill_ps` before and `drain_ps` after all computation.

    The second pass begins `late_ps` after the first one ends: its loads follow those that the first one still needs.
    If MFU and VFU have separate queues, `cp_ps` is the time in which at least one of them works, and `unit_ps`
    is the time of the busier one. If they share a queue, both are its time.
    """

    io_ps: int
    cp_ps: int
    fill_ps: int
    drain_ps: int
    unit_ps: int
    late_ps: int = 0

    @property
    def together_ps(self) -> int:
        """Time of the chain by itself: the loads of the first pass, then the busier queue, then the last store."""
        return self.fill_ps + max(self.cp_ps + self.late_ps, self.io_ps - self.fill_ps - self.drain_ps) + self.drain_ps

    def beside_ps(self, before: float, after: float) -> int:
        """Time of the chain where its neighbours hide a share of what happens before and after its busier queue."""
        apart_ps = self.fill_ps + self.drain_ps
        hidden = (before * self.fill_ps + after * self.drain_ps) / apart_ps if apart_ps else 0.0
        return round(self.together_ps - hidden * (self.together_ps - max(self.io_ps, self.cp_ps)))


@dataclass(frozen=True)
class TimedPlan:
    """A plan of a chain with its predicted times.

    `doubtful` plans divide a chain that fits in one pass, and are not faster beyond doubt.
    """

    plan: ChainPlan
    times: QueueTimes
    doubtful: bool = False


class _PassTimes(NamedTuple):
    """Times of one pass: on each queue, of all computation, and of loads and stores.

    `lead_ps` are the transfers before any computation, `loads_ps` the loads of features, `weights_ps` those of weights,
    and `drain_ps` is what the stores take after the last computation.
    """

    total_ps: _Times
    work_ps: int
    lead_ps: int
    loads_ps: int
    weights_ps: int
    drain_ps: int


def in_sequence(times: Sequence[QueueTimes]) -> QueueTimes:
    """Return the times of chains of which each loads while the one before it computes."""
    io_ps, cp_ps = sum(each.io_ps for each in times), sum(each.cp_ps for each in times)
    unit_ps = sum(each.unit_ps for each in times)
    return QueueTimes(io_ps, cp_ps, times[0].fill_ps, times[-1].drain_ps, unit_ps, times[0].late_ps)


class ChainTimes:
    """Predicts the times of chains on a machine."""

    def __init__(
        self, values: Mapping[str, Value], machine: Machine, externals: Externals, known: KnownEstimates
    ) -> None:
        self._values, self._machine, self._externals, self._shared = values, machine, externals, known
        self._numbers: dict[int, object] = {}
        self._costs = costs_of(machine)
        self._computing: dict[object, tuple[_Times, int]] = {}
        self._moving: dict[object, _Times] = {}
        self._known: dict[int, TimedPlan] = {}

    def timed(self, plan: ChainPlan) -> TimedPlan:
        """Return a plan with its predicted times, which are computed once for each plan, or for equal ones."""
        if id(plan) not in self._known:
            number = self._numbers.get(id(plan))
            if number is None:
                times = self._queue_times(plan)
            else:
                times = QueueTimes(*self._shared.rows(number, lambda: (self._queue_times(plan),))[0])
            self._known[id(plan)] = TimedPlan(plan, times)
        return self._known[id(plan)]

    def number(self, plan: ChainPlan, number: object) -> None:
        """Note a key that plans of other networks have, too, if they take the same time."""
        self._numbers.setdefault(id(plan), number)

    def _queue_times(self, plan: ChainPlan) -> QueueTimes:
        writer = ChainWriter(plan, self._values, self._machine, self._externals)
        passes = [(self._pass_times(plan, writer, tile), count) for tile, count in _representatives(plan)]
        io_ps, mfu_ps, vfu_ps = (
            sum(count * one.total_ps[queue] for one, count in passes) for queue in (Queue.IO, Queue.CP, Queue.VFU)
        )
        first, drain_ps = passes[0][0], passes[-1][0].drain_ps
        fill_ps = first.lead_ps if plan.loads_ahead else io_ps - drain_ps
        late_ps = 0
        if plan.loads_ahead and len(passes) > 1 and not plan.overlaps:
            second, _ = passes[1]
            late_ps = max(0, first.loads_ps + first.weights_ps - first.lead_ps + second.loads_ps - first.work_ps)
        unit_ps = max(mfu_ps, vfu_ps)
        # Where the units overlap, the first pass of the other unit has nothing to overlap with.
        other_ps = (mfu_ps + vfu_ps - unit_ps) // (plan.passes if plan.overlaps else 1)
        return QueueTimes(io_ps, unit_ps + other_ps, fill_ps, drain_ps, unit_ps, late_ps)

    def _pass_times(self, plan: ChainPlan, writer: ChainWriter, tile: Tile) -> _PassTimes:
        total_ps = _NO_TIMES.copy()
        lead_ps: int | None = None
        work_ps = loads_ps = weights_ps = stored_ps = 0
        for step in writer.steps(tile):
            if isinstance(step, ComputeStep):
                times_ps, needed_ps = self._computing_ps(plan, writer, step)
                lead_ps = total_ps[Queue.IO] + needed_ps if lead_ps is None else lead_ps
                weights_ps += times_ps[Queue.IO]
            else:
                times_ps = self._moving_ps(writer, step)
                if step.function in _LEAVING:
                    stored_ps = max(stored_ps, work_ps) + times_ps[Queue.IO]
                else:
                    loads_ps += times_ps[Queue.IO]
            work_ps += times_ps[Queue.CP] + times_ps[Queue.VFU]
            for queue, duration_ps in times_ps.items():
                total_ps[queue] += duration_ps
        lead_ps = total_ps[Queue.IO] if lead_ps is None else lead_ps
        return _PassTimes(total_ps, work_ps, lead_ps, loads_ps, weights_ps, max(0, stored_ps - work_ps))

    def _times_ps(self, counted: Iterable[tuple[Command, int]]) -> tuple[_Times, int]:
        """Return the time of commands, each so many times, on each queue, and of the loads before any computation."""
        times_ps = _NO_TIMES.copy()
        lead_ps = 0
        for command, count in counted:
            cost, queue = self._costs.cost(command), command.queue
            if queue is Queue.CP:
                lead_ps = lead_ps or times_ps[Queue.IO]
                if self._machine.vfu_queue_depth and not cost.on_mfu:
                    queue = Queue.VFU
            times_ps[queue] += count * cost.duration_ps
        return times_ps, lead_ps

    def _moving_ps(self, writer: ChainWriter, step: Command | MoveStep) -> _Times:
        """Return the time on each queue of a transfer or a copy; equal moves share it."""
        if isinstance(step, Command):
            return self._times_ps([(step, 1)])[0]
        key = (step.function, step.name, tuple([high - low for low, high in step.region]))
        known = self._moving.get(key)
        if known is None:
            known = self._moving[key] = self._times_ps([(writer.move(step), 1)])[0]
        return known

    def _computing_ps(self, plan: ChainPlan, writer: ChainWriter, step: ComputeStep) -> tuple[_Times, int]:
        """Return the time on each queue, and of the loads that the first computation needs.

        It depends only on shapes, so that equal steps share it. Channels may begin within a block of weights, and at
        the edge of a map windows read less of it, which matters to a port of NB and to pixels side by side.
        """
        layer = step.layer
        weights = plan.weights.get(layer.index)
        blocks: object = None
        reading = self._machine.nb_port_bytes > 0
        if weights is not None:  # the first load and the number of loads decide the rest
            first = weights.loads[0]
            channels = None if layer.weights is None else step.region[channel_axis(layer)]
            blocks = weights.resident, len(weights.loads), first.bytes, first.blocks[0], weights.together, channels
            reading = reading or first.blocks[0].pixels > 1
        spatial = range(2, len(step.region)) if reading and is_windowed(layer) else ()
        read = tuple([size_of(read_interval(layer, 0, axis, step.region[axis])) for axis in spatial])
        key = (layer.index, layer.output.start, layer.settings, tuple(map(size_of, step.region)), read, blocks)
        known = self._computing.get(key)
        if known is None:
            known = self._computing[key] = self._times_ps(writer.counted(step))
        return known


def _representatives(plan: ChainPlan) -> Iterator[tuple[Tile, int]]:
    """Yield passes that differ from each other, with the number of equal passes; the first pass comes first.

    Parts of the channels of a convolution differ in how many blocks of weights they need.
    """
    geometry, columns = plan.geometry, []
    weighted = [layer for layer in plan.layers if layer.index in plan.weights]
    for place, count in enumerate(geometry.counts):
        groups: dict[object, list[int]] = {}
        parted = any(geometry.output_axis(layer, place) == channel_axis(layer) for layer in weighted)
        sizes = [track.sizes for tracks in geometry.tracks.values() if (track := tracks[place]) is not None]
        for tile, shape in enumerate(zip(*sizes, strict=True) if sizes else itertools.repeat((), count)):
            groups.setdefault((tile if parted else tile == 0, shape), []).append(tile)
        columns.append([(tiles[0], len(tiles)) for tiles in groups.values()])
    for combination in itertools.product(*columns):
        yield tuple(first for first, _ in combination), math.prod(number for _, number in combination)
