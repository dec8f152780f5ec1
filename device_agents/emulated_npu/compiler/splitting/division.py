"""The splitting stage: from a graph to the part that each core group and each core runs (S5.7)."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, Value
from device_agents.emulated_npu.compiler.graph.regions import Region, hull, overlap, whole
from device_agents.emulated_npu.compiler.splitting.assignment import (
    Assignment,
    group_machines,
    group_names,
    stage_numbers,
)
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit, split_graph
from device_agents.emulated_npu.machine import Machine

NO_SPLITS: Mapping[int, LayerSplit] = MappingProxyType({})


@dataclass(frozen=True)
class Crossing:
    """A value that the core `writer` computes, at least in part, and that `cores` of a group read.

    `region` covers all that they read of the value, including parts that other cores compute.
    """

    value: str
    writer: int
    group: int
    cores: tuple[int, ...]
    region: Region


@dataclass(frozen=True)
class GroupGraph:
    """What one core group runs: one graph for each core, and one graph of all that the memory of the group holds.

    `machines` are those of the cores, with the group's share of the memories. `stage` is the position in the pipeline.
    `depth` is the number of inputs for which the group holds what it receives: one more than the most stages that a
    value passes on its way here. `slots` has this number for each value that other groups send. `graph` has the setup
    of the group.
    """

    name: str
    cores: tuple[int, ...]
    machines: tuple[Machine, ...]
    stage: int
    depth: int
    graph: Graph
    parts: tuple[Graph, ...]
    slots: Mapping[str, int]

    @property
    def machine(self) -> Machine:
        """The machine of the first core; what all cores share is in each of them."""
        return self.machines[0]


@dataclass(frozen=True)
class Division:
    """A graph divided among core groups, in the order of the groups, and the values that cross between cores.

    The layers of `graph` are slices where the cores of a group share a layer. For every slice, `origins` is the index
    of its layer, and `phases` the step of its group: within a step cores read nothing of each other.
    """

    graph: Graph
    origins: tuple[int, ...]
    phases: tuple[int, ...]
    groups: tuple[GroupGraph, ...]
    crossings: tuple[Crossing, ...]


def divide(
    graph: Graph, machine: Machine, assignment: Assignment | None = None, splits: Mapping[int, LayerSplit] = NO_SPLITS
) -> Division:
    """Divide a graph among the core groups of an assignment; without one, core 0 runs the graph as it is.

    Requires: `splits` by the index of the layer, for as many cores as its group has. Layers without a split run on the
    first core of their group.
    Ensures: every layer or slice is in the graph of one core; every value that another core reads is a crossing; the
    stages of the groups increase along the data flow.
    """
    if assignment is None:
        count = len(graph.layers)
        core = GroupGraph("The network", (0,), (machine,), 0, 1, graph, (graph,), {})
        return Division(graph, tuple(range(count)), (0,) * count, (core,), ())
    return _Divider(graph, machine, assignment, splits).division()


def shared_layers(graph: Graph, machine: Machine, cores: int) -> Set[int]:
    """Return by index the layers whose transfers the memories delay for other cores.

    They are slices of layers and, where several cores load in step because of multicast, all.
    """
    in_step = machine.cores.multicast and cores > 1
    return {layer.index for layer in graph.layers} if in_step else graph.sliced


class _Divider:
    """Divides a graph into slices; collects the regions of every value that each core writes and reads.

    `_groups` has for each group the slices of every core, in the order in which they run; an idle core has none.
    """

    def __init__(
        self, graph: Graph, machine: Machine, assignment: Assignment, splits: Mapping[int, LayerSplit]
    ) -> None:
        split = split_graph(graph, splits)
        self._origins, self._phases = split.origins, [0] * len(split.origins)
        # A pass of a chain over several slices could wait for what another core computes from later passes.
        sliced = (place for place, origin in enumerate(split.origins) if origin in splits and splits[origin].kind)
        self._graph = replace(split.graph, sliced=frozenset(sliced))
        self._names, cores = group_names(assignment), [group.cores for group in assignment.groups]
        self._machines = group_machines(machine, cores)
        self._group_of = {core: number for number, group in enumerate(cores) for core in group}
        self._groups: list[dict[int, list[int]]] = []
        for group in assignment.groups:
            own: dict[int, list[int]] = {core: [] for core in group.cores}
            steps: dict[int, int] = {}
            for place in (place for layer in group.layers for place in split.slices[layer]):
                own[group.cores[split.cores[place]]].append(place)
                self._phases[place] = steps.setdefault(split.phases[place], len(steps))
            self._groups.append(own)
        # Regions by value and core, each once.
        self._written: dict[str, dict[int, dict[Region, None]]] = {}
        self._read: dict[str, dict[int, dict[Region, None]]] = {}
        for core, places in itertools.chain.from_iterable(group.items() for group in self._groups):
            for layer in (self._graph.layers[place] for place in places):
                for table, views in ((self._written, (layer.output,)), (self._read, layer.reads)):
                    for view in views:
                        regions = table.setdefault(view.value, {}).setdefault(core, {})
                        regions[view.value_region] = None

    def division(self) -> Division:
        """Return the graphs of all groups and what crosses between cores."""
        crossings = {name: tuple(self._crossings(name)) for name in self._written}
        homes = self._homes(self._numbers(crossings))
        for name, core in homes.items():
            # The home of an output receives the parts that other cores compute.
            regions = self._read.setdefault(name, {}).setdefault(core, {})
            regions[whole(self._graph.values[name].shape)] = None
            crossings[name] = tuple(self._crossings(name))
        numbers = self._numbers(crossings)
        found = tuple(itertools.chain.from_iterable(crossings.values()))
        groups = tuple(self._group(index, numbers, found, homes) for index in range(len(self._groups)))
        return Division(self._graph, self._origins, tuple(self._phases), groups, found)

    def _crossings(self, name: str) -> Iterable[Crossing]:
        read = self._read.get(name, {})
        for writer, written in self._written[name].items():
            for number, group in enumerate(self._groups):
                needed = {
                    core: [region for region in read.get(core, ()) if any(overlap(region, one) for one in written)]
                    for core in group
                    if core != writer
                }
                readers = tuple(core for core, regions in needed.items() if regions)
                if readers:
                    read_part = hull(itertools.chain.from_iterable(needed.values()))
                    yield Crossing(name, writer, number, readers, read_part)

    def _numbers(self, crossings: Mapping[str, Sequence[Crossing]]) -> tuple[int, ...]:
        edges = {(self._group_of[one.writer], one.group) for several in crossings.values() for one in several}
        return stage_numbers(len(self._groups), edges)

    def _homes(self, numbers: Sequence[int]) -> dict[str, int]:
        """Return for every output of the network a core of the last stage that computes some of it."""
        homes = {}
        for name in self._graph.outputs:
            writers = self._written.get(name, {})
            if writers:
                homes[name] = max(writers, key=lambda core: (numbers[self._group_of[core]], self._group_of[core], core))
        return homes

    def _group(
        self, index: int, numbers: Sequence[int], crossings: Sequence[Crossing], homes: Mapping[str, int]
    ) -> GroupGraph:
        arriving = [one for one in crossings if one.group == index]
        foreign = [one for one in arriving if self._group_of[one.writer] != index]
        depth = 1 + max((numbers[index] - numbers[self._group_of[one.writer]] for one in foreign), default=0)
        received = {one.value for one in arriving}
        home = {name for name, core in homes.items() if self._group_of[core] == index}
        values = {
            name: self._as_here(value, name in received, name in home) for name, value in self._graph.values.items()
        }
        shared: dict[int, set[str]] = {}
        for one in crossings:
            shared.setdefault(one.writer, set()).add(one.value)
        parts = tuple(self._part(core, values, shared.get(core, set()), home) for core in self._groups[index])
        graph = _together(parts)
        return GroupGraph(
            name=self._names[index],
            cores=tuple(self._groups[index]),
            machines=self._machines[index],
            stage=numbers[index],
            depth=depth,
            graph=replace(graph, setup=setup_of(self._graph.setup, graph.values)),
            parts=parts,
            slots={one.value: depth for one in foreign},
        )

    @staticmethod
    def _as_here(value: Value, received: bool, at_home: bool) -> Value:
        """Return the value as the group has it: outputs of the network are whole only at their home."""
        kind = "received" if received and value.kind == "activation" else value.kind
        if (kind, at_home) == (value.kind, value.is_output):
            return value
        return replace(value, kind=kind, is_output=at_home)

    def _part(self, core: int, values: Mapping[str, Value], shared: set[str], home: set[str]) -> Graph:
        layers = tuple(self._graph.layers[place] for place in self._groups[self._group_of[core]][core])
        touched = {view.value for layer in layers for view in (*layer.reads, layer.output)}
        return replace(
            self._graph,
            values={name: value for name, value in values.items() if name in touched},
            layers=layers,
            inputs=tuple(name for name in self._graph.inputs if name in touched),
            outputs=tuple(name for name in self._graph.outputs if name in home and name in touched),
            foreign=frozenset(name for name in touched if self._written.get(name, {}).keys() - {core}),
            shared=frozenset(shared) | (self._graph.shared & touched),
            setup=None,
        )


def setup_of(setup: Graph | None, names: Container[str]) -> Graph | None:
    """Return the part of a setup that computes the values of these names; None if it computes none of them."""
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


def _together(parts: Sequence[Graph]) -> Graph:
    """Return the graph of all values and layers of a group."""
    return replace(
        parts[0],
        values={name: value for part in parts for name, value in part.values.items()},
        layers=tuple(layer for part in parts for layer in part.layers),
        inputs=tuple(dict.fromkeys(name for part in parts for name in part.inputs)),
        outputs=tuple(dict.fromkeys(name for part in parts for name in part.outputs)),
        foreign=frozenset().union(*(part.foreign for part in parts)),
        shared=frozenset().union(*(part.shared for part in parts)),
    )
