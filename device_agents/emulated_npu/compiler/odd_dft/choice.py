"""The odd-DFT stage: chooses the convolutions to compute by DFT of odd blocks, by predicted time (S4.1, S4.7).

`obstacle` says why a convolution cannot be computed by DFT, `check_options` why none can.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.odd_dft.levels import DftSizes, largest_length, levels
from device_agents.emulated_npu.compiler.odd_dft.quick_estimate import DftEstimates
from device_agents.emulated_npu.compiler.odd_dft.rewritten_graph import DftPlan, blocks_of, rewritten
from device_agents.emulated_npu.compiler.options import FIXES_LAYERS, Options
from device_agents.emulated_npu.emulator_errors import DoesNotFit, UnsupportedOperator
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import costs_of
from device_agents.emulated_npu.unit_commands import DataType

MOST_GROUPS = 64
"""Unless the DFT is forced, it is tried only for at most this many groups of several channels: each is a layer."""
LONGEST_BLOCK = 63
"""Longer blocks gain nothing: their transforms cost more than they save."""
_PLANNED = 3
"""Number of the most promising candidates that are planned."""
_FAR = 2
"""Candidates whose estimate exceeds that of the direct convolution by this factor are ignored."""
_HOPE = 0.8
_FAINT_HOPE = 0.6
"""A candidate is planned if its estimate times this factor is below the predicted time of the direct convolution.

Estimates are less certain if NB does not hold a line of all blocks from its DFT to its inverse.
"""
_GAIN = 0.97
"""A DFT must be predicted to take less than this part of the direct convolution: predictions are not exact."""
_ONES = (1, 1, 1)


class Predictions(Protocol):
    """Predictions that the choice of convolution algorithms needs."""

    def time_ps(self, graph: Graph) -> int:
        """Return the predicted time of a graph in picoseconds; raises DoesNotFit."""

    def chains(self, graph: Graph) -> Sequence[tuple[int, int]]:
        """Return the first layer and the end of every chain of a graph; raises DoesNotFit."""


def choose_convolutions(graph: Graph, machine: Machine, options: Options, predictions: Predictions) -> Graph:
    """Return the graph with some convolutions replaced by the layers that compute them by DFT.

    Requires: `predictions` for the same machine and options.
    Ensures: a graph that computes the same values; `graph.dft` lists the replaced convolutions, `graph.setup` computes
    the DFTs of their kernels. Convolutions stay direct where the DFT is impossible (`direct_convolutions`) or, unless
    it is forced, predicted to be slower. All stay direct on machines of other types than float32, and if the user fixes
    how layers are cut and chained but not how they are computed: such experiments are about the network's own layers.
    Raises NoDft for a forced DFT that is impossible: on a machine of another type, or with a block that is even, larger
    than the buffers, or smaller than a kernel. Raises DoesNotFit if the chosen memory has no room for the kernel DFTs.
    """
    limit = min(LONGEST_BLOCK, largest_length(machine))
    check_options(options, machine, limit)
    if options.conv_algorithm == "direct" or machine.data_type is not DataType.FLOAT32:
        return graph
    if options.conv_algorithm == "auto" and options.given(FIXES_LAYERS):
        return graph
    choice = _AlgorithmChoice(graph, machine, options, predictions, limit)
    plans = choice.plans()
    if plans and options.conv_algorithm == "auto" and len(graph.layers) > 1:
        plans = choice.in_chains(plans)
    return rewritten(graph, plans)


@dataclass
class _AlgorithmChoice:
    """Chooses layer by layer; equal layers are examined once.

    Kernel DFTs stay in the cache. So the layers that save the most time per byte of kernels come first.
    """

    graph: Graph
    machine: Machine
    options: Options
    predictions: Predictions
    limit: int

    def __post_init__(self) -> None:
        self._estimates = DftEstimates(costs_of(self.machine))
        self._known: dict[object, tuple[int, DftPlan] | None] = {}
        self._kernel_bytes = 0

    def plans(self) -> dict[int, DftPlan]:
        """Return how layers are computed by DFT, by their indices; the others are computed directly."""
        layers = [one for one in self.graph.layers if is_convolution(one) and not obstacle(one, self.graph)]
        if self.options.conv_algorithm == "auto":
            layers.sort(key=self._benefit, reverse=True)
        plans: dict[int, DftPlan] = {}
        for layer in layers:
            found = self._found(layer)
            if found is not None:
                plans[layer.index] = found[1]
                self._kernel_bytes += self._cached_bytes(layer, found[1])
        return plans

    def _found(self, layer: HardwareLayer) -> tuple[int, DftPlan] | None:
        """Return the time that a layer's DFT saves, in ps, and its plan; None if the layer is computed directly."""
        key = _key(layer, self.graph, self.machine), self._kernel_bytes
        if key not in self._known:
            forced = self.options.conv_algorithm == "odd-dft"
            self._known[key] = (0, self._forced(layer)) if forced else self._best(layer)
        return self._known[key]

    def _benefit(self, layer: HardwareLayer) -> float:
        """Return the time that a layer's DFT saves per byte of kernels in the cache, on a logarithmic scale."""
        saved_ps, plan = self._found(layer) or (0, None)
        kernel_bytes = self._cached_bytes(layer, plan) if plan else 0
        return round(math.log(saved_ps / kernel_bytes, 1 / _GAIN)) if kernel_bytes else -math.inf

    def _cached_bytes(self, layer: HardwareLayer, plan: DftPlan) -> int:
        return DftSizes.of(blocks_of(layer, plan.length), self.machine).kernels if plan.levels.kernels else 0

    def _forced(self, layer: HardwareLayer) -> DftPlan:
        kernel = max(layer.fixed_weights.shape[2:])
        most = self.options.dft_block or self.limit
        if kernel > most:
            what = f"{layer.name} has a kernel of {kernel}, too large for a block of at most {most}"
            step = "Let the compiler choose the algorithm" if most == self.limit else f"Choose a block of {kernel | 1}"
            raise NoDft(what, "a block is at least as long as the kernel", step)
        candidates = list(self._candidates(layer))
        if not candidates and self.options.dft_kernels == "llc":
            raise self._no_room(layer, max(3, kernel | 1))
        plans = candidates if len(candidates) == 1 else self._planned(layer, candidates)
        if not plans:
            what = f"{layer.name} cannot be computed by DFT on {self.machine.name}"
            raise DoesNotFit(what, "no block that holds its kernel fits the buffers", "Raise nb_bytes of the machine")
        return plans[0][1]

    def _no_room(self, layer: HardwareLayer, shortest: int) -> DoesNotFit:
        """Return the error for kernel DFTs that do not fit the last-level cache."""
        least = DftSizes.of(blocks_of(layer, self.options.dft_block or shortest), self.machine)
        free = max(0, self.machine.llc.bytes - self._kernel_bytes)
        what = f"The kernel DFTs of {layer.name} do not fit the last-level cache of {self.machine.name}"
        why = f"they take at least {least.kernels} bytes in addition to blocks of {least.blocks}, and {free} are free"
        return DoesNotFit(what, why, "Store the kernel DFTs in DDR")

    def _best(self, layer: HardwareLayer) -> tuple[int, DftPlan] | None:
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
        return (direct_ps - plans[0][0], plans[0][1]) if plans and plans[0][0] < _GAIN * direct_ps else None

    def _hope(self, layer: HardwareLayer, plan: DftPlan) -> float:
        return _HOPE if self._estimates.fetches_once(blocks_of(layer, plan.length)) else _FAINT_HOPE

    def in_chains(self, plans: Mapping[int, DftPlan]) -> dict[int, DftPlan]:
        """Return the plans that are faster than the chains of direct convolutions that they break up."""
        kept = dict(plans)
        for start, end in self.predictions.chains(self.graph):
            layers = self.graph.layers[start:end]
            own = {layer.index: plans[layer.index] for layer in layers if layer.index in plans}
            if own and len(layers) > 1:
                part = _part(self.graph, layers, self.machine)
                singles = [{index: plan} for index, plan in own.items() if len(own) > 1]
                ways: list[Mapping[int, DftPlan]] = [{}, own, *singles]
                times_ps = [self.predictions.time_ps(rewritten(part, way)) for way in ways]
                best_ps = min(times_ps)
                best = ways[times_ps.index(best_ps)] if best_ps < _GAIN * times_ps[0] else {}
                for index in own.keys() - best.keys():
                    del kept[index]
        return kept

    def _candidates(self, layer: HardwareLayer) -> Iterator[tuple[int, DftPlan]]:
        """Yield every candidate with its estimate; of blocks longer than the whole input, only the shortest."""
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
        """Return the most promising candidates with predicted times, the fastest first."""
        found: list[tuple[int, DftPlan]] = []
        alone = _part(self.graph, (layer,), self.machine)
        for _, plan in sorted(candidates, key=lambda candidate: candidate[0]):
            with contextlib.suppress(DoesNotFit):
                found.append((self.predictions.time_ps(rewritten(alone, {layer.index: plan})), plan))
            if len(found) == _PLANNED:
                break
        return sorted(found, key=lambda pair: pair[0])


def _key(layer: HardwareLayer, graph: Graph, machine: Machine) -> object:
    """Return a key; layers with equal keys take about the same time, both directly and by DFT."""

    def place(view: View) -> object:
        value = graph.values[view.value]
        small = math.prod(value.shape) * machine.data_type.bytes <= machine.llc.bytes // 4
        return view.shape, value.order, value.kind, small and not value.is_output

    reads = tuple(place(view) for view in layer.reads)
    return reads, place(layer.output), layer.settings, layer.groups, layer.fixed_weights.shape, layer.residual is None


def _part(graph: Graph, layers: Sequence[HardwareLayer], machine: Machine) -> Graph:
    """Return a network of these layers only; their inputs lie in the same memories as in the whole network.

    A value of which other layers write another part is `foreign`: its parts are apart, as in the whole network.
    """
    own = {layer.index for layer in layers}
    others = [layer for layer in graph.layers if layer.index not in own]
    written = {layer.output.value for layer in layers}
    foreign = frozenset(layer.output.value for layer in others) & written
    outside = {view.value for layer in others for view in layer.reads}
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
    return Graph(values, tuple(layers), inputs, outputs, (), 0, foreign=foreign, cached=frozenset(cached))


class NoDft(UnsupportedOperator):
    """A forced DFT is impossible for the machine, the block or the kernel; the message names value and limit."""


@dataclass(frozen=True)
class DirectConvolution:
    """A convolution that is computed directly because it cannot be by DFT."""

    name: str
    reason: str


def obstacle(layer: HardwareLayer, graph: Graph) -> str:
    """Return why a convolution cannot be computed by DFT, in a few words; "" if it can."""
    settings, axes = layer.settings, len(layer.output.axes) - 2
    if layer.weights is None:
        return "its kernel is not constant"
    if axes != 2:
        return f"{axes} spatial {'axis' if axes == 1 else 'axes'}, not 2"
    if settings.stride != _ONES:
        return f"stride {_pair(settings.stride)}"
    if settings.dilation != _ONES:
        return f"dilation {_pair(settings.dilation)}"
    types = {graph.values[view.value].dtype for view in (layer.output, *layer.reads)} | {layer.weights.dtype}
    others = sorted(kind.name.lower() for kind in types - {DataType.FLOAT32})
    return f"values of {' and '.join(others)}" if others else ""


def _pair(sizes: tuple[int, int, int]) -> str:
    return f"{sizes[1]} x {sizes[2]}"


def is_convolution(layer: HardwareLayer) -> bool:
    """Return whether a layer is a convolution, with or without groups, and no matrix product."""
    return layer.function.multiplies and not layer.matrix


def direct_convolutions(graph: Graph) -> tuple[DirectConvolution, ...]:
    """Return the convolutions of a graph that cannot be computed by DFT, with reasons, in its order."""
    of_dft = {index for one in graph.dft for index in one.layers}
    found = [layer for layer in graph.layers if is_convolution(layer) and layer.index not in of_dft]
    return tuple(DirectConvolution(layer.name, reason) for layer in found if (reason := obstacle(layer, graph)))


def check_options(options: Options, machine: Machine, limit: int) -> None:
    """Raise ContradictoryOptions, or NoDft if the machine rules the options out; `limit` is its longest block."""
    options.check_dft()
    if options.conv_algorithm == "odd-dft" and machine.data_type is not DataType.FLOAT32:
        what = f"{machine.name} computes in {machine.data_type.name.lower()}, which has no convolution by DFT"
        raise NoDft(what, "Spectra need float32", "Choose a machine that computes in float32, or another algorithm")
    if options.dft_block is not None:
        _check_block(options.dft_block, limit)


def _check_block(length: int, limit: int) -> None:
    what = f"A block of {length} is not possible"
    if length < 3 or length % 2 == 0:
        raise NoDft(what, "the length of a block is odd and at least 3", f"Choose {max(3, length | 1)}")
    if length > limit:
        why = f"the longest that the buffers of this machine hold is {limit}"
        raise NoDft(what, why, f"Choose at most {limit}")
