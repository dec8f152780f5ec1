"""Names and stages of the groups of an assignment."""

from hypothesis import given, settings, strategies as st
from networks_on_npu import network_of
from random_networks import random_networks
from small_models import node, values
from systems_of_cores import assignments

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.regions import layer_producers
from device_agents.emulated_npu.compiler.splitting.assignment import (
    Assignment,
    GroupAssignment,
    group_names,
    stage_numbers,
)


def test_groups_are_called_by_number_and_cores() -> None:
    """The names of groups list their cores."""
    names = group_names(Assignment((GroupAssignment((3,), (0,)), GroupAssignment((0, 1), (1, 2, 3)))))
    assert names == ("Group 0 (core 3)", "Group 1 (cores 0, 1)")


def test_parts_of_a_concatenation_do_not_wait_for_each_other() -> None:
    """A reader of a part of a value depends on the writer of that part, not on writers of other parts."""
    nodes = [node("Conv", "x w0", "a"), node("Concat", "a x", "c", axis=1), node("Conv", "c w1", "y")]
    nodes.insert(1, node("Conv", "a w2", "b"))
    nodes[2] = node("Concat", "a b", "c", axis=1)
    weights = {"w0": values((4, 4, 1, 1)), "w2": values((4, 4, 1, 1), 1), "w1": values((4, 8, 1, 1), 2)}
    graph = import_model(network_of(nodes, {"x": values((1, 4, 5, 5))}, weights, ["y"]).model)
    assert layer_producers(graph) == (frozenset(), frozenset({0}), frozenset({0, 1}))


@given(st.data())
@settings(max_examples=24)
def test_stages_lead_from_producers_to_readers(data: st.DataObject) -> None:
    """Of every cut of every order in which data can flow, a stage is the one after the last that feeds it."""
    graph = import_model(data.draw(random_networks()).model)
    assignment = data.draw(assignments(graph, 5))
    group_of = {place: number for number, group in enumerate(assignment.groups) for place in group.layers}
    edges = {(group_of[one], group_of[place]) for place, found in enumerate(layer_producers(graph)) for one in found}
    stages = stage_numbers(len(assignment.groups), edges)
    for source, target in edges:
        assert source == target or stages[source] < stages[target]
    for number, stage in enumerate(stages):
        assert stage == max((stages[source] + 1 for source, target in edges if target == number != source), default=0)
