"""Chains of short networks are compared with others by the formula, which knows what overlaps with neighbours."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from networks_on_npu import network_of, small_machine
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.compiler.ordering.order import KnownCommands, order
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces, placeholders
from device_agents.emulated_npu.compiler.planning.plan import WrittenChains, plan
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Decision, Planner
from device_agents.emulated_npu.compiler.planning.search.decisions import decide_chains, in_other_ways, other_chains
from device_agents.emulated_npu.compiler.prediction.changed_chains import FastestChains
from device_agents.emulated_npu.compiler.splitting.division import divide
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import Machine, find_machine


def _branches() -> tuple[bytes, Machine]:
    """Return a convolution with a slice of its output, and a softmax beside them; and a machine whose units overlap."""
    nodes = [
        node("Conv", "x w b", "a", pads=[0, 1, 1, 0], group=2),
        node("Slice", "a starts ends axes steps", "y0"),
        node("Softmax", "x", "y1", axis=1),
    ]
    window = {"starts": 0, "ends": 2, "axes": 1, "steps": 1}
    constants = {"w": values((4, 4, 2, 2), 1), "b": values((4,), 2)} | {
        name: np.array([value]) for name, value in window.items()
    }
    network = network_of(nodes, {"x": values((1, 8, 32, 47))}, constants, ["y0", "y1", "a"])
    edge = find_machine("edge")
    machine = small_machine(
        960 << 10,
        832,
        480 << 10,
        llc=replace(edge.llc, bytes=16 << 10),
        vfu=replace(edge.vfu, lanes=128),
        issue_cycles=2,
        vfu_queue_depth=16,
    )
    return network.model, machine


def _formula_ps(compiled: Compiled, decisions: Sequence[Decision]) -> int:
    """Return the time of a network in some chains by the formula."""
    (group,) = plan(divide(compiled.graph, compiled.machine), DEFAULT, decisions={0: tuple(decisions)})
    (core,) = group.cores
    return order(core.commands, compiled.machine, DEFAULT, core.cached).predicted_ps


def test_chains_are_no_slower_than_joined_or_with_first_layers_apart() -> None:
    """By the formula, no two neighbours are faster as one chain, and no chain is faster without its first layer."""
    model, machine = _branches()
    compiled = compile_model(model, machine)
    graph, chosen = compiled.graph, compiled.decisions
    externals = placeholders(graph, machine, choose_spaces(graph, machine))
    others = list(other_chains(Planner(graph, machine, DEFAULT, externals), chosen, set()))
    ends = {tuple(decision.end for decision in way) for way in (chosen, *others)}
    assert {(3,), (1, 3)} <= ends
    chosen_ps = _formula_ps(compiled, chosen)
    assert all(chosen_ps <= _formula_ps(compiled, way) for way in others)


def _convolutions(channels: int, size: int, count: int = 4) -> tuple[bytes, Machine]:
    """Return some convolutions, and a machine for them."""
    nodes = [node("Conv", f"t{at} w", f"t{at + 1}", pads=[1] * 4) for at in range(count)]
    weights = {"w": values((channels, channels, 3, 3))}
    inputs = {"t0": values((1, channels, size, size))}
    return network_of(nodes, inputs, weights, [f"t{count}"]).model, find_machine("edge")


def _planner(model: bytes, machine: Machine) -> Planner:
    graph = compile_model(model, machine).graph
    return Planner(graph, machine, DEFAULT, placeholders(graph, machine, choose_spaces(graph, machine)))


def test_chains_also_end_one_layer_earlier_and_later() -> None:
    """Two chains of two layers each are compared with one, with a first layer apart, and with the other two ends."""
    planner = _planner(*_convolutions(8, 16))
    others = other_chains(planner, decide_chains(planner, (2, 4), 0), set())
    assert {tuple(each.end for each in way) for way in others} == {(4,), (1, 2, 4), (1, 4), (3, 4), (2, 3, 4)}


def test_changes_of_ends_and_of_ways_take_turns() -> None:
    """Ways to run a chain are many and much alike, so other ends are not compared after all of them."""
    planner = _planner(*_convolutions(16, 128))
    found = other_chains(planner, decide_chains(planner, (1, 3, 4), 1 << 16), set())
    changes_ends = [tuple(each.end for each in way) != (1, 3, 4) for way in found]
    turns = min(changes_ends.count(True), changes_ends.count(False))
    assert turns > 1
    assert changes_ends[: 2 * turns] == [True, False] * turns


def test_chains_are_compared_where_they_differ() -> None:
    """A part with one chain on each side shows by how much a network becomes faster or slower."""
    compiled = compile_model(*_convolutions(16, 32, 6))
    graph, machine = compiled.graph, compiled.machine
    planner = Planner(graph, machine, DEFAULT, placeholders(graph, machine, choose_spaces(graph, machine)))

    def fastest(chains: tuple[Decision, ...]) -> FastestChains:
        return FastestChains(graph, machine, DEFAULT, chains, WrittenChains(), KnownCommands(machine))

    differences = []
    for chains in (decide_chains(planner, (2, 4, 6), 0), compiled.decisions):
        whole_ps = fastest(chains).predicted_ps()
        for others in other_chains(planner, chains, set()):
            compared = fastest(chains)
            ratio = compared.compare(others)
            differences.append(fastest(others).predicted_ps() - whole_ps)
            assert compared.decisions == (others if ratio < 1 else chains)
            assert (ratio < 1) == (differences[-1] < 0) or abs(differences[-1]) < 1e-3 * whole_ps
    assert min(differences) < 0 < max(differences)


def test_new_chains_are_tried_in_other_ways() -> None:
    """One of two new chains runs in another way, if the chains around them end where the new ones do."""
    planner = _planner(*_convolutions(16, 128))
    chains, others = (decide_chains(planner, ends, 1 << 16) for ends in ((1, 4), (1, 3, 4)))
    found = list(in_other_ways(chains, others[1:], set()))
    assert found
    for way in found:
        assert [each.end for each in way] == [1, 3, 4]
        assert sum(one.chosen is not other.chosen for one, other in zip(way[1:], others[1:], strict=True)) == 1
    assert not list(in_other_ways(decide_chains(planner, (2, 4), 1 << 16), others[1:], set()))
