"""Distributes the layers of each group, and the slices of split layers, to its cores (S2.7, S5.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit, split_graph, unsplit


@dataclass(frozen=True)
class CoreLayers:
    """The layers that one core computes, by their place in the graph, in the order in which they run."""

    core: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class SlicedNetwork:
    """A network whose layers are split over the cores of their groups.

    `graph` consists of slices; `origins` has the index of the layer that each is a part of. `groups` lists the slices
    of each core; an idle core has none. `phases` has the step of its group for every slice: within a step, cores read
    nothing of each other.
    """

    graph: Graph
    origins: tuple[int, ...]
    phases: tuple[int, ...]
    groups: tuple[tuple[CoreLayers, ...], ...]


def share_out(graph: Graph, assignment: Assignment, splits: Mapping[int, LayerSplit]) -> SlicedNetwork:
    """Distribute every layer to the cores of its group: split as `splits` has it by index, or on the first core."""

    def choose(layer: HardwareLayer) -> LayerSplit:
        return splits.get(layer.index) or unsplit(layer)

    split = split_graph(graph, choose)
    slices: dict[int, list[int]] = {}
    for place, origin in enumerate(split.origins):
        slices.setdefault(origin, []).append(place)
    groups = []
    phases = [0] * len(split.origins)
    for group in assignment.groups:
        own: list[list[int]] = [[] for _ in group.cores]
        steps: dict[int, int] = {}
        for layer in group.layers:
            for place in slices[layer]:
                own[split.cores[place]].append(place)
                phases[place] = steps.setdefault(split.phases[place], len(steps))
        groups.append(tuple(CoreLayers(core, tuple(layers)) for core, layers in zip(group.cores, own, strict=True)))
    # A pass of a chain over several slices could wait for what another core computes from later passes of this chain.
    kinds = {layer: one.kind for layer, one in splits.items()}
    alone = frozenset(place for place, origin in enumerate(split.origins) if kinds.get(origin) is not None)
    return SlicedNetwork(replace(split.graph, alone=alone), split.origins, tuple(phases), tuple(groups))
