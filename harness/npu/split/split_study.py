"""Compares predicted times of splits with times of their programs, event by event (S2.7)."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces
from device_agents.emulated_npu.compiler.prediction.split_choice import (
    BEST,
    ONE,
    LayerChoice,
    SplitCandidate,
    choose_splits,
    placed_ps,
    slice_key,
)
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment, fastest_first
from device_agents.emulated_npu.compiler.splitting.layer_split import SPLIT_KINDS, LayerSplit
from device_agents.emulated_npu.compiler.stages import compile_graph, compile_system
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.system_runs import core_steps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from harness.errors import UsageError
from harness.measure.progress import DONE, Observer, begin, ignore, steps_of
from harness.npu.compiling_effort import tiling_effort
from harness.npu.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import SplitOptions
from harness.text import counted

CHAINED = "one, chained"
_NETWORKS, _CHAINS = "timing networks", "timing the network in chains"
_EACH = 4000.0
"""The effort that each candidate takes, however short it is: that of the instructions of 16 us. Measured on DS-CNN and
ShuffleNet, between 1,800 and 6,400."""
CLOSE = 0.03
"""A split within this of the true best counts as well chosen."""
_NAMED = 5


@dataclass(frozen=True)
class StudiedLayer:
    """The choice for one layer; `true_ps` has the time of each candidate by name, and is empty if nothing was run."""

    choice: LayerChoice
    true_ps: Mapping[str, int]

    @property
    def true_best(self) -> str:
        """The fastest candidate; of equally fast ones, the one that was predicted to be faster."""
        return min((one.name for one in self.choice.candidates), key=lambda name: self.true_ps[name])

    @property
    def excess(self) -> float:
        """The fraction by which the predicted best takes longer than the true best."""
        return self.true_ps[self.choice.best.name] / self.true_ps[self.true_best] - 1

    @property
    def tau(self) -> float | None:
        """Rank agreement of the candidates' predicted and true times; None if there are not two to rank."""
        predicted = [one.predicted_ps for one in self.choice.candidates]
        return kendall_tau_b(predicted, [self.true_ps[one.name] for one in self.choice.candidates])


@dataclass(frozen=True)
class StudiedNetwork:
    """The network with every layer split by the kind `name` if possible, or by its predicted best for BEST.

    `predicted_ps` is the sum over the layers, with values where the program has them. `true_ps` is None if nothing was
    run. `split_layers` counts split layers.
    """

    name: str
    predicted_ps: int
    true_ps: int | None
    split_layers: int


@dataclass(frozen=True)
class SplitStudy:
    """The studied layers, and whole networks split in one way; `networks` is empty for a study of some layers.

    `chained` is the network on one core with chains of layers, which is what one core does at its best; None for a
    study of some layers.
    """

    cores: int
    layers: tuple[StudiedLayer, ...]
    networks: tuple[StudiedNetwork, ...]
    chained: StudiedNetwork | None = None

    @property
    def one_core_wins(self) -> bool:
        """Whether one core with chains is as fast as the best way to split the network."""
        if self.chained is None or not self.networks:
            return False
        return time_ps(self.chained) <= min(map(time_ps, self.networks))

    @property
    def well_chosen(self) -> float:
        """The fraction of layers whose predicted best is the true best, or within CLOSE of it."""
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
    observe: Observer = ignore,
) -> SplitStudy:
    """Predict all splits over the first `cores` cores of a chip, and run them if `verify` is true.

    Cores of several kinds share a layer by their speed; a layer that is not split runs on the fastest of them.
    `layers` lists the indices of layers to study without the network; equal layers are run once. Every layer is a
    chain, so that the times of the layers add up to that of the network. Raises DoesNotFit.
    """
    at_best, options = options, replace(options, chains="layers")
    machines = [machine.of_core(core) for core in fastest_first(machine, range(cores))]
    wanted = graph.layers if layers is None else [graph.layers[at] for at in layers]
    begin(observe, "predicting splits", tiling_effort(wanted, machines[0]))
    choices = choose_splits(graph, machines, options, layers=layers)
    spaces = choose_spaces(graph, machine)
    keys = [slice_key(choice.layer, graph.values, spaces) for choice in choices]
    unlike: dict[object, LayerChoice] = {}
    for key, choice in zip(keys, choices, strict=True):
        unlike.setdefault(key, choice)
    known: dict[object, Mapping[str, int]] = {}
    ways = _ways(choices) if layers is None else {}
    efforts = [_effort(choice.candidates) for choice in unlike.values()]
    efforts_of_ways = [_effort(chosen) for chosen in ways.values()]
    ahead = {_NETWORKS: sum(efforts_of_ways), _CHAINS: efforts_of_ways[0] if ways else 0.0}
    step = steps_of(observe, "timing layers", efforts, effort=sum(efforts), ahead=ahead)
    for number, (key, choice) in enumerate(unlike.items() if verify else ()):
        step(number, len(unlike))
        known[key] = {
            one.name: layer_ps(choice.layer, one.split, graph, machine, cores, options) for one in choice.candidates
        }
    studied = tuple(StudiedLayer(choice, known.get(key, {})) for key, choice in zip(keys, choices, strict=True))
    if layers is not None:
        return SplitStudy(cores, studied, ())
    networks, step = [], steps_of(observe, _NETWORKS, efforts_of_ways, effort=ahead[_NETWORKS])
    for number, (name, chosen) in enumerate(ways.items()):
        step(number, len(ways))
        networks.append(_network(name, chosen, graph, machine, machines, options, verify))
    begin(observe, _CHAINS, ahead[_CHAINS])
    return SplitStudy(cores, studied, tuple(networks), _chained(graph, machines[0], at_best, verify))


def time_ps(network: StudiedNetwork) -> int:
    """Return the time of a network as it ran, or as predicted if nothing was run."""
    return network.predicted_ps if network.true_ps is None else network.true_ps


def _chained(graph: Graph, machine: Machine, options: Options, verify: bool) -> StudiedNetwork:
    """Return the network on one core, with chains where the compiler finds them faster."""
    compiled = compile_graph(graph, machine, options)
    predicted_ps = sum(decision.chosen.predicted_ps for decision in compiled.decisions)
    true_ps = time_program(compiled.program, machine).timing.makespan_ps if verify else None
    return StudiedNetwork(CHAINED, predicted_ps, true_ps, 0)


def _effort(candidates: Sequence[SplitCandidate]) -> float:
    """Return about how long it takes to time candidates: a layer of long instructions has few of them."""
    return sum(_EACH + math.sqrt(one.predicted_ps) for one in candidates)


def _ways(choices: Sequence[LayerChoice]) -> Mapping[str, Sequence[SplitCandidate]]:
    """Return the ways to split the network: one core, each kind that splits any layer, and the best split of each."""
    ways = {kind: [choice.of_kind(kind) or choice.fallback for choice in choices] for kind in (ONE, *SPLIT_KINDS)}
    ways[BEST] = [choice.best for choice in choices]
    return {name: chosen for name, chosen in ways.items() if name in (ONE, BEST) or _count(chosen)}


def _count(chosen: Sequence[SplitCandidate]) -> int:
    return sum(one.split.kind is not None for one in chosen)


def _network(
    name: str,
    chosen: Sequence[SplitCandidate],
    graph: Graph,
    machine: Machine,
    machines: Sequence[Machine],
    options: Options,
    verify: bool,
) -> StudiedNetwork:
    splits = {at: one.split for at, one in enumerate(chosen)}
    compiled = _compiled(graph, splits, machine, len(machines), options)
    predicted_ps = placed_ps(chosen, graph, machines, options, compiled.groups[0].spaces)
    return StudiedNetwork(name, predicted_ps, _time_ps(compiled) if verify else None, _count(chosen))


def layer_ps(
    layer: HardwareLayer, split: LayerSplit, graph: Graph, machine: Machine, cores: int, options: Options = DEFAULT
) -> int:
    """Return the time of a single layer, split over `cores` cores, from memory to memory; raises DoesNotFit."""
    return network_ps(_alone(layer, graph), {0: split}, machine, cores, options)


def network_ps(
    graph: Graph, splits: Mapping[int, LayerSplit], machine: Machine, cores: int, options: Options = DEFAULT
) -> int:
    """Return the time of a network for one input, its layers split over a group of cores; raises DoesNotFit.

    `splits` has the split of each layer by index.
    """
    return _time_ps(_compiled(graph, splits, machine, cores, options))


def _compiled(
    graph: Graph, splits: Mapping[int, LayerSplit], machine: Machine, cores: int, options: Options
) -> CompiledSystem:
    group = GroupAssignment(fastest_first(machine, range(cores)), tuple(range(len(graph.layers))))
    return compile_system(graph, machine, Assignment((group,)), options, splits=splits)


def _time_ps(compiled: CompiledSystem) -> int:
    return simulate_cores(core_steps(compiled), compiled.machine, inputs=1, depths={0: 1}).makespan_ps


def _alone(layer: HardwareLayer, graph: Graph) -> Graph:
    """Return a layer as a graph: its inputs are in memory, and another core reads its output."""
    touched = {view.value for view in (*layer.reads, layer.output)}
    name = layer.output.value
    values = {each: graph.values[each] for each in touched}
    if not values[name].is_output:
        values[name] = replace(values[name], kind="received")
    return replace(
        graph,
        values=values,
        layers=(replace(layer, index=0),),
        inputs=tuple(each for each in graph.inputs if each in touched),
        outputs=tuple(each for each in graph.outputs if each == name),
        shared=frozenset({name}),
    )


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b, (concordant - discordant) / sqrt(untied in first x untied in second).

    None if either sequence has no two different values.
    """
    one, other = (np.sign(np.subtract.outer(values, values)) for values in map(np.asarray, (first, second)))
    untied = math.sqrt(float((one**2).sum()) * float((other**2).sum()))
    return float((one * other).sum()) / untied if untied else None


@dataclass(frozen=True)
class SplitComparison:
    """The splits of a network on a machine; `verified` is True if they were run, not only predicted."""

    network: str
    machine: Machine
    study: SplitStudy
    operators: tuple[str, ...]
    verified: bool

    def cycles(self, ps: int) -> float:
        """Return picoseconds as cycles of the machine."""
        return ps * self.machine.clock_hz / PS_PER_S


def check_cores(cores: int, machine: Machine) -> None:
    """Raise UsageError for a number of cores that a chip of the machine does not have."""
    limit = machine.cores.per_chip
    if not 1 <= cores <= limit:
        where = f"{machine.name} has {counted(limit, 'core')}{' a chip' if machine.cores.chips > 1 else ''}"
        several = "Choose a machine with several cores a chip, such as the preset edge"
        step = f"Choose from 1 to {limit}" if limit > 1 else several
        raise UsageError(f"--cores {cores} is not possible", why=where, next_step=step)


def compare_splits(
    model: NetworkModel, machine: Machine, compiler: Options, options: SplitOptions, observe: Observer = ignore
) -> SplitComparison:
    """Compare the splits of a network, or of some of its layers; `observe` receives the progress.

    Raises UsageError for an unknown layer, InputError if something does not fit, and HarnessError, a bug, if a
    compiled program cannot run.
    """
    with errors_of_user():
        compiler.check()
        graph = import_model(model.content, machine.of_core(0).mfu.columns)
        indices = [_layer_index(name, graph) for name in options.layer]
    with errors_of_compiler(), errors_of_forced_choices(compiler):
        study = study_splits(
            graph, machine, options.cores, compiler, layers=indices or None, verify=options.verify, observe=observe
        )
    observe(DONE)
    operators = tuple(model.operators_of(each.choice.layer) for each in study.layers)
    return SplitComparison(model.name, machine, study, operators, options.verify)


def _layer_index(name: str, graph: Graph) -> int:
    for layer in graph.layers:
        if name == layer.name or name in layer.nodes:
            return layer.index
    names = [layer.name for layer in graph.layers]
    shown = difflib.get_close_matches(name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
    why = f"Layers are {', '.join(shown)}, … ({len(names)})"
    raise UsageError(f"There is no layer {name}", why=why, next_step="Name one of them, or omit --layer")
