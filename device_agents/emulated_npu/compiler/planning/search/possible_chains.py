"""The chains that the layers of a graph can form: which layers can be one, and what it reads and stores."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.graph.regions import overlap
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
        self._readers: dict[str, list[int]] = {}
        self._writers: dict[str, list[int]] = {}
        for place, layer in enumerate(graph.layers):
            for view in layer.reads:
                self._readers.setdefault(view.value, []).append(place)
            self._writers.setdefault(layer.output.value, []).append(place)
        self._allowed: dict[tuple[int, int], bool] = {}
        self._chains: dict[tuple[int, int], Chain] = {}
        self._adding: dict[int, HardwareLayer] = {}

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

    def _may_chain(self, start: int, end: int) -> bool:
        if end - start > 1 and any(layer.index in self._graph.sliced for layer in self._graph.layers[start:end]):
            return False
        for place, layer in enumerate(self._graph.layers[start:end], start):
            for index, view in enumerate(layer.reads):
                writers = self._writers.get(view.value, ())
                inside = [writer for writer in writers if start <= writer < place]
                elsewhere = len(inside) < len(writers) or view.value in self._apart
                if inside and (reads_outside(layer, index) or elsewhere):
                    needed = view.value_region
                    outputs = [self._graph.layers[writer].output for writer in inside]
                    if any(overlap(needed, output.value_region) for output in outputs):
                        return False
        return True

    def _built(self, start: int, end: int) -> Chain:
        layers = []
        for place, layer in enumerate(self._graph.layers[start:end], start):
            name = layer.output.value
            alone = name not in self._graph.foreign and all(start <= each < end for each in self._writers[name])
            layers.append(layer if alone else self._added(place))
        names = (layer.output.value for layer in layers)
        stored = frozenset(name for name in names if self._is_stored(whole_value(name), start, end))
        return Chain(with_sampled_reads(layers, self._graph.values, self._machine), stored)

    def _added(self, place: int) -> HardwareLayer:
        """Return a layer that writes a part of a value which layers outside its chain complete."""
        if place not in self._adding:
            layer = self._graph.layers[place]
            self._adding[place] = replace(layer, output=replace(layer.output, value=written_part(layer.output.value)))
        return self._adding[place]

    def _is_stored(self, name: str, start: int, end: int) -> bool:
        outside = any(not start <= reader < end for reader in self._readers.get(name, ()))
        return outside or self._graph.values[name].is_output or name in self._graph.shared
