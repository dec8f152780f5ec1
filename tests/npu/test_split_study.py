"""The study of splits: predicted times beside those of programs that run."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from networks_on_npu import builtin_model
from scipy.stats import kendalltau
from small_models import model, node, values
from splittable_network import splittable_network

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine, find_machine
from harness.npu.split.split_study import kendall_tau_b, network_ps, study_splits


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A small network."""
    return splittable_network()


@pytest.fixture(scope="module")
def edge() -> Machine:
    """The built-in machine."""
    return find_machine("edge")


def test_the_study_ranks_what_it_runs(graph: Graph, edge: Machine) -> None:
    """The predicted best of every layer is close to the true best; excess and agreement follow from the times."""
    study = study_splits(graph, edge, 4)
    assert study.well_chosen == sum(layer.excess <= 0.03 for layer in study.layers) / len(study.layers) == 1
    for layer in study.layers:
        times = layer.true_ps
        assert set(times) == {candidate.name for candidate in layer.choice.candidates}
        assert times[layer.true_best] == min(times.values())
        assert layer.excess == times[layer.choice.best.name] / min(times.values()) - 1 >= 0
        assert all(
            0.93 < one.predicted_ps / times[one.name] < 1.08 for one in layer.choice.candidates
        )  # 0.941 to 1.065
    names = [network.name for network in study.networks]
    assert names == ["one", "rows", "outputs", "inputs", "best"]
    for network in study.networks:
        assert network.true_ps is not None
        assert 0.99 < network.predicted_ps / network.true_ps < 1.07  # 1.006 to 1.056
    assert study.network_tau == study.layer_tau == 1


def test_splits_are_compared_with_one_core_at_its_best(graph: Graph, edge: Machine) -> None:
    """The network on one core has its chains; it wins where no split is faster."""
    study = study_splits(graph, edge, 4)
    compiled = compile_graph(graph, edge)
    assert study.chained is not None
    assert study.chained.true_ps == time_program(compiled.program, edge).timing.makespan_ps
    one = next(network for network in study.networks if network.name == "one")
    assert study.chained.true_ps <= (one.true_ps or 0)
    fastest = min(network.true_ps or 0 for network in study.networks)
    assert study.one_core_wins == (study.chained.true_ps <= fastest)


def test_layers_alone_are_studied_without_the_network(graph: Graph, edge: Machine) -> None:
    """Named layers have no table of the network, and without a run nothing but predictions."""
    study = study_splits(graph, edge, 2, layers=(1,), verify=False)
    assert [layer.choice.layer.index for layer in study.layers] == [1]
    assert study.networks == ()
    assert study.layers[0].true_ps == {}


def test_one_group_of_one_core_is_the_network_on_one_core(graph: Graph, edge: Machine) -> None:
    """With a group of one core the run takes what one core alone takes that has its part of the memories."""
    single = replace(edge, cores=replace(edge.cores, per_chip=1))
    alone = time_program(compile_graph(graph, single).program, single).timing.makespan_ps
    assert network_ps(graph, {}, single, 1) == alone


def test_a_group_of_cores_is_faster_where_it_computes(edge: Machine) -> None:
    """Where the matrix unit has most to do, four cores take little more than a quarter of the time of one."""
    x = {"x": values((1, 64, 56, 56))}
    nodes = [node("Conv", "x w0", "a", pads=[2, 2, 2, 2]), node("Conv", "a w1", "y", pads=[2, 2, 2, 2])]
    constants = {"w0": values((64, 64, 5, 5), 1), "w1": values((64, 64, 5, 5), 2)}
    graph = import_model(model(nodes, x, constants))
    fast = replace(edge, ddr=replace(edge.ddr, bytes_per_s=256e9))
    splits = {choice.layer.index: choice.best.split for choice in choose_splits(graph, [fast] * 4)}
    one, four = network_ps(graph, {}, fast, 4), network_ps(graph, splits, fast, 4)
    assert 3 < one / four <= 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
@pytest.mark.parametrize("cores", [2, 4, 8])
def test_predictions_choose_well_on_networks(name: str, cores: int, edge: Machine) -> None:
    """For 95 % of the layers the predicted best is the true best or within 3 % of it; 98.1 % for the worst of these.

    Ways to split all of the network are ranked as they run, where they are more than 3 % apart.
    """
    study = study_splits(import_model(builtin_model(name)), edge, cores)
    assert study.well_chosen >= 0.95
    assert study.layer_tau is not None and study.layer_tau > 0.9
    ratios = [one.predicted_ps / layer.true_ps[one.name] for layer in study.layers for one in layer.choice.candidates]
    assert min(ratios) > 0.92 and max(ratios) < 1.19  # 0.933 to 1.174, both of ResNet-50 on two cores
    ways = []
    for network in study.networks:
        assert network.true_ps is not None
        assert 1.0 < network.predicted_ps / network.true_ps < 1.1  # 1.014 to 1.085: sums of layers know no overlap
        ways.append((network.true_ps, network.predicted_ps))
    for (fast, expected), (slow, other) in itertools.combinations(sorted(ways), 2):
        assert slow <= 1.03 * fast or expected < other


def test_a_result_that_nobody_reads_has_no_place(edge: Machine) -> None:
    """A network whose layers write values that nobody reads is predicted like its layers."""
    proto = model([node("TopK", "x k", "largest places")], {"x": values((3, 8))}, {"k": np.array([1])}, ["places"])
    study = study_splits(import_model(proto), edge, 2, verify=False)
    best = next(network for network in study.networks if network.name == "best")
    assert best.predicted_ps == sum(layer.choice.best.predicted_ps for layer in study.layers)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_rank_agreement_is_kendalls(pairs: list[tuple[int, int]]) -> None:
    """Ties and all, it is what scipy calls tau-b; None where one side has no order at all."""
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    found, wanted = kendall_tau_b(first, second), kendalltau(first, second).statistic
    if math.isnan(wanted):
        assert found is None
    else:
        assert found == pytest.approx(wanted)


def test_rank_agreement_by_hand() -> None:
    """Of six pairs four agree, one does not, one is tied in the second: 3 / sqrt(6 x 5)."""
    assert kendall_tau_b([1, 2, 3, 4], [1, 3, 2, 3]) == pytest.approx(3 / math.sqrt(6 * 5))
