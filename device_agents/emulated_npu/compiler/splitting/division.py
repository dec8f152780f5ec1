"""The part of a network that each core group and each core runs, and which values cross between them (S5.7)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, Value
from device_agents.emulated_npu.compiler.graph.regions import (
    Region,
    intersection,
    is_empty,
    union,
    value_region,
    whole,
)
from device_agents.emulated_npu.compiler.splitting.assignment import stage_numbers


@dataclass(frozen=True)
class CoreLayers:
    """What one core computes: its layers, by their place in the graph, in the order in which they run."""

    core: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Crossing:
    """A value of which `cores` of a group read what the core `writer`, here or in another group, computes.

    `region` is what they read of it, whoever computes that.
    """

    value: str
    writer: int
    group: int
    cores: tuple[int, ...]
    region: Region


@dataclass(frozen=True)
class GroupGraph:
    """What one core group runs: the graph of each core, and one of all that the memory of the group holds.

    `graph` has the setup of the group. `number` is its stage in the pipeline. `depth` is for how many inputs at a time
    it has room for what it receives: one more than the most stages that a value passes on its way here. `slots` are
    those of the received values.
    """

    cores: tuple[int, ...]
    number: int
    depth: int
    graph: Graph
    parts: tuple[Graph, ...]
    slots: Mapping[str, int]


@dataclass(frozen=True)
class Division:
    """A network divided into stages, one for each group in the order of the groups, and what crosses between cores."""

    stages: tuple[GroupGraph, ...]
    crossings: tuple[Crossing, ...]

    def crossings_from(self, core: int) -> tuple[Crossing, ...]:
        """What a core sends."""
        return tuple(crossing for crossing in self.crossings if crossing.writer == core)


def divide(graph: Graph, groups: Sequence[Sequence[CoreLayers]]) -> Division:
    """Stages of a graph whose layers are shared out to the cores of each group; groups do not wait for each other."""
    return _Division(graph, groups).pipeline()


class _Division:
    def __init__(self, graph: Graph, groups: Sequence[Sequence[CoreLayers]]) -> None:
        self._graph, self._groups = graph, groups
        self._group_of = {share.core: number for number, group in enumerate(groups) for share in group}
        # Regions by value and core, each once.
        self._written: dict[str, dict[int, dict[Region, None]]] = {}
        self._read: dict[str, dict[int, dict[Region, None]]] = {}
        for share in (share for group in groups for share in group):
            for layer in (graph.layers[place] for place in share.layers):
                for table, views in ((self._written, (layer.output,)), (self._read, layer.reads)):
                    for view in views:
                        regions = table.setdefault(view.value, {}).setdefault(share.core, {})
                        regions[value_region(view, whole(view.shape))] = None

    def pipeline(self) -> Division:
        crossings = {name: tuple(self._crossings(name)) for name in self._written}
        homes = self._homes(self._numbers(crossings))
        for name, core in homes.items():
            # What other groups compute of a result comes to the group where it is whole.
            regions = self._read.setdefault(name, {}).setdefault(core, {})
            regions[whole(self._graph.values[name].shape)] = None
            crossings[name] = tuple(self._crossings(name))
        numbers = self._numbers(crossings)
        found = tuple(crossing for several in crossings.values() for crossing in several)
        stages = tuple(self._stage(index, numbers, found, homes) for index in range(len(self._groups)))
        return Division(stages, found)

    def _crossings(self, name: str) -> Iterable[Crossing]:
        read = self._read.get(name, {})
        for writer, written in self._written[name].items():
            for number, group in enumerate(self._groups):
                needed = {
                    share.core: [region for region in read.get(share.core, ()) if _meet(region, written)]
                    for share in group
                    if share.core != writer
                }
                readers = tuple(core for core, regions in needed.items() if regions)
                if readers:
                    hull = _hull(region for regions in needed.values() for region in regions)
                    yield Crossing(name, writer, number, readers, hull)

    def _numbers(self, crossings: Mapping[str, Sequence[Crossing]]) -> tuple[int, ...]:
        edges = {(self._group_of[one.writer], one.group) for several in crossings.values() for one in several}
        return stage_numbers(len(self._groups), edges)

    def _homes(self, numbers: Sequence[int]) -> dict[str, int]:
        """For every result the core of the last stage that computes some of it."""
        homes = {}
        for name in self._graph.outputs:
            writers = self._written.get(name, {})
            if writers:
                homes[name] = max(writers, key=lambda core: (numbers[self._group_of[core]], self._group_of[core], core))
        return homes

    def _stage(
        self, index: int, numbers: Sequence[int], crossings: Sequence[Crossing], homes: Mapping[str, int]
    ) -> GroupGraph:
        shares = self._groups[index]
        arriving = [one for one in crossings if one.group == index]
        passed = [
            numbers[index] - numbers[self._group_of[one.writer]]
            for one in arriving
            if self._group_of[one.writer] != index
        ]
        depth = 1 + max(passed, default=0)
        received = {one.value for one in arriving}
        slots = {one.value: depth for one in arriving if self._group_of[one.writer] != index}
        home = {name for name, core in homes.items() if self._group_of[core] == index}
        values = {
            name: self._as_here(value, name in received, name in home) for name, value in self._graph.values.items()
        }
        shared: dict[int, set[str]] = {}
        for one in crossings:
            shared.setdefault(one.writer, set()).add(one.value)
        parts = tuple(self._part(share, values, shared.get(share.core, set()), home) for share in shares)
        graph = _together(parts)
        graph = replace(graph, setup=setup_of(self._graph.setup, graph.values))
        return GroupGraph(tuple(share.core for share in shares), numbers[index], depth, graph, parts, slots)

    @staticmethod
    def _as_here(value: Value, received: bool, at_home: bool) -> Value:
        kind = "received" if received and value.kind == "activation" else value.kind
        if (kind, at_home) == (value.kind, value.is_output):
            return value
        return replace(value, kind=kind, is_output=at_home)

    def _part(self, share: CoreLayers, values: Mapping[str, Value], shared: set[str], home: set[str]) -> Graph:
        layers = tuple(self._graph.layers[place] for place in share.layers)
        touched = {view.value for layer in layers for view in (*layer.reads, layer.output)}
        return replace(
            self._graph,
            values={name: value for name, value in values.items() if name in touched},
            layers=layers,
            inputs=tuple(name for name in self._graph.inputs if name in touched),
            outputs=tuple(name for name in self._graph.outputs if name in home and name in touched),
            foreign=frozenset(name for name in touched if self._written.get(name, {}).keys() - {share.core}),
            shared=frozenset(shared) | (self._graph.shared & touched),
            setup=None,
        )


def setup_of(setup: Graph | None, names: Container[str]) -> Graph | None:
    """The part of a setup that makes the values of these names; None where it makes none of them."""
    if setup is None:
        return None
    outputs = tuple(name for name in setup.outputs if name in names)
    needed = set(outputs)
    layers = []
    for layer in reversed(setup.layers):
        if layer.output.value in needed:
            needed.update(view.value for view in layer.reads)
            layers.append(layer)
    if not layers:
        return None
    return replace(
        setup,
        values={name: value for name, value in setup.values.items() if name in needed},
        layers=tuple(replace(layer, index=index) for index, layer in enumerate(reversed(layers))),
        outputs=outputs,
    )


def _meet(region: Region, others: Iterable[Region]) -> bool:
    return any(not is_empty(intersection(region, other)) for other in others)


def _hull(regions: Iterable[Region]) -> Region:
    hull: Region = ()
    for region in regions:
        hull = tuple(union(one, other) for one, other in zip(hull, region, strict=True)) if hull else region
    return hull


def _together(parts: Sequence[Graph]) -> Graph:
    """All values and layers of a group; of a result that several cores compute there is one."""
    values: dict[str, Value] = {}
    for part in parts:
        values.update(part.values)
    return replace(
        parts[0],
        values=values,
        layers=tuple(layer for part in parts for layer in part.layers),
        inputs=tuple(dict.fromkeys(name for part in parts for name in part.inputs)),
        outputs=tuple(dict.fromkeys(name for part in parts for name in part.outputs)),
        foreign=frozenset().union(*(part.foreign for part in parts)),
        shared=frozenset().union(*(part.shared for part in parts)),
    )
