"""Chooses, by predicted time, how to split the layers of a network over the cores of a group (S2.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces, placeholders
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Planner
from device_agents.emulated_npu.compiler.prediction.split_times import SplitPredictor
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, core_speed, group_machines
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit, split_layer, unsplit
from device_agents.emulated_npu.compiler.splitting.split_axes import SPLIT_KINDS, CannotSplit
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Space

ONE, BEST = "one", "best"
"""Names of the candidate on one core, and of a network in which every layer has its best split."""


@dataclass(frozen=True)
class SplitCandidate:
    """One way to split a layer, and the predicted time of the layer by itself, from memory to memory."""

    split: LayerSplit
    predicted_ps: int

    @property
    def name(self) -> str:
        """The kind of split; ONE if all of the layer runs on one core."""
        return self.split.kind or ONE


@dataclass(frozen=True)
class LayerChoice:
    """The ways to split a layer, the fastest first by prediction, and the reasons against other kinds of split."""

    layer: HardwareLayer
    candidates: tuple[SplitCandidate, ...]
    refused: Mapping[str, str]

    @property
    def best(self) -> SplitCandidate:
        """The candidate that is predicted to be fastest."""
        return self.candidates[0]

    def of_kind(self, name: str) -> SplitCandidate | None:
        """Return the candidate of a kind, or of ONE; None if there is none."""
        return next((one for one in self.candidates if one.name == name), None)

    @property
    def fallback(self) -> SplitCandidate:
        """The replacement for a kind that the layer does not have: all of it on one core, if it fits there."""
        return self.of_kind(ONE) or self.best


def choose_splits(
    graph: Graph, machines: Sequence[Machine], options: Options = DEFAULT, *, layers: Sequence[int] | None = None
) -> tuple[LayerChoice, ...]:
    """Return the ways to split every layer of a graph, or those listed by index, over the cores of a group.

    The machines are those of the cores, with the group's share of the memories. A core gets as much of a layer as its
    unit is fast. Raises DoesNotFit for a layer that fits in no way.
    """
    predictor = SplitPredictor(machines, options)
    spaces = choose_spaces(graph, machines[0])
    wanted = range(len(graph.layers)) if layers is None else layers
    return tuple(_choice(graph.layers[place], graph, machines, predictor, spaces) for place in wanted)


def _choice(
    layer: HardwareLayer,
    graph: Graph,
    machines: Sequence[Machine],
    predictor: SplitPredictor,
    spaces: Mapping[str, Space],
) -> LayerChoice:
    found = [unsplit(layer)]
    refused: dict[str, str] = {}
    speeds = [core_speed(machine, layer.function) for machine in machines]
    for kind in SPLIT_KINDS if len(machines) > 1 else ():
        try:
            found.append(split_layer(layer, graph.values, kind, speeds))
        except CannotSplit as error:
            refused[kind] = error.why
    candidates: list[SplitCandidate] = []
    for split in found:
        own_spaces = choose_spaces(replace(graph, values=split.values), machines[0])
        try:
            candidates.append(SplitCandidate(split, predictor.predicted_ps(split, graph, {**spaces, **own_spaces})))
        except DoesNotFit as error:
            if split.kind is None and len(found) == 1:
                raise
            refused[split.kind or ONE] = f"{error.what}: {error.why}"
    if not candidates:
        raise DoesNotFit(f"{layer.name} does not fit on the cores in any way", "; ".join(refused.values()))
    return LayerChoice(layer, tuple(sorted(candidates, key=lambda one: one.predicted_ps)), refused)


def placed_ps(
    chosen: Sequence[SplitCandidate],
    graph: Graph,
    machines: Sequence[Machine],
    options: Options,
    spaces: Mapping[str, Space],
) -> int:
    """Return the predicted time of all layers of a graph, one after the other, with values where `spaces` has them.

    Candidates are predicted with every value in the cache that fits there by itself; together they may not fit. A value
    that nobody reads has no place in a program, and counts where it was expected.
    """
    predictor = SplitPredictor(machines, options)
    total_ps = 0
    for one, layer in zip(chosen, graph.layers, strict=True):
        values = {**graph.values, **one.split.values}
        expected = choose_spaces(replace(graph, values=values), machines[0])
        places = {**expected, **spaces}
        touched = [*one.split.values, *(view.value for view in (*layer.reads, layer.output))]
        moved = any(places[name] is not expected[name] for name in touched)
        total_ps += predictor.predicted_ps(one.split, graph, places) if moved else one.predicted_ps
    return total_ps


def chained_splits(
    choices: Sequence[LayerChoice], graph: Graph, machine: Machine, options: Options = DEFAULT
) -> Mapping[int, LayerSplit]:
    """Return by index the splits of a sequence of layers that are predicted to be fastest together.

    A split layer stores its output; layers that are not split may be chained with their neighbours.
    """
    layers = tuple(choice.layer for choice in choices)
    inside = {layer.index for layer in layers}
    outside = {view.value for layer in graph.layers if layer.index not in inside for view in layer.reads}
    part = replace(graph, layers=layers, shared=frozenset(outside))
    externals = placeholders(part, machine, choose_spaces(part, machine))
    planner = Planner(part, machine, options, externals)
    best: list[tuple[int, Mapping[int, LayerSplit]]] = [(0, {})]
    for end, choice in enumerate(choices, 1):
        before_ps, before = best[end - 1]
        found_ps, found = before_ps + choice.best.predicted_ps, {**before, choice.layer.index: choice.best.split}
        for start in planner.starts(end):
            chain_ps = planner.estimated_ps(start, end)
            if chain_ps is not None and best[start][0] + chain_ps < found_ps:
                found_ps, found = best[start][0] + chain_ps, dict(best[start][1])
        best.append((found_ps, found))
    return best[-1][1]


def predicted_splits(
    graph: Graph, machine: Machine, assignment: Assignment, options: Options
) -> Mapping[int, LayerSplit]:
    """Return by index the splits that are predicted to be fastest, for the layers of groups of several cores.

    Raises DoesNotFit for a layer that fits on its group in no way.
    """
    found: dict[int, LayerSplit] = {}
    machines = group_machines(machine, [group.cores for group in assignment.groups])
    for group, own in zip(assignment.groups, machines, strict=True):
        if len(group.cores) > 1:
            choices = choose_splits(graph, own, options, layers=group.layers)
            found.update(chained_splits(choices, graph, own[0], options))
    return found
