"""The compiler decides where chains end and what stays on chip, by predicted time."""

from functools import cache
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import (
    TOLERANCE,
    NetworkCase,
    builtin_model,
    execute,
    network_of,
    relative_error,
    small_machine,
    with_varied_weights,
)
from random_networks import machines_for, random_networks
from small_models import node, values

from benchmarks import topologies
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import DEFAULT, Options, ResidencyChoice
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces, placeholders
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Planner
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program


def _convolutions(count: int, height: int = 24) -> NetworkCase:
    nodes, constants = [], {}
    for place in range(count):
        source = f"t{place - 1}" if place else "x"
        constants[f"w{place}"] = values((4, 4, 3, 3), place, -0.5, 0.5)
        nodes.append(node("Conv", f"{source} w{place}", f"t{place}", pads=[1, 1, 1, 1]))
    return network_of(nodes, {"x": values((1, 4, height, 16))}, constants, [f"t{count - 1}"])


def _check_cover(compiled: Compiled) -> None:
    """Check that consecutive decisions have every layer in order."""
    assert (compiled.decisions[0].start, compiled.decisions[-1].end) == (0, len(compiled.graph.layers))
    assert all(before.end == after.start for before, after in pairwise(compiled.decisions))
    layers = list(chain.from_iterable(compiled.chains))
    assert layers == [layer.index for layer in compiled.graph.layers]


@given(st.data())
@settings(max_examples=15)
def test_every_layer_is_in_one_chain_and_the_best_choice_is_taken(data: st.DataObject) -> None:
    """Chains divide the layers; the way of each costs least, or 2 % more in fewer passes, 1 % where units overlap."""
    network = data.draw(random_networks())
    try:
        compiled = compile_model(network.model, data.draw(machines_for(network)))
    except DoesNotFit:
        return
    _check_cover(compiled)
    for decision in compiled.decisions:
        best = min((decision.chosen, *decision.others), key=lambda choice: choice.cost_ps)
        more = (1.01 if best.overlaps else 1.02) if decision.chosen.passes < best.passes else 1
        assert decision.chosen.cost_ps <= more * best.cost_ps
    for plan in compiled.plans:
        assert plan.nb_bytes + plan.halo_bytes <= compiled.machine.nb_bytes
        assert plan.sb_bytes <= compiled.machine.sb_bytes


@pytest.mark.parametrize("options", [Options("layers"), Options(halo="refetch")], ids=str)
def test_layer_by_layer_every_chain_is_one_layer(options: Options) -> None:
    """Both options that force layers to run singly end chains after every layer."""
    compiled = compile_model(_convolutions(4).model, small_machine(), options)
    assert [len(each) for each in compiled.chains] == [1, 1, 1, 1]


def test_chains_save_external_traffic_and_time() -> None:
    """If memory is the limit, layers are chained, which is faster than layer by layer."""
    network, machine = _convolutions(4), small_machine(array=(32, 32))
    chained = compile_model(network.model, machine)
    singly = compile_model(network.model, machine, Options("layers"))
    assert max(map(len, chained.chains)) > 1
    times = [simulate_program(each.program, machine).makespan_ps for each in (chained, singly)]
    assert times[0] < times[1]


def test_the_whole_network_as_one_chain() -> None:
    """With chains forced to `whole`, the network is one chain."""
    compiled = compile_model(_convolutions(4).model, small_machine(), Options("whole"))
    assert compiled.chains == ((0, 1, 2, 3),)


def test_what_cannot_be_one_chain_is_refused() -> None:
    """A network that cannot be one chain is refused: softmax over a map that is computed in parts."""
    nodes = [node("Conv", "x w", "t"), node("Flatten", "t", "f"), node("Softmax", "f", "y")]
    network = network_of(nodes, {"x": values((1, 4, 40, 40))}, {"w": values((4, 4, 3, 3))}, ["y"])
    with pytest.raises(DoesNotFit, match="one chain"):
        compile_model(network.model, small_machine(nb_bytes=8192, halo_bytes=2048), Options("whole"))


@pytest.mark.parametrize("preset", ["edge-tpu", "edge"])
def test_a_layer_reads_what_its_chain_adds_to_a_concatenation(preset: str) -> None:
    """The first convolution writes its part of a concatenation, and a pool of its chain reads that from the buffer."""
    nodes = [
        node("Conv", "x a", "skip", pads=[1] * 4),
        node("MaxPool", "skip", "half", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "half b", "deep", pads=[1] * 4),
        node("Resize", "deep - sizes", "up", mode="nearest", coordinate_transformation_mode="asymmetric"),
        node("Concat", "skip up", "both", axis=1),
        node("Conv", "both c", "y", pads=[1] * 4),
    ]
    channels = {"a": (8, 3), "b": (8, 8), "c": (4, 16)}
    constants = {name: values((*sizes, 3, 3), at) for at, (name, sizes) in enumerate(channels.items())}
    constants["sizes"] = np.array([1, 1, 2, 2], np.float32)
    network = network_of(nodes, {"x": values((1, 3, 32, 32))}, constants, ["y"])
    machine = find_machine(preset)
    graph = import_model(network.model)
    planner = Planner(graph, machine, DEFAULT, placeholders(graph, machine, choose_spaces(graph, machine)))
    (plan,) = planner.decide(0, 3).chains
    assert set(plan.geometry.loaded) == {"x"}
    compiled = compile_model(network.model, machine, Options("whole"))
    assert compiled.chains == (tuple(range(len(compiled.graph.layers))),)
    if preset == "edge":
        assert relative_error(execute(compiled, network), network.expected) < TOLERANCE


@cache
def _one_of_both_fits(residency: ResidencyChoice) -> tuple[NetworkCase, Compiled]:
    """A convolution whose weights or features fit on chip, not both, compiled with this choice."""
    network = network_of(
        [node("Conv", "x w", "y", pads=[1] * 4)], {"x": values((1, 24, 14, 14))}, {"w": values((96, 24, 3, 3))}, ["y"]
    )
    machine = small_machine(nb_bytes=24 << 10, sb_bytes=24 << 10)
    return network, compile_model(network.model, machine, Options(residency=residency))


@pytest.mark.parametrize("residency", ["auto", "weights", "features", "smaller"])
def test_weights_or_features_stay_on_chip(residency: ResidencyChoice) -> None:
    """A layer without room for weights and features streams one of them (S3.7), with the same values."""
    network, compiled = _one_of_both_fits(residency)
    fixed = [weights.resident for plan in compiled.plans for weights in plan.weights.values()]
    if residency == "weights":
        assert all(fixed)
        assert len(compiled.plans) > 1
    if residency == "features":
        assert not any(fixed)
    assert relative_error(execute(compiled, network), network.expected) <= 1e-4


def test_the_choice_of_residency_is_the_faster_one() -> None:
    """The automatic choice is no slower than either forced residency."""

    def time_ps(residency: ResidencyChoice) -> int:
        _, compiled = _one_of_both_fits(residency)
        return simulate_program(compiled.program, compiled.machine).makespan_ps

    assert time_ps("auto") <= min(time_ps("weights"), time_ps("features"))


@pytest.mark.parametrize(
    "name", ["dscnn", *(pytest.param(name, marks=pytest.mark.long) for name in ("squeezenet", "mobilenetv2"))]
)
def test_predictions_are_near_what_the_program_takes(name: str) -> None:
    """The sum of the predicted times of the chains is within a fifth of the simulated time."""
    edge = find_machine("edge")
    compiled = compile_model(with_varied_weights(builtin_model(name))[0], edge)
    _check_cover(compiled)
    predicted_ps = sum(decision.chosen.predicted_ps for decision in compiled.decisions)
    assert abs(predicted_ps / simulate_program(compiled.program, edge).makespan_ps - 1) < 0.2


@pytest.mark.long
def test_the_automatic_choice_is_hardly_slower_than_one_that_keeps_every_halo() -> None:
    """MobileNetV1, whose coarsest tiles leave no room for their halo, is at most 0.5 % slower than where it is kept."""
    network, edge = topologies.build("mobilenetv1").SerializeToString(), find_machine("edge")

    def time_ps(options: Options) -> int:
        return simulate_program(compile_model(network, edge, options).program, edge).makespan_ps

    assert time_ps(Options()) <= 1.005 * time_ps(Options(halo="retain"))


def test_a_large_buffer_needs_one_pass() -> None:
    """If everything fits, a network that is forced into one chain is not cut and has no halo."""
    compiled = compile_model(_convolutions(3).model, find_machine("edge"), Options(chains="whole"))
    assert [plan.passes for plan in compiled.plans] == [1] * len(compiled.plans)
    assert compiled.program.footprint.halo_bytes == 0
