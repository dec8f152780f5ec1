"""Splits over the cores of a group keep the values, and the compiler chooses them by predicted time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings, strategies as st
from networks_on_npu import network_of
from random_networks import WINDOWS, machines_for, random_networks
from small_models import imported, model, node, values
from splittable_network import splittable_network
from systems_of_cores import checked_run, with_cores

from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces
from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.splitting.layer_split import SPLIT_KINDS, CannotSplit, LayerSplit, split_layer
from device_agents.emulated_npu.compiler.stages import compile_system
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.execution.stream_execution import GroupProgram, run_stream
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.machine.description import CoreKind
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Space
from harness.npu.split.split_study import layer_ps


def _drawn_splits(draw: Callable[..., Any], graph: Graph, sizes: Mapping[int, int]) -> dict[int, LayerSplit]:
    """Draw a kind of split for each layer, or none; `sizes` has the number of cores of the layer's group."""

    def shares(cores: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(1, 4), min_size=2, max_size=cores)

    found = {}
    for layer in graph.layers:
        kind, cores = draw(st.sampled_from((*SPLIT_KINDS, None))), sizes[layer.index]
        try:
            if kind is not None and cores > 1:
                found[layer.index] = split_layer(layer, graph.values, kind, draw(shares(cores)))
        except CannotSplit:
            event(f"no {kind}")
    return found


@given(st.data())
@settings(max_examples=8)
def test_split_networks_compute_what_one_core_does(data: st.DataObject) -> None:
    """With any splits, one or two groups of equal or different cores compute the values of one core, in any order."""
    network = data.draw(random_networks(*data.draw(st.sampled_from((((WINDOWS, 5, 16)), ((WINDOWS, 9, 8)))))))
    graph = import_model(network.model)
    machine = with_cores(data.draw(machines_for(network)), 8)
    if data.draw(st.booleans()):
        other = replace(data.draw(machines_for(network)), llc=machine.llc, cores=machine.cores)
        machine = replace(machine, kinds=(CoreKind(1, 2, other),))
    end, count = data.draw(st.integers(0, len(graph.layers) - 1)), data.draw(st.integers(2, 5))
    layers = tuple(range(len(graph.layers)))
    groups = (GroupAssignment(tuple(range(count)), layers[end:]), GroupAssignment((7, 6), layers[:end]))
    sizes = {place: len(group.cores) for group in groups for place in group.layers}
    splits = _drawn_splits(data.draw, graph, sizes)
    try:
        compiled = compile_system(graph, machine, Assignment(groups if end else groups[:1]), splits=splits)
    except DoesNotFit:
        event("does not fit")
        return
    found = checked_run(network, compiled, 1e-5)
    other = _in_order(compiled, network.weights, network.inputs, data.draw(st.permutations(range(count))))
    for name, array in found.items():
        assert array.tobytes() == other[name].tobytes()


def _in_order(
    compiled: CompiledSystem, weights: Mapping[str, Array], inputs: Mapping[str, Array], order: Sequence[int]
) -> Mapping[str, Array]:
    """Return the outputs with the cores of the first group in another order: each runs until it has to wait."""
    groups = []
    for group in compiled.groups:
        cores = [group.cores[place] for place in order] if len(group.cores) == len(order) else group.cores[::-1]
        groups.append(GroupProgram({core.core: core.program for core in cores}, group.image(weights)))
    return run_stream(groups, compiled.machine, (inputs,))[0]


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A small network."""
    return splittable_network()


@pytest.fixture(scope="module")
def edge() -> Machine:
    """The built-in machine."""
    return find_machine("edge")


def test_candidates_are_what_layers_can(graph: Graph, edge: Machine) -> None:
    """Every layer has a candidate on one core, and every kind is either a candidate or refused with a reason."""
    for choice in choose_splits(graph, [edge] * 4):
        names = [candidate.name for candidate in choice.candidates]
        assert sorted((*names, *choice.refused)) == sorted(("one", *SPLIT_KINDS))
        assert all(choice.refused.values())
        predicted = [candidate.predicted_ps for candidate in choice.candidates]
        assert predicted == sorted(predicted)
        assert choice.best is choice.candidates[0]
    softmax = choose_splits(graph, [edge] * 4)[-1]
    assert [candidate.name for candidate in softmax.candidates] == ["one"]


def test_one_core_is_predicted_by_the_formula(graph: Graph, edge: Machine) -> None:
    """On one core the only candidate is the layer itself, and its run takes the predicted time."""
    for choice in choose_splits(graph, [edge] * 1):
        assert [candidate.name for candidate in choice.candidates] == ["one"]
        # The run issues instructions as well, two cycles each, which the formula leaves out.
        ran = layer_ps(choice.layer, choice.best.split, graph, edge, 1)
        assert choice.best.predicted_ps <= ran <= choice.best.predicted_ps + 2_000 * 150


def test_twice_the_cores_halve_what_is_computed(edge: Machine) -> None:
    """With unlimited memory bandwidth, rows on n cores take an n-th of the time, as predicted and in the run.

    By hand: 64 x 64 pixels of 3 x 3 taps and 32 channels by 32 columns are 4096 x 3 x ceil(96 / 32) = 36,864 cycles of
    the matrix unit; on 4 cores 9,216.
    """
    x = {"x": values((1, 32, 64, 64))}
    proto = model([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], x, {"w": values((32, 32, 3, 3), 1)})
    fast = replace(edge, ddr=replace(edge.ddr, bytes_per_s=1e15, latency_ns=0), nb_bytes=16 << 20)
    graph = imported(proto, x, 1e-3)
    for cores, cycles in ((1, 36_864), (2, 18_432), (4, 9_216), (8, 4_608)):
        (choice,) = choose_splits(graph, [fast] * cores)
        candidate = choice.of_kind("rows" if cores > 1 else "one")
        assert candidate is not None
        ran = layer_ps(choice.layer, candidate.split, graph, fast, cores)
        assert cycles * 1000 <= candidate.predicted_ps <= ran <= (cycles + 400) * 1000


def test_memory_that_cores_share_sets_the_pace(edge: Machine) -> None:
    """If DDR is the limit, a split by rows takes n times the weights, as predicted and in the run.

    By hand: 1 x 1 of 1,024 by 1,024 channels are 4 MiB of weights, 246 us at 17.07 GB/s; on 4 cores four times that.
    """
    x = {"x": values((1, 1024, 4, 4))}
    proto = model([node("Conv", "x w", "y")], x, {"w": values((1024, 1024, 1, 1), 1)})
    graph = imported(proto, x, 1e-3)
    (choice,) = choose_splits(graph, [edge] * 4)
    weights_ps = 4 * (4 << 20) / edge.ddr.bytes_per_s * 1e12
    candidate = choice.of_kind("rows")
    assert candidate is not None
    ran = layer_ps(choice.layer, candidate.split, graph, edge, 4)
    assert weights_ps < candidate.predicted_ps < 1.05 * weights_ps
    assert weights_ps < ran < 1.05 * weights_ps
    assert choice.best.name != "rows"


def test_equal_layers_are_chosen_alike(edge: Machine) -> None:
    """Layers that differ only in names and weights have the same predictions."""
    x = {"x": values((1, 32, 14, 14))}
    nodes = [node("Conv", f"t{place} w{place}", f"t{place + 1}", pads=[1, 1, 1, 1]) for place in range(4)]
    nodes[0].input[0] = "x"
    constants = {f"w{place}": values((32, 32, 3, 3), place) for place in range(4)}
    graph = import_model(model(nodes, x, constants, outputs=["t4"]))
    choices = choose_splits(graph, [edge] * 4)
    times = [[(one.name, one.predicted_ps) for one in choice.candidates] for choice in choices]
    assert times[1] == times[2]


def test_a_group_has_its_part_of_the_cache(graph: Graph, edge: Machine) -> None:
    """A quarter of a chip's cores has a quarter of its cache: features that fit only the whole cache go to DDR."""
    quarter = replace(edge.llc, bytes=24 * 24 * 64 * 4)  # the largest map
    spaces = [choose_spaces(graph, replace(edge, llc=replace(quarter, bytes=quarter.bytes // part))) for part in (1, 4)]
    assert [found[graph.layers[0].output.value] for found in spaces] == [Space.LLC, Space.DDR]


def _layers_of(compiled: CompiledSystem) -> list[list[int]]:
    """Return the number of layers in the chains of each core."""
    return [[len(plan.layers) for decision in core.decisions for plan in decision.chains] for core in compiled.cores]


def test_what_is_not_split_may_be_chained(edge: Machine) -> None:
    """Layers that mostly move data stay in one chain on one core; each slice is a chain of its own."""
    x = {"x": values((1, 8, 48, 48))}
    nodes = [node("Conv", f"t{place} w", f"t{place + 1}") for place in range(5)]
    nodes[0].input[0] = "x"
    network = network_of(nodes, x, {"w": values((8, 8, 1, 1), 1)}, ["t5"])
    graph = import_model(network.model)
    group = Assignment((GroupAssignment((0, 1, 2, 3), tuple(range(5))),))
    compiled = compile_system(graph, edge, group)
    first, *others = _layers_of(compiled)
    assert sum(first) == 5 and max(first) > 1 and others == [[], [], []]
    checked_run(network, compiled)
    rows = {place: split_layer(graph.layers[place], graph.values, "rows", [1] * 4) for place in (1, 2)}
    some = compile_system(graph, edge, group, splits=rows)
    assert _layers_of(some) == [[1, 1, 1, 2], [1, 1], [1, 1], [1, 1]]
    checked_run(network, some)
