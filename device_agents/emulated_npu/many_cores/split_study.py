"""Splits as predicted by the formula beside what they take event by event, and how well the two agree (S2.7)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.planning.external_memory import choose_spaces
from device_agents.emulated_npu.compiler.prediction.split_choice import BEST, ONE, LayerChoice, choose_splits
from device_agents.emulated_npu.compiler.prediction.split_times import slice_key
from device_agents.emulated_npu.compiler.splitting.layer_split import LayerSplit
from device_agents.emulated_npu.compiler.splitting.split_axes import SPLIT_KINDS
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.split_verification import layer_ps, network_ps

CLOSE = 0.03
"""A split within this of the true best counts as well chosen."""


@dataclass(frozen=True)
class StudiedLayer:
    """The choice for one layer; `true_ps` is what each candidate takes, by name, and empty where nothing was run."""

    choice: LayerChoice
    true_ps: Mapping[str, int]

    @property
    def true_best(self) -> str:
        """The candidate that takes least; of equally fast ones that which was predicted to be faster."""
        return min((one.name for one in self.choice.candidates), key=lambda name: self.true_ps[name])

    @property
    def excess(self) -> float:
        """By which fraction the predicted best takes longer than the true best."""
        return self.true_ps[self.choice.best.name] / self.true_ps[self.true_best] - 1

    @property
    def tau(self) -> float | None:
        """Rank agreement of the candidates' predicted and true times; None where there are no two to rank."""
        predicted = [one.predicted_ps for one in self.choice.candidates]
        return kendall_tau_b(predicted, [self.true_ps[one.name] for one in self.choice.candidates])


@dataclass(frozen=True)
class StudiedNetwork:
    """The network with every layer split by `name` where it can be, or by what is predicted best for each.

    `predicted_ps` is the sum over the layers. `true_ps` is None where nothing was run. `split_layers` are split at all.
    """

    name: str
    predicted_ps: int
    true_ps: int | None
    split_layers: int


@dataclass(frozen=True)
class SplitStudy:
    """Layers and ways to split all of them; without `networks` where some layers alone were asked for."""

    cores: int
    layers: tuple[StudiedLayer, ...]
    networks: tuple[StudiedNetwork, ...]

    @property
    def well_chosen(self) -> float:
        """The part of the layers whose predicted best is the true best, or within CLOSE of it."""
        return sum(layer.excess <= CLOSE for layer in self.layers) / len(self.layers)

    @property
    def layer_tau(self) -> float | None:
        """The mean rank agreement of the layers that have several candidates."""
        found = [tau for tau in (layer.tau for layer in self.layers) if tau is not None]
        return math.fsum(found) / len(found) if found else None

    @property
    def network_tau(self) -> float | None:
        """Rank agreement of the ways to split the whole network."""
        known = [(one.predicted_ps, one.true_ps) for one in self.networks if one.true_ps is not None]
        return kendall_tau_b([predicted for predicted, _ in known], [true for _, true in known])


def study_splits(
    graph: Graph,
    machine: Machine,
    cores: int,
    options: Options = DEFAULT,
    *,
    layers: Sequence[int] | None = None,
    verify: bool = True,
) -> SplitStudy:
    """Predicts all splits over so many cores of a chip, and runs them unless `verify` is false.

    `layers` are indices of those to study, without the network; equal layers are run once. Every layer is a chain, so
    that the times of the layers add up to that of the network. Raises DoesNotFit.
    """
    options = replace(options, chains="layers")
    choices = choose_splits(graph, machine, cores, options, layers=layers)
    spaces = choose_spaces(graph, machine)
    known: dict[object, Mapping[str, int]] = {}
    studied = []
    for choice in choices:
        key = slice_key(choice.layer, graph.values, spaces)
        if verify and key not in known:
            known[key] = {
                one.name: layer_ps(choice.layer, one.split, graph, machine, cores, options) for one in choice.candidates
            }
        studied.append(StudiedLayer(choice, known.get(key, {})))
    networks = () if layers is not None else tuple(_networks(choices, graph, machine, cores, options, verify))
    return SplitStudy(cores, tuple(studied), networks)


def _networks(
    choices: Sequence[LayerChoice], graph: Graph, machine: Machine, cores: int, options: Options, verify: bool
) -> list[StudiedNetwork]:
    found = []
    for name in (ONE, *SPLIT_KINDS, BEST):
        chosen = [choice.best if name == BEST else (choice.of_kind(name) or choice.fallback) for choice in choices]
        count = sum(one.split.kind is not None for one in chosen)
        if count == 0 and name not in (ONE, BEST):  # nothing can be split so
            continue
        splits: dict[int, LayerSplit] = {
            choice.layer.index: one.split for choice, one in zip(choices, chosen, strict=True)
        }
        true_ps = network_ps(graph, splits, machine, cores, options) if verify else None
        found.append(StudiedNetwork(name, sum(one.predicted_ps for one in chosen), true_ps, count))
    return found


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's rank correlation with ties, (concordant - discordant) / sqrt(untied in first x untied in second).

    None where either has no two different values.
    """
    agreement = untied_first = untied_second = 0
    for (a, b), (c, d) in itertools.combinations(zip(first, second, strict=True), 2):
        one, other = (a > c) - (a < c), (b > d) - (b < d)
        agreement += one * other
        untied_first += one != 0
        untied_second += other != 0
    if not untied_first or not untied_second:
        return None
    return agreement / math.sqrt(untied_first * untied_second)
