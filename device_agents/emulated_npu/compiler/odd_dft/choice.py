"""Which convolutions are computed by DFT of odd blocks, by predicted time (S4.1, S4.7)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.odd_dft.levels import DftSizes, largest_length, levels
from device_agents.emulated_npu.compiler.odd_dft.obstacles import NoDft, check_options, is_convolution, obstacle
from device_agents.emulated_npu.compiler.odd_dft.quick_estimate import DftEstimates
from device_agents.emulated_npu.compiler.odd_dft.rewritten_graph import DftPlan, blocks_of, rewritten
from device_agents.emulated_npu.compiler.options import FIXES_LAYERS, Options
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost import CostModel
from device_agents.emulated_npu.unit_commands import DataType


class Predictions(Protocol):
    """What the compiler makes of a graph whose convolutions are direct."""

    def time_ps(self, graph: Graph) -> int:
        """The time that it is predicted to take, in picoseconds; raises DoesNotFit."""

    def chains(self, graph: Graph) -> Sequence[tuple[int, int]]:
        """First layer and end of every chain; raises DoesNotFit."""


MOST_GROUPS = 64
"""Groups of several channels of a convolution that is tried by DFT without being told: each is a layer of its own."""

LONGEST_BLOCK = 63
"""Blocks beyond this gain nothing: transforms cost more than they save."""

_PLANNED = 3
"""Ways to cut a convolution that are planned, the most promising ones."""

_FAR = 2
"""What is estimated to take that many times as long as the direct convolution is not looked at."""

_HOPE = 0.8
_FAINT_HOPE = 0.6
"""A way is planned if this part of its estimate is less than what the direct convolution is predicted to take.

Estimates are less certain where NB does not hold a line of all blocks from its DFT to its inverse.
"""

_GAIN = 0.97
"""What is predicted to take more than this part of the direct convolution is no gain: predictions are not exact."""


def choose_convolutions(graph: Graph, machine: Machine, options: Options, predictions: Predictions) -> Graph:
    """The graph with every convolution that is to be computed by DFT written out as the layers for it.

    Spectra need float32: on machines of other types all stays direct. So it does where the user forces how layers are
    cut and chained but not how they are computed: those experiments are about the network's own layers. Where the DFT
    is forced, convolutions that cannot be computed by it stay direct (`direct_convolutions`).
    Raises NoDft where a forced way is impossible: a machine of another type, a block that is even, larger than what
    the buffers hold, or smaller than a kernel; DoesNotFit where the memory that is to keep the kernel DFTs has no room.
    """
    limit = min(LONGEST_BLOCK, largest_length(machine))
    check_options(options, machine, limit)
    if options.conv_algorithm == "direct" or machine.data_type is not DataType.FLOAT32:
        return graph
    if options.conv_algorithm == "auto" and options.given(FIXES_LAYERS):
        return graph
    choice = _AlgorithmChoice(graph, machine, options, predictions, limit)
    plans = {layer.index: plan for layer in graph.layers if (plan := choice.plan(layer)) is not None}
    if plans and options.conv_algorithm == "auto" and len(graph.layers) > 1:
        plans = choice.in_chains(plans)
    return rewritten(graph, plans)


@dataclass
class _AlgorithmChoice:
    """Chooses layer by layer; equal layers are looked at once. kernel DFTs in the cache take room for good."""

    graph: Graph
    machine: Machine
    options: Options
    predictions: Predictions
    limit: int

    def __post_init__(self) -> None:
        self._estimates = DftEstimates(CostModel(self.machine))
        self._known: dict[object, DftPlan | None] = {}
        self._kernel_bytes = 0

    def plan(self, layer: HardwareLayer) -> DftPlan | None:
        """How a layer is computed by DFT; None for directly."""
        if not is_convolution(layer) or obstacle(layer, self.graph):
            return None
        key = _key(layer, self.graph, self.machine), self._kernel_bytes
        if key not in self._known:
            self._known[key] = self._forced(layer) if self.options.conv_algorithm == "odd-dft" else self._best(layer)
        plan = self._known[key]
        if plan is not None and plan.levels.kernels:
            self._kernel_bytes += DftSizes.of(blocks_of(layer, plan.length), self.machine).kernels
        return plan

    def _forced(self, layer: HardwareLayer) -> DftPlan:
        kernel = max(layer.fixed_weights.shape[2:])
        most = self.options.dft_block or self.limit
        if kernel > most:
            what = f"{layer.name} has a kernel of {kernel}, which no block of at most {most} holds"
            step = "Let the compiler choose the algorithm" if most == self.limit else f"Choose a block of {kernel | 1}"
            raise NoDft(what, "a block is at least as long as the kernel (S4.1)", step)
        candidates = list(self._candidates(layer))
        if not candidates and self.options.dft_kernels == "llc":
            raise self._no_room(layer, max(3, kernel | 1))
        plans = candidates if len(candidates) == 1 else self._planned(layer, candidates)
        if not plans:
            what = f"{layer.name} cannot be computed by DFT on {self.machine.name}"
            raise DoesNotFit(what, "no block that holds its kernel fits the buffers", "Raise nb_bytes of the machine")
        return plans[0][1]

    def _no_room(self, layer: HardwareLayer, shortest: int) -> DoesNotFit:
        """Of the last-level cache for kernel DFTs that are to lie there."""
        least = DftSizes.of(blocks_of(layer, self.options.dft_block or shortest), self.machine)
        free = max(0, self.machine.llc.bytes - self._kernel_bytes)
        what = f"The kernel DFTs of {layer.name} do not fit the last-level cache of {self.machine.name}"
        why = f"they take at least {least.kernels} bytes beside blocks of {least.blocks}, and {free} are free"
        return DoesNotFit(what, why, "Let the kernel DFTs lie in DDR")

    def _best(self, layer: HardwareLayer) -> DftPlan | None:
        _, channels, *kernel = layer.fixed_weights.shape
        if max(kernel) == 1 or (channels > 1 and layer.groups > MOST_GROUPS):
            return None
        most_ps = _FAR * self._estimates.direct_ps(layer)
        candidates = [candidate for candidate in self._candidates(layer) if candidate[0] < most_ps]
        if not candidates:
            return None
        direct_ps = self.predictions.time_ps(_part(self.graph, (layer,), self.machine))
        hopeful = [one for one in candidates if self._hope(layer, one[1]) * one[0] < direct_ps]
        plans = self._planned(layer, hopeful)
        return plans[0][1] if plans and plans[0][0] < _GAIN * direct_ps else None

    def _hope(self, layer: HardwareLayer, plan: DftPlan) -> float:
        return _HOPE if self._estimates.fetches_once(blocks_of(layer, plan.length)) else _FAINT_HOPE

    def in_chains(self, plans: Mapping[int, DftPlan]) -> dict[int, DftPlan]:
        """Those of the plans that are faster than the chains of direct convolutions which they break up."""
        kept = dict(plans)
        for start, end in self.predictions.chains(self.graph):
            layers = self.graph.layers[start:end]
            own = {layer.index: plans[layer.index] for layer in layers if layer.index in plans}
            if own and len(layers) > 1:
                part = _part(self.graph, layers, self.machine)
                ways: list[Mapping[int, DftPlan]] = [
                    {},
                    own,
                    *({index: plan} for index, plan in own.items() if len(own) > 1),
                ]
                times_ps = [self.predictions.time_ps(rewritten(part, way)) for way in ways]
                best_ps = min(times_ps)
                best = ways[times_ps.index(best_ps)] if best_ps < _GAIN * times_ps[0] else {}
                for index in own.keys() - best.keys():
                    del kept[index]
        return kept

    def _candidates(self, layer: HardwareLayer) -> Iterator[tuple[int, DftPlan]]:
        """Every way with its estimate; a block longer than the whole input is none but the shortest such."""
        kernel = max(layer.fixed_weights.shape[2:])
        lengths: Iterator[int] = iter(range(max(3, kernel | 1), self.limit + 1, 2))
        if self.options.dft_block is not None:
            lengths = iter([self.options.dft_block] if self.options.dft_block >= kernel else [])
        for length in lengths:
            blocks = blocks_of(layer, length)
            for held in levels(blocks, self.machine, self._kernel_bytes):
                if self.options.dft_kernels in ("auto", "llc" if held.kernels else "ddr"):
                    yield self._estimates.transform_ps(blocks, held), DftPlan(length, held)
            if blocks.counts == (1, 1):
                break

    def _planned(self, layer: HardwareLayer, candidates: list[tuple[int, DftPlan]]) -> list[tuple[int, DftPlan]]:
        """The most promising of the candidates by predicted time, the fastest first."""
        found: list[tuple[int, DftPlan]] = []
        alone = _part(self.graph, (layer,), self.machine)
        for _, plan in sorted(candidates, key=lambda candidate: candidate[0]):
            with contextlib.suppress(DoesNotFit):
                found.append((self.predictions.time_ps(rewritten(alone, {layer.index: plan})), plan))
            if len(found) == _PLANNED:
                break
        return sorted(found, key=lambda pair: pair[0])


def _key(layer: HardwareLayer, graph: Graph, machine: Machine) -> object:
    """Layers with equal keys take about the same time, directly as well as by DFT."""

    def place(view: View) -> object:
        value = graph.values[view.value]
        small = math.prod(value.shape) * machine.data_type.bytes <= machine.llc.bytes // 4
        return view.shape, value.order, value.kind, small and not value.is_output

    reads = tuple(place(view) for view in layer.reads)
    return reads, place(layer.output), layer.settings, layer.groups, layer.fixed_weights.shape, layer.residual is None


def _part(graph: Graph, layers: Sequence[HardwareLayer], machine: Machine) -> Graph:
    """A network of these layers alone; what they read from others lies where it would in the whole network."""
    written = {layer.output.value for layer in layers}
    outside = {view.value for layer in graph.layers if layer not in layers for view in layer.reads}
    values = {view.value: graph.values[view.value] for layer in layers for view in (*layer.reads, layer.output)}
    cached = set()
    for name, value in values.items():
        if name in written and name in outside:
            values[name] = replace(value, is_output=True)
        elif name not in written and value.kind == "activation":
            values[name] = replace(value, kind="setup")
            if math.prod(value.shape) * machine.data_type.bytes <= machine.llc.bytes // 4:
                cached.add(name)
    if len(layers) == 1:
        (name,) = written
        values[name] = replace(values[name], is_output=True)
    inputs = tuple(name for name, value in values.items() if value.kind == "input")
    outputs = tuple(name for name, value in values.items() if value.is_output)
    return Graph(values, tuple(layers), inputs, outputs, (), 0, cached=frozenset(cached))
