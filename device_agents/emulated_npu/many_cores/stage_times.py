"""Predicted times of the stages of a pipeline, for groups of any number of cores (S5.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.compiler.splitting.assignment import group_machines
from device_agents.emulated_npu.compiler.stages import WeightPolicy
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes
from device_agents.emulated_npu.partition.balanced import ResidentTimes, StageTimes
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.traversal import Traversal


class StagePredictor:
    """Predicts the stages of a network on groups of a machine; groups of the same kind are predicted once.

    On one core a node takes its share of the core's run; `nodes` should come from a run on the `contended` machine. On
    several cores a layer takes the predicted time of its best split on the group, or its share of the run on one core
    if that is less: chains exist only on one core. Predictions assume that weights stay in SB only on groups of one
    core. `of_kinds` has nodes from runs on cores of other kinds, by `Machine.of_core`.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        options: Options,
        nodes: NetworkNodes,
        weights: WeightPolicy,
        of_kinds: Mapping[Machine, NetworkNodes] = MappingProxyType({}),
    ) -> None:
        self._graph, self._machine, self._options, self._nodes = graph, machine, options, nodes
        self._weights, self._of_kinds = weights, of_kinds
        self._known: dict[tuple[int, Machine], tuple[float, ...]] = {}

    def times(
        self, traversal: Traversal, groups: Sequence[CoreGroup], factors: Sequence[float] | None = None
    ) -> StageTimes:
        """Return stage times in picoseconds, with the time of each node multiplied by its factor.

        Data cross the end of a stage over the link to the next group, within a chip or between chips. Raises DoesNotFit
        for a layer that fits on a group in no way.
        """
        cores, nodes = self._machine.cores, self._nodes
        links = (
            cores.link if group.chip == following.chip else cores.chip_link for group, following in pairwise(groups)
        )
        per_byte = (*(PS_PER_S / link.bytes_per_s for link in links), 0.0)
        by = [1.0] * len(nodes.layers) if factors is None else factors

        def ordered(times: Sequence[float]) -> tuple[float, ...]:
            return tuple(times[node] * by[node] for node in traversal.order)

        machines = [own[0] for own in group_machines(self._machine, [group.cores for group in groups])]
        own_nodes = [self._of_kinds.get(self._machine.of_core(group.cores[0]), nodes) for group in groups]
        kinds = [(len(group.cores), own) for group, own in zip(groups, machines, strict=True)]
        resident = None
        if self._weights == "resident":
            resident = ResidentTimes(
                tuple(ordered(each.resident_ps) for each in own_nodes),
                tuple(nodes.weight_bytes[node] for node in traversal.order),
                tuple(own.sb_bytes if count == 1 and not own.shared_buffer else 0 for count, own in kinds),
            )
        node_times = tuple(ordered(self._on(each, *kind)) for each, kind in zip(own_nodes, kinds, strict=True))
        return StageTimes(node_times, nodes.graph.cut_bytes(traversal.order), per_byte, resident)

    def _on(self, nodes: NetworkNodes, cores: int, machine: Machine) -> tuple[float, ...]:
        key = cores, machine
        if key not in self._known:
            alone = tuple(map(float, nodes.times_ps))
            self._known[key] = alone if cores == 1 else tuple(map(min, alone, self._split(cores, machine)))
        return self._known[key]

    def _split(self, cores: int, machine: Machine) -> list[float]:
        choices = choose_splits(self._graph, [machine] * cores, self._options)
        return [float(sum(choices[layer].best.predicted_ps for layer in layers)) for layers in self._nodes.layers]
