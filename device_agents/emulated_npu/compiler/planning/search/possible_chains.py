"""The chains that the layers of a graph can form: which layers can be one, and what it reads and stores."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.graph.regions import Region, intersection, overlap
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value, written_part
from device_agents.emulated_npu.compiler.planning.chains.chain import reads_outside
from device_agents.emulated_npu.compiler.planning.chains.sampled_reads import with_sampled_reads
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain
from device_agents.emulated_npu.machine import Machine


class PossibleChains:
    """The chains of a graph, by their first layer and the one past their last; each is built once."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self._graph, self._machine = graph, machine
        self._apart = graph.foreign | graph.staged
        self._readers: dict[str, list[tuple[int, View]]] = {}
        self._writers: dict[str, list[int]] = {}
        for place, layer in enumerate(graph.layers):
            for view in layer.reads:
                self._readers.setdefault(view.value, []).append((place, view))
            self._writers.setdefault(layer.output.value, []).append(place)
        self._read_between: dict[int, tuple[int, int]] = {}
        self._allowed: dict[tuple[int, int], bool] = {}
        self._chains: dict[tuple[int, int], Chain] = {}

    def allows(self, start: int, end: int) -> bool:
        """Return whether layers can be one chain: each reads every value either from the chain or from outside it.

        Layers in `graph.sliced` are in no chain of several.
        """
        if (start, end) not in self._allowed:
            self._allowed[start, end] = self._may_chain(start, end)
        return self._allowed[start, end]

    def chain(self, start: int, end: int) -> Chain:
        """Return the layers of a chain and the values that it stores; a part of a value has its own name."""
        if (start, end) not in self._chains:
            self._chains[start, end] = self._built(start, end)
        return self._chains[start, end]

    def is_stored(self, name: str, start: int, end: int) -> bool:
        """Return whether the host, another core or a layer outside a chain reads what the chain writes of a value."""
        if self._graph.values[name].is_output or name in self._graph.shared:
            return True
        readers = map(self._readers_of, self._inside(name, start, end))
        return any(first < start or last >= end for first, last in readers)

    def _may_chain(self, start: int, end: int) -> bool:
        if end - start > 1 and any(layer.index in self._graph.sliced for layer in self._graph.layers[start:end]):
            return False
        for place, layer in enumerate(self._graph.layers[start:end], start):
            for index, view in enumerate(layer.reads):
                written = self._written(view, start, place)
                if not written:
                    continue
                if reads_outside(layer, index) or view.value in self._apart:
                    return False
                if len(self._inside(view.value, start, place)) < len(self._writers[view.value]):
                    needed = view.value_region
                    if all(intersection(needed, region) != needed for region in written):
                        return False
        return True

    def _inside(self, name: str, start: int, end: int) -> list[int]:
        writers = self._writers.get(name, [])
        return writers[bisect_left(writers, start) : bisect_left(writers, end)]

    def _readers_of(self, writer: int) -> tuple[int, int]:
        """Return the first and the last layer that reads what a layer writes, or the layer itself if none does."""
        if writer not in self._read_between:
            output = self._graph.layers[writer].output
            readers = self._readers.get(output.value, [])
            places = [place for place, view in readers if overlap(view.value_region, output.value_region)] or [writer]
            self._read_between[writer] = places[0], places[-1]
        return self._read_between[writer]

    def _written(self, view: View, start: int, place: int) -> list[Region]:
        """Return the parts of a value that layers from `start` to `place` write and a view of it needs."""
        regions = (self._graph.layers[writer].output.value_region for writer in self._inside(view.value, start, place))
        return [region for region in regions if overlap(view.value_region, region)]

    def _built(self, start: int, end: int) -> Chain:
        layers: list[HardwareLayer] = []
        for place, layer in enumerate(self._graph.layers[start:end], start):
            reads = [
                replace(view, value=written_part(view.value))
                if self._is_completed(view.value, start, end) and self._written(view, start, place)
                else view
                for view in layer.reads
            ]
            if reads != list(layer.reads):
                inputs, residual = tuple(reads[: len(layer.inputs)]), reads[-1] if layer.residual else None
                layer = replace(layer, inputs=inputs, residual=residual)
            name = layer.output.value
            if self._is_completed(name, start, end):
                layer = replace(layer, output=replace(layer.output, value=written_part(name)))
            layers.append(layer)
        names = (layer.output.value for layer in layers)
        stored = frozenset(name for name in names if self.is_stored(whole_value(name), start, end))
        return Chain(with_sampled_reads(layers, self._graph.values, self._machine), stored)

    def _is_completed(self, name: str, start: int, end: int) -> bool:
        """Return whether layers outside a chain write some of a value."""
        return name in self._graph.foreign or len(self._inside(name, start, end)) < len(self._writers.get(name, ()))
