"""How the cores of each group share the work of its layers (S2.7, S5.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, Layer
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit, SplitGraph, split_graph, unsplit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.assignment import Assignment
from device_agents.emulated_npu.many_cores.sharing import group_machines
from device_agents.emulated_npu.many_cores.split_choice import chained_splits, choose_splits
from device_agents.emulated_npu.many_cores.stages import Share


@dataclass(frozen=True)
class SharedOut:
    """A network whose layers are split over the cores of their groups.

    `groups` are the layers of each core, by their place in the graph of slices; a core that has nothing to do has none.
    `phases` are for every slice the step of its group that it belongs to: within one, cores read nothing of each other.
    """

    split: SplitGraph
    groups: tuple[tuple[Share, ...], ...]
    phases: tuple[int, ...]

    @property
    def graph(self) -> Graph:
        """The graph of slices."""
        return self.split.graph


def predicted_splits(
    graph: Graph, machine: Machine, assignment: Assignment, options: Options
) -> Mapping[int, LayerSplit]:
    """The splits that are predicted to be fastest, for the layers of groups of several cores, by index.

    Layers that are not split may be chained, which counts. Raises DoesNotFit for a layer that fits on its group in no
    way.
    """
    found: dict[int, LayerSplit] = {}
    machines = group_machines(machine, [group.cores for group in assignment.groups])
    for group, own in zip(assignment.groups, machines, strict=True):
        if len(group.cores) > 1:
            choices = choose_splits(graph, own, len(group.cores), options, layers=group.layers)
            found.update(chained_splits(choices, graph, own, options))
    return found


def share_out(graph: Graph, assignment: Assignment, splits: Mapping[int, LayerSplit]) -> SharedOut:
    """Every layer on the cores of its group, split as given by its index, or all of it on the first core."""

    def choose(layer: Layer) -> LayerSplit:
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
        groups.append(tuple(Share(core, tuple(layers)) for core, layers in zip(group.cores, own, strict=True)))
    split = replace(split, graph=replace(split.graph, alone=_slices(split, splits)))
    return SharedOut(split, tuple(groups), tuple(phases))


def _slices(split: SplitGraph, splits: Mapping[int, LayerSplit]) -> frozenset[int]:
    """The layers that are parts of split ones: each is a chain.

    A chain over several could wait, in a pass, for what another core makes of its later passes.
    """
    kinds = {layer: one.kind for layer, one in splits.items()}
    return frozenset(place for place, origin in enumerate(split.origins) if kinds.get(origin) is not None)
